//! One life of an identity: its step keys, and what becomes of lost attempts where no policy is set.

use semel::guard::{Attempt, StepError, StepKey};

use super::*;

type Memory = Arc<MemoryStore<Arc<ManualClock>>>;

struct Bench {
    clock: Arc<ManualClock>,
    guard: Guard<Memory>,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1 << 50)));
        let store = MemoryStore::with_clock(Limits::default(), clock.clone());
        let policy = Policy::default().with_retention(Retention::API);
        let guard = Guard::new(Arc::new(store), policy);
        Self { clock, guard }
    }

    /// The key of the step "charge" in another attempt, which ends like this.
    async fn key(&self, ends: Result<(), &'static str>) -> StepKey {
        let (tell, told) = tokio::sync::oneshot::channel();
        let work = move |mut attempt: Attempt<Memory>| async move {
            let charge = async |key| {
                tell.send(key).ok();
                ends
            };
            attempt.step("charge", charge).await?;
            Ok::<_, StepError<&str>>(())
        };
        self.guard.run(asked("order").in_steps(), work).await.ok();
        told.await.unwrap()
    }
}

#[tokio::test]
async fn a_new_intent_has_a_new_step_key_and_a_retry_the_same() {
    let bench = Bench::new();
    let first = bench.key(Err("no answer")).await;
    // Long after a released record is forgotten that nobody needs.
    for wait in [
        Duration::ZERO,
        Duration::from_secs(61),
        Duration::from_hours(24),
    ] {
        bench.clock.advance(wait);
        assert_eq!(bench.key(Err("no answer")).await, first);
    }
    // Nobody recorded what became of it, and another attempt takes over.
    held(&bench.guard, &asked("order").in_steps())
        .await
        .let_lapse();
    bench.clock.advance(Duration::from_mins(1));
    assert_eq!(bench.key(Ok(())).await, first);
    // It is done, and its retention is over: the same content is another intent.
    bench.clock.advance(Retention::API.replay);
    assert_ne!(bench.key(Ok(())).await, first);
}

#[tokio::test]
async fn what_asked_for_no_key_is_forgotten_after_a_minute() {
    let bench = Bench::new();
    let released = held(&bench.guard, &asked("order").in_steps()).await;
    assert_eq!(released.release().await.unwrap(), Settled::Applied);
    bench.clock.advance(Duration::from_secs(61));
    let store = bench.guard.store();
    assert_eq!(store.get(identity("order").digest()).await.unwrap(), None);
}

/// What a process that dies leaves, by what the operation protects. No policy is set.
#[tokio::test]
async fn a_lost_attempt_runs_again_between_steps_and_is_held_elsewhere() {
    let bench = Bench::new();
    let dies = async |asked: &Asked| {
        let mut dying = held(&bench.guard, asked).await;
        dying.info();
        dying.let_lapse();
        bench.clock.advance(Duration::from_mins(1));
    };
    let steps = asked("steps").in_steps();
    dies(&steps).await;
    let done = bench
        .guard
        .run(steps, |attempt| ok(attempt.number.to_string()))
        .await;
    assert_eq!(done.unwrap(), Done::Fresh("2".into()));

    let plain = asked("plain");
    dies(&plain).await;
    let held_back = bench.guard.run(plain, |_| ok(())).await;
    assert!(matches!(held_back, Err(RunError::Unknown)), "{held_back:?}");
}

#[tokio::test]
async fn steps_that_nobody_declared_say_so_at_the_first_run() {
    let bench = Bench::new();
    let work =
        |mut attempt: Attempt<Memory>| async move { attempt.step("charge", |_| ok(())).await };
    let refused = bench.guard.run(asked("k"), work).await.unwrap_err();
    let RunError::Failed(failed) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        matches!(failed.error(), Some(StepError::Undeclared)),
        "{failed:?}"
    );
    let policy = Policy::default().with_on_lost(OnLost::Hold);
    bench
        .guard
        .run(asked("l").with_policy(policy), work)
        .await
        .unwrap();
    // Of a call without a key nothing runs again.
    let unkeyed = Asked::unkeyed(Fingerprint::of(b"asked"));
    bench.guard.run(unkeyed, work).await.unwrap();
}

/// Who has the effect finds it by this name, in every attempt.
#[tokio::test]
async fn an_operation_has_one_name_for_others() {
    let bench = Bench::new();
    let id = async |asked: Asked| {
        let policy = Policy::default().with_on_error(OnError::Release);
        let asked = asked.with_policy(policy);
        let failing = |attempt: Attempt<Memory>| async move { Err::<(), _>(attempt.id) };
        match bench.guard.run(asked, failing).await {
            Err(RunError::Failed(failed)) => failed.into_error().unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let first = id(asked("order-4711")).await;
    assert_eq!(id(asked("order-4711")).await, first);
    assert_ne!(id(asked("order-4712")).await, first);
    let elsewhere = Identity::new(Scope::new(["other"]), "op", Key::new("order-4711").unwrap());
    assert_ne!(
        id(Asked::new(elsewhere, Fingerprint::of(b"asked"))).await,
        first
    );
    assert!(!first.to_string().contains("4711"));
}

#[tokio::test(start_paused = true)]
async fn a_purge_that_fails_is_a_signal_and_is_tried_again() {
    let store = Shared::default();
    let seen = Arc::new(Seen::default());
    let guard = Guard::builder(store.clone()).observer(seen.clone()).build();
    store.down.store(true, SeqCst);
    guard.spawn_purger();
    sleep(Duration::from_secs(150)).await;
    assert_eq!(seen.count(Signal::StoreError), 3, "a minute apart");
    store.down.store(false, SeqCst);
    sleep(Duration::from_mins(5)).await;
    assert_eq!(seen.count(Signal::StoreError), 3);
}

#[tokio::test(start_paused = true)]
async fn a_purger_ends_with_a_store_that_was_closed() {
    let store = Shared::default();
    let seen = Arc::new(Seen::default());
    let guard = Guard::builder(store.clone()).observer(seen.clone()).build();
    store.memory.close().await.unwrap();
    guard.spawn_purger();
    sleep(Duration::from_mins(5)).await;
    assert_eq!(seen.count(Signal::StoreError), 0);
}
