//! The helper around any work, on the memory store, in paused time.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{
    Answered, Asked, Begin, Case, Done, Finding, Guard, Observer, OnError, OnPanic, Policy, Ran,
    Reconciler, RunError, Settled, Settlement, Signal, StepError,
};
use semel::memory::{Limits, MemoryStore};
use semel::store::{OnLost, Retention};
use semel::{
    Fingerprint, Identity, Key, ManualClock, Outcome, Scope, StateKind, Store as _, StoreErrorKind,
    Timestamp,
};
use tokio::time::{Instant, sleep};

type Memory = Arc<MemoryStore>;

fn store() -> Memory {
    Arc::new(MemoryStore::new(Limits::default()))
}

fn identity(key: &str) -> Identity {
    Identity::new(Scope::new(["tenant"]), "op", Key::new(key).unwrap())
}

fn asked(key: &str) -> Asked {
    Asked::new(identity(key), Fingerprint::of(b"asked"))
}

fn guard(store: &Memory, policy: Policy) -> Guard<Memory> {
    Guard::new(store.clone(), policy)
}

async fn ok<T>(value: T) -> Result<T, Infallible> {
    Ok(value)
}

#[derive(Default)]
struct Seen(Mutex<Vec<Signal>>);

impl Observer for Seen {
    fn on_event(&self, seen: &semel::guard::Seen<'_>) {
        self.0.lock().unwrap().push(seen.signal);
    }
}

