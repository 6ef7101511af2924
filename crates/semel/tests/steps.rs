//! Attempts in steps: what is finished is not run again.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use semel::guard::{
    Asked, Attempt, Begin, Done, Guard, OnPanic, Policy, Ran, RunError, StepError, StepKey,
};
use semel::memory::MemoryStore;
use semel::store::{OnLost, Store as _};
use semel::{Fingerprint, Identity, Key, Progress, Scope};

type Store = Arc<MemoryStore>;
type Error = StepError<String>;

fn identity() -> Identity {
    Identity::new(Scope::new(["tenant"]), "order", Key::new("a-key").unwrap())
}

fn asked() -> Asked {
    Asked::new(identity(), Fingerprint::of(b"order")).in_steps()
}

/// What a step failed with.
fn step_error<T: std::fmt::Debug>(done: Result<T, RunError<Error>>) -> Error {
    match done {
        Err(RunError::Failed(failed)) => failed.into_error().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn guard() -> Guard<Store> {
    let policy = Policy::default()
        .with_lease(Duration::from_secs(1))
        .with_on_lost(OnLost::Retry)
        .with_on_panic(OnPanic::Unknown);
    Guard::new(Arc::new(MemoryStore::default()), policy)
}

/// Which steps ran, and with which keys.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(&'static str, StepKey)>>>);

impl Log {
    async fn done(&self, name: &'static str, key: StepKey) -> Result<String, String> {
        self.0.lock().unwrap().push((name, key));
        Ok(format!("{name} done"))
    }

    fn names(&self) -> Vec<&'static str> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .map(|(name, _)| *name)
            .collect()
    }
}

async fn order(
    guard: &Guard<Store>,
    log: &Log,
    names: &'static [&'static str],
    fails_after: Option<usize>,
) -> Result<Done<String>, RunError<Error>> {
    let log = log.clone();
    guard
        .run(asked(), move |mut steps: Attempt<Store>| async move {
            let mut all = Vec::new();
            for (number, name) in names.iter().enumerate() {
                if fails_after == Some(number) {
                    return Err(StepError::Failed("no more".to_owned()));
                }
                let done: String = steps.step(name, |key| log.done(name, key)).await?;
                all.push(done);
            }
            Ok::<_, Error>(all.join(", "))
        })
        .await
}

#[tokio::test]
async fn an_attempt_after_a_failure_goes_on_where_it_ended() {
    let (guard, log) = (guard(), Log::default());
    let failed = order(&guard, &log, &["charge", "ship"], Some(1)).await;
    assert!(matches!(failed, Err(RunError::Failed(_))), "{failed:?}");
    let done = order(&guard, &log, &["charge", "ship"], None)
        .await
        .unwrap();
    assert_eq!(done, Done::Fresh("charge done, ship done".to_owned()));
    assert_eq!(log.names(), ["charge", "ship"]);
    // The whole is replayed from then on, and nothing is left of its parts.
    let again = order(&guard, &log, &["charge", "ship"], None)
        .await
        .unwrap();
    assert_eq!(again, Done::Replayed("charge done, ship done".to_owned()));
    let entry = guard
        .store()
        .get(identity().digest())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(entry.record.progress, Progress::EMPTY);
}

