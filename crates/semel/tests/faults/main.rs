//! What is known is not thrown away (R14), and nothing that acts on its own is left behind: stores
//! that fail, callers that go away, panics, work that blocks its thread.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod claims;
mod edges;
mod flaky;
mod lease;
mod life;
mod owed;
mod panics;
#[path = "../scripted/mod.rs"]
#[allow(dead_code, reason = "shared with tests that use the rest")]
mod scripted;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flaky::Flaky;
use semel::guard::{
    Asked, Begin, Done, Guard, Held, Observer, OnError, OnStoreError, Policy, Ran, RunError,
    Settled, Signal,
};
use semel::memory::{Limits, MemoryStore};
use semel::store::{Claim, ClaimRequest, Nonce, OnLost, Retention};
use semel::{
    Fingerprint, Identity, Key, ManualClock, Scope, StateKind, Store, StoreErrorKind, Timestamp,
};
use tokio::time::{Instant, sleep, timeout};

type Shared = Arc<Flaky>;

fn identity(key: &str) -> Identity {
    Identity::new(Scope::new(["tenant"]), "op", Key::new(key).unwrap())
}

fn asked(key: &str) -> Asked {
    Asked::new(identity(key), Fingerprint::of(b"asked"))
}

async fn ok<T>(value: T) -> Result<T, Infallible> {
    Ok(value)
}

async fn state(store: &Flaky, key: &str) -> Option<StateKind> {
    let entry = store.memory.get(identity(key).digest()).await.unwrap();
    entry.map(|entry| entry.record.state.kind())
}

async fn held<S: Store>(guard: &Guard<S>, asked: &Asked) -> Held<S> {
    match guard.begin(asked).await.unwrap() {
        Begin::Acquired(held) => held,
        other => panic!("{other:?}"),
    }
}

#[derive(Default)]
struct Seen(Mutex<Vec<Signal>>);

impl Observer for Seen {
    fn on_event(&self, seen: &semel::guard::Seen<'_>) {
        self.0.lock().unwrap().push(seen.signal);
    }
}

impl Seen {
    fn count(&self, signal: Signal) -> usize {
        let seen = self.0.lock().unwrap();
        seen.iter().filter(|seen| **seen == signal).count()
    }
}

/// 50 operations finish while the store is down for 30 s: the callers get an error after 5 s, and
/// every outcome is there afterwards.
#[tokio::test(start_paused = true)]
async fn outcomes_and_releases_outlive_a_store_that_is_down() {
    let store = Shared::default();
    let seen = Arc::new(Seen::default());
    let guard = Guard::builder(store.clone()).observer(seen.clone()).build();
    let runs = Arc::new(AtomicU32::new(0));
    let call = |n: u32, fails: bool| {
        let (guard, runs) = (guard.clone(), runs.clone());
        let asked = asked(&format!("order-{n}")).classify(|_: &&str| OnError::Release);
        tokio::spawn(async move {
            let work = move |_| async move {
                runs.fetch_add(1, SeqCst);
                sleep(Duration::from_secs(1)).await;
                if fails {
                    Err("busy")
                } else {
                    Ok(format!("done {n}"))
                }
            };
            guard.run(asked, work).await
        })
    };
    let calls: Vec<_> = (0..100).map(|n| call(n, n >= 50)).collect();
    sleep(Duration::from_millis(500)).await;
    store.down.store(true, SeqCst);
    let down = Instant::now();
    for (n, call) in calls.into_iter().enumerate() {
        match call.await.unwrap() {
            Err(RunError::Store { ran: Ran::Yes, .. }) => assert!(n < 50),
            Err(RunError::Failed(failed)) => {
                assert_eq!((n >= 50, failed.error()), (true, Some(&"busy")));
            }
            other => panic!("{n}: {other:?}"),
        }
    }
    assert!(
        down.elapsed() < Duration::from_secs(7),
        "{:?}",
        down.elapsed()
    );
    assert_eq!(guard.unsettled(), 100);
    sleep(Duration::from_secs(30) - down.elapsed()).await;
    assert_eq!(seen.count(Signal::Deferred), 100);
    store.down.store(false, SeqCst);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(guard.unsettled(), 0);
    for n in 0..50 {
        let replay = call(n, false).await.unwrap().unwrap();
        assert_eq!(replay, Done::Replayed(format!("done {n}")));
    }
    assert_eq!(runs.load(SeqCst), 100);
    for n in 50..100 {
        let again = call(n, false).await.unwrap().unwrap();
        assert_eq!(again, Done::Fresh(format!("done {n}")));
    }
    assert_eq!(seen.count(Signal::Unknown), 0);
}