#[tokio::test(start_paused = true)]
async fn r1_of_64_callers_one_runs_and_63_replay() {
    let store = store();
    let policy = Policy::default().with_wait(Duration::from_mins(1));
    let guard = guard(&store, policy);
    let runs = Arc::new(AtomicU32::new(0));
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let (guard, runs) = (guard.clone(), runs.clone());
            tokio::spawn(async move {
                guard
                    .run(asked("k"), move |_| async move {
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
            Done::Fresh(answer) => {
                first += 1;
                assert_eq!(answer, "run 0");
            }
            Done::Replayed(answer) => assert_eq!(answer, "run 0"),
            Done::Unprotected(_) => panic!("the store is up"),
        }
    }
    assert_eq!((first, runs.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_long_attempt_keeps_its_lease_and_duplicates_are_refused_throughout() {
    let store = store();
    let seen = Arc::new(Seen::default());
    let policy = Policy::default().with_lease(Duration::from_secs(1));
    let guard = Guard::builder(store.clone())
        .policy(policy)
        .observer(seen.clone())
        .build();
    let running = tokio::spawn({
        let guard = guard.clone();
        async move {
            guard
                .run(asked("k"), |_| async {
                    sleep(Duration::from_secs(10)).await;
                    ok(()).await
                })
                .await
        }
    });
    for _ in 0..19 {
        sleep(Duration::from_millis(500)).await;
        let duplicate = guard.run(asked("k"), |_| ok(())).await;
        assert!(
            matches!(duplicate, Err(RunError::InFlight { retry_after }) if retry_after <= Duration::from_secs(1))
        );
    }
    assert_eq!(running.await.unwrap().unwrap(), Done::Fresh(()));
    let renewed = seen
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|e| **e == Signal::Renewed)
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
    let call = guard.run(asked("k"), |_| async {
        sleep(Duration::from_secs(5)).await;
        ok(String::from("done")).await
    });
    tokio::time::timeout(Duration::from_secs(1), call)
        .await
        .unwrap_err();
    guard.drain().await;
    let retry = guard
        .run(asked("k"), |_| ok(String::from("again")))
        .await
        .unwrap();
    assert_eq!(retry, Done::Replayed("done".into()));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_before_its_turn_leaves_no_claim_that_nobody_runs() {
    let store = store();
    let policy = Policy::default()
        .with_wait(Duration::from_mins(1))
        .with_on_error(OnError::Release);
    let guard = guard(&store, policy);
    let failing = tokio::spawn({
        let guard = guard.clone();
        async move {
            let work = |_| async {
                sleep(Duration::from_secs(2)).await;
                Err::<(), _>("declined")
            };
            guard.run(asked("k"), work).await
        }
    });
    sleep(Duration::from_millis(1)).await;
    let identity = identity("k");
    let impatient = guard.run(asked("k"), |_| ok(()));
    tokio::time::timeout(Duration::from_secs(1), impatient)
        .await
        .unwrap_err();
    failing.await.unwrap().unwrap_err();
    guard.drain().await;
    let entry = store.get(identity.digest()).await.unwrap().unwrap();
    assert_eq!(entry.record.state.kind(), StateKind::Completed);
    assert_eq!(
        entry.record.attempt, 2,
        "the impatient caller's turn came, and was run"
    );
}

#[tokio::test(start_paused = true)]
async fn failures_are_unknown_released_or_kept() {
    let store = store();
    let fail = |key, policy: Policy| {
        let guard = guard(&store, policy);
        async move {
            let failing = |_| async { Err("declined") };
            guard.run::<String, _, _, _>(asked(key), failing).await
        }
    };
    // Nobody said what it means: it may have come after the effect.
    for round in 0..2 {
        match fail("u", Policy::default()).await {
            Err(RunError::Failed(failed)) => {
                assert_eq!((round, failed.error()), (0, Some(&"declined")));
            }
            Err(RunError::Unknown) => assert_eq!(round, 1),
            other => panic!("{other:?}"),
        }
    }
    let releasing = Policy::default().with_on_error(OnError::Release);
    fail("a", releasing).await.unwrap_err();
    let again = guard(&store, releasing)
        .run(asked("a"), |attempt| ok(attempt.number.to_string()))
        .await
        .unwrap();
    assert_eq!(again, Done::Fresh("2".into()));

    // A kept failure has one shape and one text, in the first call and in all others.
    for round in 0..2 {
        match fail("b", Policy::default().with_on_error(OnError::Keep)).await {
            Err(RunError::Failed(failed)) => {
                assert_eq!(failed.to_string(), "declined");
                assert_eq!(failed.into_error(), (round == 0).then_some("declined"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_error_is_classified_by_what_it_means() {
    let store = store();
    let guard = guard(&store, Policy::default());
    let call = async |key: &str, error: &'static str| {
        let asked = asked(key).classify(|error: &&'static str| match *error {
            "declined" => OnError::Keep,
            "busy" => OnError::Release,
            _ => OnError::Unknown,
        });
        let failing = move |_| async move { Err::<(), _>(error) };
        guard.run(asked, failing).await.unwrap_err();
        let entry = store.get(identity(key).digest()).await.unwrap().unwrap();
        entry.record.state.kind()
    };
    assert_eq!(call("a", "declined").await, StateKind::Completed);
    assert_eq!(call("b", "busy").await, StateKind::Released);
    assert_eq!(call("c", "timed out").await, StateKind::Unknown);
}

/// A typed failure that lasts is a value like another.
#[tokio::test(start_paused = true)]
async fn a_result_is_a_value_and_its_error_replays_as_it_was() {
    let guard = guard(&store(), Policy::default());
    for round in 0..2 {
        let declined = |_| ok(Err::<String, String>("card expired".into()));
        let done = guard.run(asked("k"), declined).await.unwrap();
        let expected = Err("card expired".into());
        assert_eq!(
            done,
            if round == 0 {
                Done::Fresh(expected)
            } else {
                Done::Replayed(expected)
            }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn panics_are_released_or_unknown_and_go_on_in_the_caller() {
    for (policy, state) in [
        (Policy::default(), StateKind::Unknown),
        (
            Policy::default().with_on_panic(OnPanic::Release),
            StateKind::Released,
        ),
        (
            Policy::default().with_on_panic(OnPanic::Unknown),
            StateKind::Unknown,
        ),
    ] {
        let store = store();
        let guard = guard(&store, policy);
        let caller = tokio::spawn(async move {
            guard
                .run::<(), Infallible, _, _>(asked("k"), |_| async { panic!("boom") })
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
    guard.run(asked("v"), |_| ok(())).await.unwrap();
    let replay = guard.run(asked("v"), |_| ok(())).await.unwrap();
    assert_eq!(replay, Done::Replayed(()));
    let wrong = guard.run(asked("v"), |_| ok(String::new())).await;
    assert!(matches!(wrong, Err(RunError::Decode)));
    let other = guard
        .run((&identity("v"), Fingerprint::of(b"other")), |_| ok(()))
        .await;
    assert!(matches!(other, Err(RunError::Mismatch)));
}

#[tokio::test(start_paused = true)]
async fn r13_without_a_key_nothing_is_stored_unless_one_is_required() {
    let store = store();
    let optional = guard(&store, Policy::default());
    let ran = optional
        .run(Asked::unkeyed(Fingerprint::of(b"asked")), |_| ok(()))
        .await
        .unwrap();
    assert_eq!(ran, Done::Unprotected(()));
    assert!(store.is_empty());
    let required = guard(&store, Policy::default().with_key_required(true));
    let refused = required
        .run(Asked::unkeyed(Fingerprint::of(b"asked")), |_| ok(()))
        .await;
    assert!(matches!(refused, Err(RunError::KeyRequired)));
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded() {
    let store = store();
    let policy = Policy::default().with_wait(Duration::from_secs(1));
    let guard = guard(&store, policy);
    let running = tokio::spawn({
        let guard = guard.clone();
        async move {
            let work = |_| async {
                sleep(Duration::from_secs(5)).await;
                ok(()).await
            };
            guard.run(asked("k"), work).await
        }
    });
    sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    let waited = guard.run(asked("k"), |_| ok(())).await;
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
        let guard = Guard::builder(store)
            .policy(policy)
            .reconciler(Arc::new(Ledger(finding)))
            .build();
        // An attempt that nobody settles: its process died.
        let Begin::Acquired(held) = guard.begin(&asked("k")).await.unwrap() else {
            panic!("not acquired")
        };
        held.let_lapse();
        sleep(lease).await;
        guard
            .run(asked("k"), |attempt| {
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
        Done::Fresh("attempt 2".into())
    );
    assert!(matches!(
        run(OnLost::Reconcile, still()).await,
        Err(RunError::Unknown)
    ));
    assert_eq!(
        run(OnLost::Reconcile, Finding::DidNotHappen).await.unwrap(),
        Done::Fresh("attempt 2".into())
    );
    let happened = Finding::Happened(Outcome::success(b"from the ledger"));
    assert_eq!(
        run(OnLost::Reconcile, happened).await.unwrap(),
        Done::Replayed("from the ledger".into())
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
    let guard = Guard::builder(store.clone())
        .policy(policy)
        .observer(seen.clone())
        .build();
    let Begin::Acquired(mut paused) = guard.begin(&asked("k")).await.unwrap() else {
        panic!("not acquired")
    };
    let first = paused.info().fence;
    paused.stop_renewing();
    sleep(Duration::from_secs(1)).await;
    let second = guard
        .run(asked("k"), |attempt| ok(attempt.fence.to_string()))
        .await
        .unwrap()
        .into_inner();
    assert!(second.parse::<u64>().unwrap() > first.0);
    let late = paused.complete(&Outcome::success(b"zombie")).await.unwrap();
    assert!(matches!(late, Settled::Refused(_)));
    assert!(seen.0.lock().unwrap().contains(&Signal::Stale));
    let replay = guard.run(asked("k"), |_| ok(String::new())).await.unwrap();
    assert_eq!(replay, Done::Replayed(second));
}

type Clocked = Arc<MemoryStore<Arc<ManualClock>>>;

/// One answer, kept for an hour.
async fn with_one_answer() -> (Clocked, Arc<ManualClock>, Guard<Clocked>) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1)));
    let store = Arc::new(MemoryStore::with_clock(Limits::default(), clock.clone()));
    let policy = Policy::default().with_retention(Retention::EMAIL);
    let guard = Guard::new(store.clone(), policy);
    guard.run(asked("a key"), |_| ok(())).await.unwrap();
    (store, clock, guard)
}

/// How many records the purger left.
async fn left(store: &Clocked) -> usize {
    store.purge(100).await.unwrap().removed
}

#[tokio::test(start_paused = true)]
async fn a_purger_runs_as_long_as_its_guard() {
    let (store, clock, guard) = with_one_answer().await;
    // More than a slice.
    for n in 0..300 {
        let asked = asked(&n.to_string());
        guard.run(asked, |_| ok(())).await.unwrap();
    }
    guard.spawn_purger();
    guard.spawn_purger();
    sleep(Duration::from_secs(1)).await;
    clock.advance(Duration::from_hours(1));
    sleep(Duration::from_secs(61)).await;
    assert_eq!(left(&store).await, 0, "all are purged at the next look");
    // It holds the store for the time of a slice only.
    drop(guard);
    assert_eq!(Arc::strong_count(&store), 1);
}

#[tokio::test(start_paused = true)]
async fn draining_ends_the_purger_and_closing_the_store() {
    let (store, clock, guard) = with_one_answer().await;
    guard.spawn_purger();
    sleep(Duration::from_secs(1)).await;
    guard.drain().await;
    clock.advance(Duration::from_hours(1));
    sleep(Duration::from_mins(5)).await;
    assert_eq!(left(&store).await, 1, "nobody purges");
    guard.spawn_purger();
    guard.close().await.unwrap();
    let closed = store.probe().await.unwrap_err();
    assert_eq!(closed.kind(), StoreErrorKind::Closed);
}

#[test]
fn presets_differ_from_the_default_where_they_say() {
    let order = Policy::default()
        .with_key_required(true)
        .with_wait(Duration::from_secs(2));
    assert_eq!(Policy::order(), order);
    assert_eq!(Policy::payment(), order.with_retention(Retention::PAYMENT));
    let event = Policy::default().with_retention(Retention::EVENT);
    assert_eq!(Policy::event(), event);
    assert!(order.key_required() && !event.key_required());
    let retries = event.with_on_lost(OnLost::Retry);
    assert_eq!(
        (event.on_lost(), retries.on_lost()),
        (None, Some(OnLost::Retry))
    );
}

#[test]
fn a_calls_own_policy_goes_before_its_guards() {
    let (own, guards) = (Policy::order(), Policy::event());
    assert_eq!(asked("k").policy(&guards), guards);
    assert_eq!(asked("k").with_policy(own).policy(&guards), own);
}

/// Who waits for an attempt is to find its answer: one that is to be kept for less is kept so long.
#[tokio::test(start_paused = true)]
async fn an_answer_is_kept_for_as_long_as_the_lease() {
    let store = store();
    let policy = Policy::default().with_lease(Duration::from_secs(30));
    let guard = guard(&store, policy);
    for (chosen, kept) in [(1, 30), (40, 40)] {
        let asked = asked(&format!("{chosen}"));
        let Begin::Acquired(held) = guard.begin(&asked).await.unwrap() else {
            panic!("not acquired")
        };
        let chosen = Retention::new(Duration::from_secs(chosen));
        let settled = Settlement::Complete(Outcome::void(), Some(chosen));
        assert_eq!(held.settle(settled).await.unwrap(), Settled::Applied);
        sleep(Duration::from_secs(kept - 1)).await;
        let replayed = guard.begin(&asked).await.unwrap();
        assert!(matches!(replayed, Begin::Completed(_)), "{replayed:?}");
        sleep(Duration::from_secs(1)).await;
        let forgotten = guard.begin(&asked).await.unwrap();
        assert!(matches!(forgotten, Begin::Acquired(_)), "{forgotten:?}");
    }
}

/// What an error means is what it says of another try.
#[tokio::test(start_paused = true)]
async fn an_error_says_whether_to_call_again() {
    let store = store();
    let policy = Policy::default().with_lease(Duration::from_secs(1));
    let guard = guard(&store, policy);
    for (on_error, retry_after) in [
        (OnError::Release, Some(Duration::from_secs(1))),
        (OnError::Keep, None),
        (OnError::Unknown, None),
    ] {
        let asked = asked(&format!("{on_error:?}")).classify(move |_: &&str| on_error);
        let fails = |_| async { Err::<String, _>("no") };
        let error = guard.run(asked.clone(), fails).await.unwrap_err();
        assert!(matches!(error, RunError::Failed(_)), "{error:?}");
        assert_eq!(error.retry_after(), retry_after, "{on_error:?}");
        assert_eq!(error.is_retryable(), retry_after.is_some());
        // What is replayed of it, and what is not known, stays so.
        let again = guard.run(asked, fails).await.unwrap_err();
        assert_eq!(again.is_retryable(), retry_after.is_some(), "{again:?}");
    }
    let held = match guard.begin(&asked("in flight")).await.unwrap() {
        Begin::Acquired(held) => held,
        other => panic!("{other:?}"),
    };
    let duplicate = guard.run(asked("in flight"), |_| ok(())).await.unwrap_err();
    let soon = duplicate.retry_after().unwrap();
    assert!(soon <= Duration::from_secs(1), "{soon:?}");
    assert_eq!(held.release().await.unwrap(), Settled::Applied);
    let other = Asked::new(identity("Keep"), Fingerprint::of(b"other"));
    let mismatch = guard.run(other, |_| ok(())).await.unwrap_err();
    assert!(!mismatch.is_retryable());
    store.close().await.unwrap();
    let closed = guard.run(asked("new"), |_| ok(())).await.unwrap_err();
    assert!(matches!(closed, RunError::Store { .. }) && !closed.is_retryable());
}

/// Without a key another try asks services under other step keys: it is not said to be harmless.
#[tokio::test(start_paused = true)]
async fn what_is_given_back_may_be_called_again() {
    let guard = guard(&store(), Policy::default());
    let unkeyed = || Asked::unkeyed(Fingerprint::of(b"asked"));
    let release = |asked: Asked| asked.classify(|_: &&str| OnError::Release);
    for (asked, is_released) in [
        (asked("steps").in_steps(), true),
        (
            asked("kept").in_steps().classify(|_: &&str| OnError::Keep),
            false,
        ),
        (unkeyed().in_steps(), false),
        (release(asked("plain")), true),
        (release(unkeyed()), true),
    ] {
        let fails = |_| async { Err::<(), _>("no") };
        match guard.run(asked, fails).await.unwrap_err() {
            RunError::Failed(failed) => assert_eq!(failed.is_released(), is_released),
            other => panic!("{other:?}"),
        }
    }
}

/// Another attempt took its place, and time alone may help.
#[test]
fn who_was_replaced_may_call_again() {
    let soon = Some(Duration::from_secs(1));
    for ran in [Ran::No, Ran::Yes] {
        let run = RunError::<Infallible>::Superseded { ran };
        assert_eq!((run.retry_after(), run.is_retryable()), (soon, true));
        let step = StepError::<Infallible>::Superseded { ran };
        assert_eq!((step.retry_after(), step.is_retryable()), (soon, true));
        assert_eq!((run.ran(), step.ran()), (ran, ran));
    }
    for (kind, retry_after) in [
        (StoreErrorKind::NotApplied, soon),
        (StoreErrorKind::Closed, None),
    ] {
        let (ran, source) = (Ran::No, semel::StoreError::new(kind, "no answer"));
        let run = RunError::<Infallible>::Store { ran, source };
        let retryable = retry_after.is_some();
        assert_eq!(
            (run.retry_after(), run.is_retryable()),
            (retry_after, retryable)
        );
        let source = semel::StoreError::new(kind, "no answer");
        let step = StepError::<Infallible>::Store { ran, source };
        assert_eq!(
            (step.retry_after(), step.is_retryable()),
            (retry_after, retryable)
        );
    }
    let changed = StepError::<Infallible>::Undeclared;
    assert_eq!((changed.retry_after(), changed.ran()), (None, Ran::No));
    assert_eq!(StepError::Failed("no").ran(), Ran::Yes);
}
