//! Row 16: any function under an operation, several operations on one guard.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::KeyRule;
use semel::guard::{
    Attempt, Done, Guard, Observer, OnError, Policy, RunError, Signal, StepError, StepKey,
};
use semel::operation::{KeyFrom, Operation, Part};
use semel::store::Retention;

use super::{Bench, Count, call, first, replayed};

const CLIENT: KeyFrom = KeyFrom::Client(KeyRule::GENERAL);

#[derive(Default)]
struct Seen(Mutex<Vec<Signal>>);

impl Observer for Seen {
    fn on_event(&self, seen: &semel::guard::Seen<'_>) {
        self.0.lock().unwrap().push(seen.signal);
    }
}

#[tokio::test(start_paused = true)]
async fn operations_on_one_guard_have_retentions_of_their_own() {
    let mut bench = Bench::new();
    let seen = Arc::new(Seen::default());
    bench.guard = Guard::builder(bench.store.clone())
        .observer(seen.clone())
        .build();
    let mail = Operation::new("mail", [Part::USER], CLIENT).with_retention(Retention::EMAIL);
    let order = Operation::new("order", [Part::USER], CLIENT).with_retention(
        Retention::new(Duration::from_mins(1)).with_tombstone(Duration::from_hours(9)),
    );
    let plain = Operation::new("plain", [Part::USER], CLIENT);
    let (count, call) = (Count::on(&bench), call().key(Some("k")));
    let policy = bench.guard.policy();
    assert_eq!(plain.asked(&call).unwrap().policy(policy), *policy);
    for (nth, op) in [&mail, &order, &plain].into_iter().enumerate() {
        let nth = u32::try_from(nth).unwrap() + 1;
        assert_eq!(count.run(op, &call).await.unwrap(), first(nth));
    }
    bench.clock.advance(Duration::from_mins(1));
    assert!(matches!(
        count.run(&order, &call).await,
        Err(RunError::Expired)
    ));
    assert_eq!(count.run(&mail, &call).await.unwrap(), replayed(1));
    bench.clock.advance(Duration::from_hours(1));
    assert_eq!(count.run(&mail, &call).await.unwrap(), first(4));
    assert_eq!(count.run(&plain, &call).await.unwrap(), replayed(3));
    // One observer for all.
    let new = seen
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|e| **e == Signal::New)
        .count();
    assert_eq!(new, 4);
}

#[test]
fn an_operations_settings_count_above_its_policy_and_that_above_the_guards() {
    let second = Duration::from_secs(1);
    let base = Policy::default()
        .with_lease(7 * second)
        .with_key_required(true);
    let own = Policy::default()
        .with_lease(5 * second)
        .with_retention(Retention::API);
    let op = || Operation::new("op", [], KeyFrom::Content);
    let policy = |op: Operation| op.asked(&call()).unwrap().policy(&base);
    assert_eq!(policy(op()), base);
    assert_eq!(policy(op().with_policy(own)), own);
    let set = op()
        .with_lease(second)
        .with_key_required(false)
        .with_policy(own);
    assert_eq!(policy(set), own.with_lease(second));
}

#[tokio::test(start_paused = true)]
async fn one_of_many_callers_runs_and_drain_of_the_guard_waits_for_it() {
    let bench = Bench::with(Policy::default().with_wait(Duration::from_mins(1)));
    let op = Operation::new("op", [Part::USER], CLIENT);
    let asked = op.asked(&call().key(Some("k"))).unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (guard, asked) = (bench.guard.clone(), asked.clone());
        callers.spawn(async move {
            let work = |_| async {
                tokio::time::sleep(Duration::from_secs(2)).await;
                Ok::<_, std::convert::Infallible>("1".to_owned())
            };
            guard.run(asked, work).await.unwrap()
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(bench.guard.running() > 0);
    let ran = callers.join_all().await;
    assert_eq!(ran.iter().filter(|ran| **ran == first(1)).count(), 1);
    assert_eq!(ran.iter().filter(|ran| **ran == replayed(1)).count(), 31);
    bench.guard.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_kept_failure_is_told_to_duplicates() {
    let bench = Bench::new();
    let keeping = Policy::default().with_on_error(OnError::Keep);
    let op = Operation::new("op", [Part::USER], CLIENT).with_policy(keeping);
    let asked = op.asked(&call().key(Some("k"))).unwrap();
    for error in [Some(&"declined"), None] {
        let work = |_| async { Err::<(), _>("declined") };
        let Err(RunError::Failed(failed)) = bench.guard.run(asked.clone(), work).await else {
            panic!("it was declined")
        };
        assert_eq!(failed.error(), error);
        assert_eq!(failed.to_string(), "declined");
    }
}

#[tokio::test(start_paused = true)]
async fn steps_go_on_where_they_ended_and_without_a_key_have_keys_of_their_own() {
    let bench = Bench::new();
    let op = Operation::new("op", [Part::USER], CLIENT);
    let keys = Arc::new(Mutex::new(Vec::new()));
    let run = async |call, fails: bool| {
        let keys = keys.clone();
        let work = move |mut attempt: Attempt<super::Store>| async move {
            let charged = |key: StepKey| async move {
                keys.lock().unwrap().push(key);
                Ok::<_, &str>("charged".to_owned())
            };
            let charge = attempt.step("charge", charged).await?;
            let ship = |_| async move { if fails { Err("no parcel") } else { Ok(charge) } };
            attempt.step("ship", ship).await
        };
        let asked = op.asked(&call).unwrap().in_steps();
        bench
            .guard
            .run::<String, StepError<&str>, _, _>(asked, work)
            .await
    };
    let keyed = call().key(Some("k"));
    assert!(matches!(
        run(keyed.clone(), true).await,
        Err(RunError::Failed(_))
    ));
    assert_eq!(
        run(keyed, false).await.unwrap(),
        Done::Fresh("charged".into())
    );
    assert_eq!(
        keys.lock().unwrap().len(),
        1,
        "the charge was not run again"
    );
    for _ in 0..2 {
        let ran = run(call(), false).await.unwrap();
        assert_eq!(ran, Done::Unprotected("charged".into()));
    }
    let keys = keys.lock().unwrap();
    let different: HashSet<_> = keys.iter().collect();
    assert_eq!((keys.len(), different.len()), (3, 3));
    assert_eq!(bench.store.len(), 1);
}
