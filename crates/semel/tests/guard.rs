//! The helper around any work, on the memory store, in paused time.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{
    Answered, Case, Event, Finding, Guard, InFlight, Observer, OnFailure, OnPanic, Policy, Ran,
    Reconciler, RunError,
};
use semel::memory::{Limits, MemoryStore};
use semel::store::{OnLost, Retention};
use semel::{Fingerprint, Identity, Key, Outcome, Scope, StateKind, Store as _};
use tokio::time::{Instant, sleep};

type Memory = Arc<MemoryStore>;

fn store() -> Memory {
    Arc::new(MemoryStore::new(Limits::default()))
}

fn identity(key: &str) -> Identity {
    Identity::new(Scope::new(["tenant"]), "op", Key::new(key).unwrap())
}

fn asked() -> Fingerprint {
    Fingerprint::of(b"asked")
}

fn guard(store: &Memory, policy: Policy) -> Guard<Memory> {
    Guard::new(store.clone(), policy)
}

async fn ok<T>(value: T) -> Result<T, Infallible> {
    Ok(value)
}

#[derive(Default)]
struct Seen(Mutex<Vec<Event>>);

impl Observer for Seen {
    fn on_event(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

#[tokio::test(start_paused = true)]
async fn r1_of_64_callers_one_runs_and_63_replay() {
    let store = store();
    let policy = Policy::default().with_in_flight(InFlight::Wait(Duration::from_mins(1)));
    let guard = guard(&store, policy);
    let runs = Arc::new(AtomicU32::new(0));
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let (guard, runs) = (guard.clone(), runs.clone());
            tokio::spawn(async move {
                guard
                    .run(&identity("k"), asked(), |_| async move {
                        sleep(Duration::from_secs(2)).await;
                        ok(format!("run {}", runs.fetch_add(1, Ordering::SeqCst))).await
                    })
                    .await
                    .unwrap()
            })
        })
        .collect();
    let mut first = 0;
    for caller in callers {
        match caller.await.unwrap() {
            Ran::First(answer) => {
                first += 1;
                assert_eq!(answer, "run 0");
            }
            Ran::Replayed(answer) => assert_eq!(answer, "run 0"),
            Ran::Unprotected(_) => panic!("the store is up"),
        }
    }
    assert_eq!((first, runs.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_long_attempt_keeps_its_lease_and_duplicates_are_refused_throughout() {
    let store = store();
    let seen = Arc::new(Seen::default());
    let policy = Policy::default().with_lease(Duration::from_secs(1));
    let guard = guard(&store, policy).with_observer(seen.clone());
    let running = tokio::spawn({
        let guard = guard.clone();
        async move {
            guard
                .run(&identity("k"), asked(), |_| async {
                    sleep(Duration::from_secs(10)).await;
                    ok(()).await
                })
                .await
        }
    });
    for _ in 0..19 {
        sleep(Duration::from_millis(500)).await;
        let duplicate = guard.run(&identity("k"), asked(), |_| ok(())).await;
        assert!(
            matches!(duplicate, Err(RunError::InFlight { retry_after }) if retry_after <= Duration::from_secs(1))
        );
    }
    assert_eq!(running.await.unwrap().unwrap(), Ran::First(()));
    let renewed = seen
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|e| **e == Event::Renewed)
        .count();
    assert!(
        (28..=30).contains(&renewed),
        "{renewed} renewals in 10 s of a 1 s lease"
    );
}

#[tokio::test(start_paused = true)]
async fn r11_a_caller_that_goes_away_stops_nothing() {
    let store = store();
    let guard = guard(&store, Policy::default());
    let identity = identity("k");
    let call = guard.run(&identity, asked(), |_| async {
        sleep(Duration::from_secs(5)).await;
        ok(String::from("done")).await
    });
    tokio::time::timeout(Duration::from_secs(1), call)
        .await
        .unwrap_err();
    guard.drain().await;
    let retry = guard
        .run(&identity, asked(), |_| ok(String::from("again")))
        .await
        .unwrap();
    assert_eq!(retry, Ran::Replayed("done".into()));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_before_its_turn_leaves_no_claim_behind() {
    let store = store();
    let policy = Policy::default().with_in_flight(InFlight::Wait(Duration::from_mins(1)));
    let guard = guard(&store, policy);
    let failing = tokio::spawn({
        let guard = guard.clone();
        async move {
            let work = |_| async {
                sleep(Duration::from_secs(2)).await;
                Err::<(), _>("declined")
            };
            guard.run(&identity("k"), asked(), work).await
        }
    });
    sleep(Duration::from_millis(1)).await;
    let identity = identity("k");
    let impatient = guard.run(&identity, asked(), |_| ok(()));
    tokio::time::timeout(Duration::from_secs(1), impatient)
        .await
        .unwrap_err();
    failing.await.unwrap().unwrap_err();
    guard.drain().await;
    let entry = store.get(identity.digest()).await.unwrap().unwrap();
    assert_eq!(entry.record.state.kind(), StateKind::Released);
    assert_eq!(
        entry.record.attempt, 2,
        "the impatient caller's turn came, and was given back"
    );
}

#[tokio::test(start_paused = true)]
async fn failures_are_released_or_kept() {
    let store = store();
    let releasing = guard(&store, Policy::default());
    let failed = releasing
        .run::<String, _, _, _>(&identity("a"), asked(), |_| async { Err("declined") })
        .await;
    assert!(matches!(failed, Err(RunError::Failed("declined"))));
    let again = releasing
        .run(&identity("a"), asked(), |attempt| {
            ok(attempt.number.to_string())
        })
        .await
        .unwrap();
    assert_eq!(again, Ran::First("2".into()));

    let keeping = guard(&store, Policy::default().with_on_failure(OnFailure::Keep));
    for round in 0..2 {
        let failed = keeping
            .run::<String, _, _, _>(&identity("b"), asked(), |_| async { Err("declined") })
            .await;
        match failed {
            Err(RunError::Failed("declined")) => assert_eq!(round, 0),
            Err(RunError::FailedBefore(text)) => assert_eq!((round, &*text), (1, "declined")),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn panics_are_released_or_unknown_and_go_on_in_the_caller() {
    for (on_panic, state) in [
        (OnPanic::Release, StateKind::Released),
        (OnPanic::Unknown, StateKind::Unknown),
    ] {
        let store = store();
        let guard = guard(&store, Policy::default().with_on_panic(on_panic));
        let caller = tokio::spawn(async move {
            guard
                .run::<(), Infallible, _, _>(&identity("k"), asked(), |_| async { panic!("boom") })
                .await
        });
        let panic = caller.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref(), Some(&"boom"));
        let entry = store.get(identity("k").digest()).await.unwrap().unwrap();
        assert_eq!(entry.record.state.kind(), state);
    }
}

#[tokio::test(start_paused = true)]
async fn void_values_replay_as_void_and_types_are_checked() {
    let store = store();
    let guard = guard(&store, Policy::default());
    guard
        .run(&identity("v"), asked(), |_| ok(()))
        .await
        .unwrap();
    let replay = guard
        .run(&identity("v"), asked(), |_| ok(()))
        .await
        .unwrap();
    assert_eq!(replay, Ran::Replayed(()));
    let wrong = guard
        .run(&identity("v"), asked(), |_| ok(String::new()))
        .await;
    assert!(matches!(wrong, Err(RunError::Decode)));
    let other = guard
        .run(&identity("v"), Fingerprint::of(b"other"), |_| ok(()))
        .await;
    assert!(matches!(other, Err(RunError::Mismatch)));
}

#[tokio::test(start_paused = true)]
async fn r13_without_a_key_nothing_is_stored_unless_one_is_required() {
    let store = store();
    let optional = guard(&store, Policy::default());
    let ran = optional
        .run_optional(None, asked(), |_| ok(()))
        .await
        .unwrap();
    assert_eq!(ran, Ran::Unprotected(()));
    assert!(store.is_empty());
    let required = guard(&store, Policy::default().with_key_required(true));
    let refused = required.run_optional(None, asked(), |_| ok(())).await;
    assert!(matches!(refused, Err(RunError::KeyRequired)));
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded() {
    let store = store();
    let policy = Policy::default().with_in_flight(InFlight::Wait(Duration::from_secs(1)));
    let guard = guard(&store, policy);
    let running = tokio::spawn({
        let guard = guard.clone();
        async move {
            let work = |_| async {
                sleep(Duration::from_secs(5)).await;
                ok(()).await
            };
            guard.run(&identity("k"), asked(), work).await
        }
    });
    sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    let waited = guard.run(&identity("k"), asked(), |_| ok(())).await;
    assert!(matches!(waited, Err(RunError::InFlight { .. })));
    assert_eq!(start.elapsed().as_millis(), 1000);
    running.await.unwrap().unwrap();
}

struct Ledger(Finding);

impl Reconciler for Ledger {
    fn reconcile<'a>(&'a self, _: &'a Case<'_>) -> Answered<'a> {
        Box::pin(async { Ok(self.0.clone().into()) })
    }
}

#[tokio::test(start_paused = true)]
async fn r7_a_lapsed_lease_is_held_retried_or_reconciled() {
    let lease = Duration::from_secs(1);
    let run = async |on_lost, finding| {
        let store = store();
        let policy = Policy::default().with_lease(lease).with_on_lost(on_lost);
        let guard = guard(&store, policy).with_reconciler(Arc::new(Ledger(finding)));
        // An attempt that nobody settles: its process died.
        drop(guard.begin(&identity("k"), asked()).await.unwrap());
        sleep(lease).await;
        guard
            .run(&identity("k"), asked(), |attempt| {
                ok(format!("attempt {}", attempt.number))
            })
            .await
    };
    let still = || Finding::StillUnknown;
    assert!(matches!(
        run(OnLost::Hold, still()).await,
        Err(RunError::Unknown)
    ));
    assert_eq!(
        run(OnLost::Retry, still()).await.unwrap(),
        Ran::First("attempt 2".into())
    );
    assert!(matches!(
        run(OnLost::Reconcile, still()).await,
        Err(RunError::Unknown)
    ));
    assert_eq!(
        run(OnLost::Reconcile, Finding::DidNotHappen).await.unwrap(),
        Ran::First("attempt 2".into())
    );
    let happened = Finding::Happened(Outcome::success(b"from the ledger"));
    assert_eq!(
        run(OnLost::Reconcile, happened).await.unwrap(),
        Ran::Replayed("from the ledger".into())
    );
}

#[tokio::test(start_paused = true)]
async fn r4_a_stale_attempt_is_told() {
    let store = store();
    let seen = Arc::new(Seen::default());
    let policy = Policy::default()
        .with_lease(Duration::from_secs(1))
        .with_on_lost(OnLost::Retry)
        .with_retention(Retention::API);
    let guard = guard(&store, policy).with_observer(seen.clone());
    let semel::guard::Begin::Acquired(paused) = guard.begin(&identity("k"), asked()).await.unwrap()
    else {
        panic!("not acquired")
    };
    let first = paused.info().fence;
    sleep(Duration::from_secs(1)).await;
    let second = guard
        .run(&identity("k"), asked(), |attempt| {
            ok(attempt.fence.to_string())
        })
        .await
        .unwrap()
        .into_inner();
    assert!(second.parse::<u64>().unwrap() > first.0);
    let late = paused.complete(&Outcome::success(b"zombie")).await.unwrap();
    assert!(matches!(late, semel::guard::Settled::Refused(_)));
    assert!(seen.0.lock().unwrap().contains(&Event::Stale));
    let replay = guard
        .run(&identity("k"), asked(), |_| ok(String::new()))
        .await
        .unwrap();
    assert_eq!(replay, Ran::Replayed(second));
}
