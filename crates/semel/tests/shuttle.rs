//! The memory store and its waiters under a model checker that decides which task runs next:
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test -p semel --test shuttle
//! ```
#![cfg(shuttle)]

use std::sync::Arc;
use std::time::Duration;

use semel::memory::{Limits, MemoryStore};
use semel::store::{
    Acquired, Claim, ClaimRequest, Fence, Fenced, Nonce, OnLost, Retention, Store, StoreExt as _,
    Token, Waited,
};
use semel::{Fingerprint, Identity, Key, ManualClock, Outcome, Scope, Timestamp};
use shuttle::future::{block_on, spawn};

const SCHEDULES: usize = 5_000;
const SECOND: Duration = Duration::from_secs(1);

type Memory = MemoryStore<Arc<ManualClock>>;

/// Random schedules, and ones with few but well-placed switches.
fn check(test: fn()) {
    shuttle::check_random(test, SCHEDULES);
    shuttle::check_pct(test, SCHEDULES, 3);
}

fn store() -> (Arc<Memory>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
    let limits = Limits {
        records: 100,
        bytes: 1 << 20,
    };
    (
        Arc::new(MemoryStore::with_clock(limits, clock.clone())),
        clock,
    )
}

fn identity() -> Identity {
    let key = Key::new("a-key-of-some-length").expect("a key");
    Identity::new(Scope::anonymous(), "op", key)
}

/// A claim of one second by the caller of this number.
fn request(caller: u8) -> ClaimRequest {
    ClaimRequest::new(
        Nonce::from_bytes([caller; 16]),
        Fingerprint::of(b"the request"),
        SECOND,
    )
    .with_on_lost(OnLost::Retry)
}

async fn claim(store: &Memory, caller: u8) -> Claim {
    let claim = store.claim(&identity(), &request(caller)).await;
    claim.expect("the memory store answers")
}

async fn acquire(store: &Memory, caller: u8) -> Token {
    match claim(store, caller).await {
        Claim::Acquired(Acquired { token, .. }) => token,
        other => panic!("not acquired: {other:?}"),
    }
}

async fn complete(store: &Memory, token: Token) -> Fenced {
    let retention = Retention::new(SECOND);
    let (identity, outcome) = (identity(), Outcome::void());
    let done = store.complete(identity.digest(), &token, &outcome, retention);
    done.await.expect("the memory store answers")
}

async fn wait(store: &Memory, fence: Fence) -> Waited {
    let identity = identity();
    let waited = store.wait(identity.digest(), fence, SECOND);
    waited.await.expect("the memory store answers")
}

#[test]
fn one_of_three_racing_claims_wins() {
    check(|| {
        block_on(async {
            let (store, _) = store();
            let claims: Vec<_> = (1..=3)
                .map(|caller| {
                    let store = store.clone();
                    spawn(async move { claim(&store, caller).await })
                })
                .collect();
            let mut won = 0;
            for task in claims {
                match task.await.expect("no claim panics") {
                    Claim::Acquired(_) => won += 1,
                    Claim::InFlight { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(won, 1);
        });
    });
}

/// Waiters come while `settle` runs. One that is never woken is a deadlock, which the checker
/// reports.
fn no_wake_is_lost(settle: fn(Arc<Memory>, Token) -> shuttle::future::JoinHandle<()>) {
    block_on(async move {
        let (store, clock) = store();
        let token = acquire(&store, 1).await;
        clock.advance(SECOND);
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let store = store.clone();
                spawn(async move { wait(&store, token.fence).await })
            })
            .collect();
        let settling = settle(store.clone(), token);
        for waiter in waiters {
            assert_eq!(waiter.await.expect("no waiter panics"), Waited::Changed);
        }
        settling.await.expect("the settling task does not panic");
    });
}

#[test]
fn a_completion_wakes_every_waiter() {
    check(|| {
        no_wake_is_lost(|store, token| {
            spawn(async move {
                assert_eq!(complete(&store, token).await, Fenced::Applied);
            })
        });
    });
}

#[test]
fn a_release_wakes_every_waiter() {
    check(|| {
        no_wake_is_lost(|store, token| {
            spawn(async move {
                let released = store.abandon(identity().digest(), &token).await;
                assert_eq!(released.expect("the memory store answers"), Fenced::Applied);
            })
        });
    });
}

#[test]
fn a_takeover_wakes_every_waiter() {
    check(|| {
        no_wake_is_lost(|store, _| {
            spawn(async move {
                acquire(&store, 2).await;
            })
        });
    });
}

#[test]
fn a_completion_or_a_takeover_but_not_both() {
    check(|| {
        block_on(async {
            let (store, clock) = store();
            let token = acquire(&store, 1).await;
            clock.advance(SECOND);
            let (holder, rival) = (store.clone(), store.clone());
            let holder = spawn(async move { complete(&holder, token).await });
            let rival = spawn(async move { claim(&rival, 2).await });
            match (
                holder.await.expect("no panic"),
                rival.await.expect("no panic"),
            ) {
                (Fenced::Applied, Claim::Completed { .. })
                | (Fenced::Refused(_), Claim::Acquired(_)) => {}
                both => panic!("{both:?}"),
            }
        });
    });
}

#[test]
fn a_claim_on_an_expired_record_survives_a_purge() {
    check(|| {
        block_on(async {
            let (store, clock) = store();
            let before = acquire(&store, 1).await;
            assert_eq!(complete(&store, before).await, Fenced::Applied);
            clock.advance(SECOND);
            let purging = {
                let store = store.clone();
                spawn(async move { store.purge(10).await.expect("the memory store answers") })
            };
            let claims: Vec<_> = (2..=3)
                .map(|caller| {
                    let store = store.clone();
                    spawn(async move { claim(&store, caller).await })
                })
                .collect();
            let mut won = Vec::new();
            for task in claims {
                if let Claim::Acquired(acquired) = task.await.expect("no claim panics") {
                    won.push(acquired.token);
                }
            }
            purging.await.expect("the purge does not panic");
            assert_eq!(won.len(), 1);
            assert!(won[0].fence > before.fence);
            let entry = store.get(identity().digest()).await;
            let entry = entry.expect("the memory store answers");
            assert_eq!(entry.map(|e| e.record.token), Some(won[0]));
        });
    });
}
