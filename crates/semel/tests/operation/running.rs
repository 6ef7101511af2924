//! Row 16: any function under an operation, several operations on one guard.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::KeyRule;
use semel::guard::{
    Event, InFlight, Observer, OnFailure, Policy, Ran, RunError, StepError, StepKey,
};
use semel::operation::{KeyFrom, Operation, Part};
use semel::store::{OnLost, Retention};

use super::{Bench, Count, call, first, replayed};

const CLIENT: KeyFrom = KeyFrom::Client(KeyRule::GENERAL);

#[derive(Default)]
struct Seen(Mutex<Vec<Event>>);

impl Observer for Seen {
    fn on_event(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

#[tokio::test(start_paused = true)]
async fn operations_on_one_guard_have_retentions_of_their_own() {
    let mut bench = Bench::new();
    let seen = Arc::new(Seen::default());
    bench.guard = bench.guard.with_observer(seen.clone());
    let mail = Operation::new("mail", [Part::USER], CLIENT).with_retention(Retention::EMAIL);
    let order = Operation::new("order", [Part::USER], CLIENT).with_retention(
        Retention::new(Duration::from_mins(1)).with_tombstone(Duration::from_hours(9)),
    );
    let plain = Operation::new("plain", [Part::USER], CLIENT);
    let (mail, order, plain) = (
        mail.on(&bench.guard),
        order.on(&bench.guard),
        plain.on(&bench.guard),
    );
    assert_eq!(plain.guard().policy(), bench.guard.policy());
    let (count, call) = (Count::default(), call().key(Some("k")));
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
        .filter(|e| **e == Event::New)
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
    assert_eq!(op().policy(&base), base);
    assert_eq!(op().with_policy(own).policy(&base), own);
    let set = op()
        .with_lease(second)
        .with_key_required(false)
        .with_policy(own);
    assert_eq!(set.policy(&base), own.with_lease(second));
}

#[tokio::test(start_paused = true)]
async fn one_of_many_callers_runs_and_drain_of_the_guard_waits_for_it() {
    let bench =
        Bench::with(Policy::default().with_in_flight(InFlight::Wait(Duration::from_mins(1))));
    let op = Operation::new("op", [Part::USER], CLIENT).on(&bench.guard);
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let op = op.clone();
        callers.spawn(async move {
            let call = call().key(Some("k"));
            let work = |_| async {
                tokio::time::sleep(Duration::from_secs(2)).await;
                Ok::<_, std::convert::Infallible>("1".to_owned())
            };
            op.run(&call, work).await.unwrap()
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
    let keeping = Policy::default().with_on_failure(OnFailure::Keep);
    let op = Operation::new("op", [Part::USER], CLIENT)
        .with_policy(keeping)
        .on(&bench.guard);
    let call = call().key(Some("k"));
    let declined = |_| async { Err::<(), _>("declined") };
    assert!(matches!(
        op.run(&call, declined).await,
        Err(RunError::Failed("declined"))
    ));
    let again = op.run(&call, declined).await;
    assert!(matches!(again, Err(RunError::FailedBefore(text)) if text == "declined"));
}

#[tokio::test(start_paused = true)]
async fn steps_go_on_where_they_ended_and_without_a_key_have_keys_of_their_own() {
    let bench = Bench::with(Policy::default().with_on_lost(OnLost::Retry));
    let op = Operation::new("op", [Part::USER], CLIENT).on(&bench.guard);
    let keys = Arc::new(Mutex::new(Vec::new()));
    let run = async |call, fails: bool| {
        let keys = keys.clone();
        let work = |mut steps: semel::guard::Steps<super::Store>| async move {
            let charged = |key: StepKey| async move {
                keys.lock().unwrap().push(key);
                Ok::<_, &str>("charged".to_owned())
            };
            let charge = steps.step("charge", charged).await?;
            let ship = |_| async move { if fails { Err("no parcel") } else { Ok(charge) } };
            steps.step("ship", ship).await
        };
        op.run_in_steps::<String, StepError<&str>, _, _>(&call, work)
            .await
    };
    let keyed = call().key(Some("k"));
    assert!(matches!(
        run(keyed.clone(), true).await,
        Err(RunError::Failed(_))
    ));
    assert_eq!(
        run(keyed, false).await.unwrap(),
        Ran::First("charged".into())
    );
    assert_eq!(
        keys.lock().unwrap().len(),
        1,
        "the charge was not run again"
    );
    for _ in 0..2 {
        let ran = run(call(), false).await.unwrap();
        assert_eq!(ran, Ran::Unprotected("charged".into()));
    }
    let keys = keys.lock().unwrap();
    let different: HashSet<_> = keys.iter().collect();
    assert_eq!((keys.len(), different.len()), (3, 3));
    assert_eq!(bench.store.len(), 1);
}
