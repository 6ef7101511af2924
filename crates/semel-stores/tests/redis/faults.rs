//! Servers and connections that break.

use std::time::Duration;

use semel::store::{Claim, ClaimRequest, Fenced, OnLost, StoreExt as _};
use semel::{AnyStore, FinishedStep, Store as _, StoreErrorKind};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Redis, Server as _};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{acquired, claim, failed, identity, options, request, tell};
use crate::servers::{self, Load, did_not_happen, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_leaves_no_doubt_when_asked_again() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let options = options().timeout(Duration::from_millis(700));
    let open = async |url: &str| options.clone().open(url).await.unwrap();
    let (store, direct) = (open(&url).await, open(&server.url()).await);
    let faults = [
        Fault::CutAnswers,
        Fault::HalveAnswers,
        Fault::SwallowAnswers,
    ];
    servers::lost_answers(&proxy, store, direct, &faults).await;
    // Nobody there: certainly not done.
    let store = open(&url).await;
    proxy.set(Fault::Refuse);
    sleep(Duration::from_millis(50)).await;
    let key = identity("a-key-of-some-length");
    // The connection that stood may have taken it.
    assert!(store.claim(&key, &request()).await.is_err());
    let next = store.claim(&key, &request()).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_were_flushed_are_sent_again_under_load() {
    let server = Redis::start(&[]).unwrap();
    let store = AnyStore::new(options().open(&server.url()).await.unwrap());
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
    let store = AnyStore::new(options().connections(3).open(&server.url()).await.unwrap());
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
    servers::killed(&server, AnyStore::new(store)).await;
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
                    use StoreErrorKind::{Contended, NotApplied, Unknown};
                    let right = matches!(error.kind(), NotApplied | Contended | Unknown);
                    assert!(right, "{error}");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_doubt_is_not_simply_told_of_another() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    servers::a_claim_in_doubt(&proxy, options().open(&url).await.unwrap()).await;
}