#[tokio::test(start_paused = true)]
async fn claims_whose_answers_were_lost_are_given_back() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    store.loses_claims.store(true, SeqCst);
    for n in 0..50 {
        let refused = guard.run(asked(&format!("k{n}")), |_| ok(())).await;
        let Err(error @ RunError::Store { .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(error.ran(), Ran::No);
    }
    store.loses_claims.store(false, SeqCst);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(guard.unsettled(), 0);
    for n in 0..50 {
        let key = format!("k{n}");
        assert_eq!(state(&store, &key).await, Some(StateKind::Released));
        let done = guard.run(asked(&key), |_| ok(())).await.unwrap();
        assert_eq!(done, Done::Fresh(()));
    }
}

/// The pursuit of a lost claim takes nothing over: what another process lost stays as it is.
#[tokio::test(start_paused = true)]
async fn the_pursuit_of_a_claim_takes_nothing_over() {
    let store = Shared::default();
    let guard = Guard::new(store.clone(), Policy::default().with_on_lost(OnLost::Retry));
    let request = ClaimRequest::new(
        Nonce::random().unwrap(),
        Fingerprint::of(b"asked"),
        Duration::from_secs(1),
    );
    let Claim::Acquired(other) = store.memory.claim(&identity("k"), &request).await.unwrap() else {
        panic!("not acquired")
    };
    sleep(Duration::from_secs(2)).await;
    store.down.store(true, SeqCst);
    guard.run(asked("k"), |_| ok(())).await.unwrap_err();
    store.down.store(false, SeqCst);
    sleep(Duration::from_secs(2)).await;
    let entry = store
        .memory
        .get(identity("k").digest())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((entry.record.token, entry.record.attempt), (other.token, 1));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_its_caller_no_longer_waits_for_is_given_back() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    *store.slow_claims.lock().unwrap() = Duration::from_secs(1);
    let asked = asked("k");
    timeout(Duration::from_millis(500), guard.begin(&asked))
        .await
        .unwrap_err();
    assert_eq!(state(&store, "k").await, Some(StateKind::InFlight));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(state(&store, "k").await, Some(StateKind::Released));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_dropped_settles_itself() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    drop(held(&guard, &asked("not begun")).await);
    let mut begun = held(&guard, &asked("begun")).await;
    begun.run(ok(())).await.unwrap().unwrap();
    drop(begun);
    // Dropped while it waits for a store that is down, the outcome is pursued.
    let mut done = held(&guard, &asked("done")).await;
    done.run(ok(())).await.unwrap().unwrap();
    store.down.store(true, SeqCst);
    let outcome = semel::Outcome::success(b"done");
    timeout(Duration::from_secs(1), done.complete(&outcome))
        .await
        .unwrap_err();
    store.down.store(false, SeqCst);
    guard.drain().await;
    assert_eq!(state(&store, "not begun").await, Some(StateKind::Released));
    assert_eq!(state(&store, "begun").await, Some(StateKind::Unknown));
    assert_eq!(state(&store, "done").await, Some(StateKind::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_what_is_known_and_not_for_ever() {
    let store = Shared::default();
    let seen = Arc::new(Seen::default());
    let guard = Guard::builder(store.clone()).observer(seen.clone()).build();
    let finishing = held(&guard, &asked("k")).await;
    store.down.store(true, SeqCst);
    drop(finishing);
    let start = Instant::now();
    guard.drain().await;
    let took = start.elapsed();
    assert!(
        took >= Duration::from_secs(5) && took < Duration::from_secs(7),
        "{took:?}"
    );
    assert_eq!((seen.count(Signal::GaveUp), guard.unsettled()), (1, 0));
}

/// R9: a store that is full, damaged, closed or has others at the same record can be reached, and refuses.
#[tokio::test(start_paused = true)]
async fn only_a_store_that_cannot_be_reached_fails_open() {
    let open = Policy::default().with_on_store_error(OnStoreError::FailOpen);
    let store = Shared::default();
    let guard = Guard::new(store.clone(), open);
    store.down.store(true, SeqCst);
    let unprotected = guard.run(asked("k"), |_| ok(())).await.unwrap();
    assert_eq!(unprotected, Done::Unprotected(()));
    store.down.store(false, SeqCst);
    *store.refuses_claims.lock().unwrap() = Some(StoreErrorKind::Contended);
    let before = store.claims.load(SeqCst);
    match guard.run(asked("l"), |_| ok(())).await {
        Err(RunError::Store { source, .. }) => assert_eq!(source.kind(), StoreErrorKind::Contended),
        other => panic!("{other:?}"),
    }
    // Others may be done by the next time.
    assert!(store.claims.load(SeqCst) > before + 1);
    // Who has met others is a duplicate, also where the store is away by then.
    let before = store.claims.load(SeqCst);
    let rival = tokio::spawn({
        let guard = guard.clone();
        async move { guard.run(asked("m"), |_| ok(())).await }
    });
    while store.claims.load(SeqCst) == before {
        tokio::task::yield_now().await;
    }
    store.down.store(true, SeqCst);
    let refused = rival.await.unwrap();
    assert!(
        matches!(refused, Err(RunError::Store { ran: Ran::No, .. })),
        "{refused:?}"
    );
    assert!(store.claims.load(SeqCst) > before + 1);
    store.down.store(false, SeqCst);
    *store.refuses_claims.lock().unwrap() = None;
    store.memory.close().await.unwrap();
    let closed = guard.run(asked("k"), |_| ok(())).await;
    assert!(
        matches!(closed, Err(RunError::Store { ran: Ran::No, .. })),
        "{closed:?}"
    );
    let limits = Limits {
        records: 1,
        bytes: usize::MAX,
    };
    let full = Guard::new(Arc::new(MemoryStore::new(limits)), open);
    full.run(asked("k"), |_| ok(())).await.unwrap();
    match full.run(asked("l"), |_| ok(())).await {
        Err(RunError::Store { source, .. }) => assert_eq!(source.kind(), StoreErrorKind::Capacity),
        other => panic!("{other:?}"),
    }
}

/// R9: what has waited for an attempt is known to be a duplicate.
#[tokio::test(start_paused = true)]
async fn who_has_waited_does_not_run_without_the_store() {
    let open = Policy::default()
        .with_on_store_error(OnStoreError::FailOpen)
        .with_wait(Duration::from_mins(1));
    let store = Shared::default();
    let guard = Guard::new(store.clone(), open);
    let first = held(&guard, &asked("k")).await;
    let duplicate = tokio::spawn({
        let guard = guard.clone();
        async move { guard.run(asked("k"), |_| ok(())).await }
    });
    sleep(Duration::from_secs(1)).await;
    let done = semel::Outcome::success(b"");
    let settled = first.complete(&done).await.unwrap();
    assert_eq!(settled, semel::guard::Settled::Applied);
    store.down.store(true, SeqCst);
    let refused = duplicate.await.unwrap();
    assert!(
        matches!(refused, Err(RunError::Store { ran: Ran::No, .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_full_store_of_expired_records_has_room() {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1 << 50)));
    let limits = Limits {
        records: 4096,
        bytes: usize::MAX,
    };
    let store = Arc::new(MemoryStore::with_clock(limits, clock.clone()));
    let policy = Policy::default().with_retention(Retention::API);
    let guard = Guard::new(store.clone(), policy);
    let mut filled = 0;
    while guard
        .run(asked(&format!("k{filled}")), |_| ok(()))
        .await
        .is_ok()
    {
        filled += 1;
    }
    assert!(filled > 3000, "{filled}");
    guard.run(asked("one more"), |_| ok(())).await.unwrap_err();
    clock.advance(Retention::API.replay);
    for n in 0..2000 {
        guard
            .run(asked(&format!("n{n}")), |_| ok(()))
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_durations_are_no_panic() {
    let policy = Policy::default()
        .with_wait(Duration::MAX)
        .with_lease(Duration::MAX)
        .with_retention(Retention::new(Duration::MAX).with_tombstone(Duration::MAX));
    let guard = Guard::new(Shared::default(), policy);
    let first = held(&guard, &asked("k")).await;
    let waiting = tokio::spawn({
        let guard = guard.clone();
        async move { guard.run(asked("k"), |_| ok(())).await }
    });
    sleep(Duration::from_secs(60)).await;
    assert!(!waiting.is_finished());
    let settled = first.complete(&semel::Outcome::void()).await.unwrap();
    assert_eq!(settled, Settled::Applied);
    assert_eq!(waiting.await.unwrap().unwrap(), Done::Replayed(()));
}
