//! Servers and connections that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use semel::store::{Claim, ClaimRequest, Fenced, Nonce, OnLost, StoreExt as _};
use semel::{FinishedStep, Store as _, StoreErrorKind};
use semel_stores::RedisStore;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Redis, Server as _};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{acquired, claim, eventually, failed, identity, options, request, tell};
use crate::servers::{self, did_not_happen};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_leaves_no_doubt_when_asked_again() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let options = options().timeout(Duration::from_millis(700));
    for fault in [
        Fault::CutAnswers,
        Fault::HalveAnswers,
        Fault::SwallowAnswers,
    ] {
        // A standing connection: the step goes out, and only its answer is lost.
        proxy.set(Fault::None);
        let store = options.clone().open(&url).await.unwrap();
        let (identity, asked) = (super::identity("a-key-of-some-length"), request());
        claim(&store, &super::identity("warms-up-the-store")).await;

        proxy.set(fault);
        failed(
            store.claim(&identity, &asked).await,
            StoreErrorKind::Unknown,
        );
        proxy.set(Fault::None);
        let own = acquired(eventually(|| store.claim(&identity, &asked)).await);
        assert_eq!(own.attempt, 1, "{fault:?}");

        proxy.set(fault);
        let complete = async || {
            let digest = identity.digest();
            super::complete(&store, digest, &own.token).await
        };
        failed(complete().await, StoreErrorKind::Unknown);
        proxy.set(Fault::None);
        assert_eq!(eventually(complete).await, Fenced::Applied);

        let second = super::identity("another-key-of-some-length");
        let own = claim(&store, &second).await;
        proxy.set(fault);
        let abandon = async || store.abandon(second.digest(), &own.token).await;
        failed(abandon().await, StoreErrorKind::Unknown);
        proxy.set(Fault::None);
        assert_eq!(eventually(abandon).await, Fenced::Applied);
        assert!(proxy.hits() > 0);
    }
    // Nobody there: certainly not done.
    let store = options.open(&url).await.unwrap();
    proxy.set(Fault::Refuse);
    sleep(Duration::from_millis(50)).await;
    let first = store
        .claim(&identity("a-key-of-some-length"), &request())
        .await;
    // The connection that stood may have taken it.
    assert!(first.is_err());
    let next = store
        .claim(&identity("a-key-of-some-length"), &request())
        .await;
    failed(next, StoreErrorKind::NotApplied);
}

/// Whichever of the two comes first, the other finds what it did. The steps that take two trips most of all.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_arrives_twice_is_done_once() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let store = options().open(&url).await.unwrap();
    claim(&store, &identity("warms-up-the-store")).await;
    proxy.set(Fault::Duplicate);
    for _ in 0..20 {
        let identity = identity("a-key-of-some-length");
        let digest = identity.digest();
        let first = claim(&store, &identity).await;
        let released = store.abandon(digest, &first.token).await;
        assert_eq!(released.unwrap(), Fenced::Applied);
        let second = claim(&store, &identity).await;
        assert_eq!(second.attempt, 2);
        let marked = store.mark_unknown(digest, &second.token).await;
        assert_eq!(marked.unwrap(), Fenced::Applied);
        let resolution = did_not_happen(second.token.fence);
        let resolved = store.resolve(digest, &resolution).await;
        assert_eq!(resolved.unwrap(), Fenced::Applied);
        let third = claim(&store, &identity).await;
        assert_eq!(third.attempt, 3);
        let step = FinishedStep::new("reserve", b"7").unwrap();
        let kept = store.keep_step(digest, &third.token, &step, 0).await;
        assert_eq!(kept.unwrap(), Fenced::Applied);
        let done = super::complete(&store, digest, &third.token).await;
        assert_eq!(done.unwrap(), Fenced::Applied);
    }
    assert!(proxy.hits() > 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_others_came_after_is_not_called_refused() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let options = options();
    let through = server.url_through(proxy.address());
    let store = options.clone().open(&through).await.unwrap();
    let direct = options.open(&server.url()).await.unwrap();
    servers::others_came_after(&proxy, store, direct, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_cut_is_made_again_within_the_step() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let store = options().open(&url).await.unwrap();
    for _ in 0..20 {
        proxy.cut();
        sleep(Duration::from_millis(5)).await;
        let identity = identity("a-key-of-some-length");
        let own = claim(&store, &identity).await;
        tell(
            server.address(),
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        )
        .await;
        let done = super::complete(&store, identity.digest(), &own.token);
        assert_eq!(done.await.unwrap(), Fenced::Applied);
    }
}

/// Callers that claim and complete until they are stopped. Counts what was done, and keeps those
/// whose completion was acknowledged.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    callers: JoinSet<Vec<semel::Identity>>,
}