/// However often it fails: a record has room for so many bytes.
#[tokio::test]
async fn a_failure_after_a_finished_step_adds_nothing() {
    let (guard, log) = (guard(), Log::default());
    let mut kept = Vec::new();
    for _ in 0..3 {
        order(&guard, &log, &["charge", "ship"], Some(1))
            .await
            .unwrap_err();
        let entry = guard.store().get(identity().digest()).await.unwrap();
        kept.push(entry.unwrap().record.progress);
    }
    assert_eq!(kept[0].steps().count(), 1);
    assert!(kept[1] == kept[0] && kept[2] == kept[0], "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn a_takeover_runs_the_rest_and_the_zombie_keeps_nothing() {
    let (guard, log) = (guard(), Log::default());
    // The first attempt: one step, and then its process is as good as gone.
    let claimed = guard.begin(&asked()).await.unwrap();
    let Begin::Acquired(mut zombie) = claimed else {
        panic!("{claimed:?}");
    };
    zombie.stop_renewing();
    let mut steps = zombie.attempt();
    let step = steps.step("charge", |key| log.done("charge", key));
    assert_eq!(step.await.unwrap(), "charge done");
    tokio::time::advance(Duration::from_secs(2)).await;

    let done = order(&guard, &log, &["charge", "ship"], None)
        .await
        .unwrap();
    assert_eq!(done, Done::Fresh("charge done, ship done".to_owned()));
    // Its lease is over by its own clock, so it asks before the next effect, and learns.
    let late = steps.step("ship", |key| log.done("ship", key)).await;
    assert!(
        matches!(late, Err(StepError::Superseded { ran: Ran::No })),
        "{late:?}"
    );
    assert!(!steps.still_held());
    assert_eq!(log.names(), ["charge", "ship"]);
    let keys: Vec<StepKey> = log.0.lock().unwrap().iter().map(|(_, key)| *key).collect();
    assert_ne!(keys[0], keys[1]);
    assert_eq!(keys[0].to_string().len(), 64);
}

#[tokio::test]
async fn another_sequence_is_told_before_anything_runs() {
    let (guard, log) = (guard(), Log::default());
    order(&guard, &log, &["charge", "ship"], Some(1))
        .await
        .unwrap_err();
    let changed = order(&guard, &log, &["reserve", "charge"], None).await;
    let changed = step_error(changed);
    let StepError::Changed { place, asked, kept } = changed else {
        panic!("{changed:?}");
    };
    assert_eq!((place, &*asked, &*kept), (0, "reserve", "charge"));
    // Nor is it recorded that the work needs no steps at all.
    let none = order(&guard, &log, &[], None).await;
    assert!(matches!(none, Err(RunError::StepsLeft(1))), "{none:?}");
    assert_eq!(log.names(), ["charge"]);
}

#[tokio::test]
async fn steps_that_are_not_asked_for_are_not_lost() {
    let (guard, log) = (guard(), Log::default());
    order(&guard, &log, &["charge", "ship", "mail"], Some(2))
        .await
        .unwrap_err();
    let fewer = order(&guard, &log, &["charge"], None).await;
    assert!(matches!(fewer, Err(RunError::StepsLeft(1))), "{fewer:?}");
    let whole = order(&guard, &log, &["charge", "ship", "mail"], None).await;
    assert_eq!(
        whole.unwrap().into_inner(),
        "charge done, ship done, mail done"
    );
    assert_eq!(log.names(), ["charge", "ship", "mail"]);
}

#[tokio::test]
async fn another_type_is_told() {
    let (guard, log) = (guard(), Log::default());
    order(&guard, &log, &["charge", "ship"], Some(1))
        .await
        .unwrap_err();
    let run = guard.run(asked(), |mut steps: Attempt<Store>| async move {
        let unit = steps.step("charge", |_| async { Ok::<(), String>(()) });
        unit.await.map(|()| String::new())
    });
    assert!(matches!(step_error(run.await), StepError::Decode(_)));
}

#[tokio::test]
async fn a_result_that_is_too_large_is_told_after_it_ran() {
    let guard = guard();
    let run = guard.run(asked(), |mut steps: Attempt<Store>| async move {
        let large = steps.step("report", |_| async {
            Ok::<_, String>(vec![0; Progress::MAX_BYTES])
        });
        large.await
    });
    assert!(matches!(step_error(run.await), StepError::TooLarge { .. }));
}

#[tokio::test]
async fn steps_cost_one_call_each_and_none_before_the_first() {
    let (guard, log) = (guard(), Log::default());
    let done = order(&guard, &log, &["charge", "charge"], None)
        .await
        .unwrap();
    assert_eq!(done.into_inner(), "charge done, charge done");
    // The same name twice is two steps.
    assert_eq!(log.names(), ["charge", "charge"]);
    let keys: Vec<StepKey> = log.0.lock().unwrap().iter().map(|(_, key)| *key).collect();
    assert_ne!(keys[0], keys[1]);
}