impl Load {
    pub(super) fn start(store: &RedisStore, callers: usize) -> Self {
        let mut load = Self {
            stop: Arc::default(),
            done: Arc::default(),
            callers: JoinSet::new(),
        };
        for _ in 0..callers {
            let (store, stop, done) = (store.clone(), load.stop.clone(), load.done.clone());
            load.callers.spawn(async move {
                let mut kept = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let (identity, asked) = (identity("a-key-of-some-length"), request());
                    let own = acquired(eventually(|| store.claim(&identity, &asked)).await);
                    let complete = || super::complete(&store, identity.digest(), &own.token);
                    let fenced = eventually(complete).await;
                    assert_eq!(fenced, Fenced::Applied);
                    done.fetch_add(1, Ordering::Relaxed);
                    kept.push(identity);
                }
                kept
            });
        }
        load
    }

    /// Lets it run until this many more are done.
    pub(super) async fn more(&self, count: usize) {
        let wanted = self.done.load(Ordering::Relaxed) + count;
        let end = tokio::time::Instant::now() + Duration::from_secs(60);
        while self.done.load(Ordering::Relaxed) < wanted {
            assert!(tokio::time::Instant::now() < end, "nothing goes on");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Every acknowledged completion is replayed.
    pub(super) async fn check(self, store: &RedisStore) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let mut count = 0;
        for identity in self.callers.join_all().await.into_iter().flatten() {
            let again = eventually(async || store.claim(&identity, &request()).await).await;
            assert!(matches!(again, Claim::Completed { .. }), "{again:?}");
            count += 1;
        }
        count
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_were_flushed_are_sent_again_under_load() {
    let server = Redis::start(&[]).unwrap();
    let store = options().open(&server.url()).await.unwrap();
    let load = Load::start(&store, 16);
    for _ in 0..20 {
        tell(server.address(), &["SCRIPT", "FLUSH"]).await;
        load.more(20).await;
    }
    load.check(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_killed_under_load_are_made_again() {
    let server = Redis::start(&[]).unwrap();
    let store = options().connections(3).open(&server.url()).await.unwrap();
    let load = Load::start(&store, 16);
    for _ in 0..20 {
        tell(server.address(), &["CLIENT", "KILL", "TYPE", "normal"]).await;
        load.more(20).await;
    }
    load.check(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let server = Redis::start(&[]).unwrap();
    let store = options().open(&server.url()).await.unwrap();
    let load = Load::start(&store, 16);
    for _ in 0..3 {
        load.more(50).await;
        server.nodes()[0].kill();
        sleep(Duration::from_millis(100)).await;
        server.nodes()[0].start().unwrap();
    }
    load.more(50).await;
    assert!(load.check(&store).await >= 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_found_again_without_opening_anew() {
    let server = Redis::start(&[]).unwrap();
    let store = options().open(&server.url()).await.unwrap();
    let identity = identity("a-key-of-some-length");
    let own = claim(&store, &identity).await;
    server.nodes()[0].kill();
    assert!(store.get(identity.digest()).await.is_err());
    failed(
        store.claim(&identity, &request()).await,
        StoreErrorKind::NotApplied,
    );
    failed(
        store.get(identity.digest()).await,
        StoreErrorKind::NotApplied,
    );
    server.nodes()[0].start().unwrap();
    let done = super::complete(&store, identity.digest(), &own.token);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_longer_than_the_lease_leaves_one_winner() {
    let server = Redis::start(&[]).unwrap();
    let options = options().timeout(Duration::from_millis(500));
    let stores = [
        options.clone().open(&server.url()).await.unwrap(),
        options.open(&server.url()).await.unwrap(),
    ];
    let lease = Duration::from_millis(600);
    for _ in 0..3 {
        let identity = identity("a-key-of-some-length");
        let first = ClaimRequest { lease, ..request() };
        let own = acquired(stores[0].claim(&identity, &first).await.unwrap());
        server.nodes()[0].pause();
        let mut rivals = JoinSet::new();
        for n in 0..16 {
            let (store, identity) = (stores[n % 2].clone(), identity.clone());
            rivals.spawn(async move {
                let asked = ClaimRequest {
                    on_lost: OnLost::Retry,
                    ..request()
                };
                let first = store.claim(&identity, &asked).await;
                if let Err(error) = &first {
                    let passing = [StoreErrorKind::Unknown, StoreErrorKind::NotApplied];
                    assert!(passing.contains(&error.kind()), "{error}");
                }
                // The same claim, until there is an answer.
                eventually(|| store.claim(&identity, &asked)).await
            });
        }
        // The holder, too, finds that it no longer is one, or that it still is.
        sleep(lease * 3).await;
        server.nodes()[0].resume();
        let answers = rivals.join_all().await;
        let winners: Vec<_> = answers
            .iter()
            .filter_map(|answer| match answer {
                Claim::Acquired(own) => Some(own),
                _ => None,
            })
            .collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        assert_eq!(winners[0].attempt, 2);
        let stale = async || {
            let digest = identity.digest();
            super::complete(&stores[0], digest, &own.token).await
        };
        assert!(matches!(eventually(stale).await, Fenced::Refused(_)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_becomes_a_replica_takes_no_step_until_it_is_one_again() {
    let server = Redis::start(&[]).unwrap();
    let store = options().open(&server.url()).await.unwrap();
    let identity = identity("a-key-of-some-length");
    let own = claim(&store, &identity).await;
    tell(server.address(), &["REPLICAOF", "127.0.0.1", "1"]).await;
    let digest = identity.digest();
    let done = super::complete(&store, digest, &own.token).await;
    failed(done, StoreErrorKind::NotApplied);
    let read = store.get(digest).await;
    failed(read, StoreErrorKind::NotApplied);
    tell(server.address(), &["REPLICAOF", "NO", "ONE"]).await;
    let done = super::complete(&store, digest, &own.token).await;
    assert_eq!(done.unwrap(), Fenced::Applied);
}

/// The answer to a claim is lost, and sent again it finds another's attempt: its first sending may arrive after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_doubt_is_not_simply_told_of_another() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let store = options().open(&url).await.unwrap();
    let key = identity("key");
    claim(&store, &key).await;
    let other = ClaimRequest {
        nonce: Nonce::random().unwrap(),
        ..request()
    };
    proxy.once(Fault::CutAnswers);
    failed(store.claim(&key, &other).await, StoreErrorKind::Unknown);
    let again = store.claim(&key, &other).await.unwrap();
    assert!(matches!(again, Claim::InFlight { .. }), "{again:?}");
}
