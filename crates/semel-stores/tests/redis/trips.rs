//! Round trips, counted by a proxy before the server.

use std::time::Duration;

use semel::store::{Claim, Fenced, StoreExt as _};
use semel::{FinishedStep, Store as _};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{Redis, Server as _};

use super::{acquired, claim, identity, options, request};
use crate::servers::{did_not_happen, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn frequent_steps_are_one_round_trip() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let store = options().open(&url).await.unwrap();
    let mut before = proxy.round_trips();
    let mut trips = |count, what: &str| {
        let now = proxy.round_trips();
        assert_eq!(now - before, count, "round trips of {what}");
        before = now;
    };
    let first = identity("a-key-of-some-length");
    let asked = request();
    let own = acquired(store.claim(&first, &asked).await.unwrap());
    trips(1, "a claim");
    acquired(store.claim(&first, &asked).await.unwrap());
    trips(1, "the same claim again");
    let rival = store.claim(&first, &request()).await.unwrap();
    assert!(matches!(rival, Claim::InFlight { .. }));
    trips(1, "a claim on what is in flight");
    let renewed = store.renew(first.digest(), &own.token, super::LEASE * 2);
    assert_eq!(renewed.await.unwrap(), Fenced::Applied);
    trips(1, "a renewal");
    let step = FinishedStep::new("reserve", b"7").unwrap();
    let kept = store.keep_step(first.digest(), &own.token, &step, 0);
    assert_eq!(kept.await.unwrap(), Fenced::Applied);
    trips(1, "a step that is kept");
    for what in ["a completion", "the same completion again"] {
        let done = super::complete(&store, first.digest(), &own.token);
        assert_eq!(done.await.unwrap(), Fenced::Applied);
        trips(1, what);
    }
    let replay = store.claim(&first, &request()).await.unwrap();
    assert!(matches!(replay, Claim::Completed { .. }));
    trips(1, "a replay");
    store.get(first.digest()).await.unwrap().unwrap();
    trips(1, "a read");

    let second = identity("another-key-of-some-length");
    let own = claim(&store, &second).await;
    trips(1, "a claim");
    assert_eq!(
        store.abandon(second.digest(), &own.token).await.unwrap(),
        Fenced::Applied
    );
    trips(1, "a release");
    let own = claim(&store, &second).await;
    trips(2, "a claim after a release");
    let marked = store.mark_unknown(second.digest(), &own.token).await;
    assert_eq!(marked.unwrap(), Fenced::Applied);
    trips(2, "marking as unknown");
    let resolution = did_not_happen(own.token.fence);
    let resolved = store.resolve(second.digest(), &resolution).await;
    assert_eq!(resolved.unwrap(), Fenced::Applied);
    trips(2, "a resolution");
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_replica_goes_with_the_step() {
    let master = Redis::start(&[]).unwrap();
    let port = master.address().port().to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
    let proxy = Proxy::start(master.address()).unwrap();
    let url = master.url_through(proxy.address());
    // Until the replica has joined, claims are unknown.
    let options = options().wait_replicas(1);
    let store = options.clone().open(&url).await.unwrap();
    eventually(async || {
        store
            .claim(&identity("a-key-of-some-length"), &request())
            .await
    })
    .await;
    let before = proxy.round_trips();
    let first = identity("a-key-of-some-length");
    let own = claim(&store, &first).await;
    assert_eq!(proxy.round_trips() - before, 1);
    let done = super::complete(&store, first.digest(), &own.token);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    assert_eq!(proxy.round_trips() - before, 2);
    // It is there.
    let key: Vec<String> =
        ::redis::from_redis_value(super::tell(replica.address(), &["KEYS", "*"]).await).unwrap();
    assert!(
        key.iter()
            .any(|key| key.ends_with(&first.digest().to_string()))
    );

    let released = identity("a-third-key-of-some-length");
    let third = claim(&store, &released).await;
    let given = store.abandon(released.digest(), &third.token).await;
    assert_eq!(given.unwrap(), Fenced::Applied);

    // Without its replica the master still writes, and the store does not vouch for it.
    replica.nodes()[0].pause();
    let asked = request();
    let second = identity("another-key-of-some-length");
    let options = options.timeout(Duration::from_secs(1));
    let store = options.clone().open(&url).await.unwrap();
    let error = super::failed(
        store.claim(&second, &asked).await,
        semel::StoreErrorKind::Unknown,
    );
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    // Nor for what another process completed: it may be on this server only.
    let error = super::failed(
        store.claim(&first, &asked).await,
        semel::StoreErrorKind::Unknown,
    );
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    // Asked again it is still not vouched for, although it finds its own claim; nor over a connection that has
    // written nothing, whichever attempt it is.
    for again in [&second, &released] {
        for _ in 0..2 {
            let store = options.clone().open(&url).await.unwrap();
            let claimed = store.claim(again, &asked).await;
            super::failed(claimed, semel::StoreErrorKind::Unknown);
        }
    }
    super::failed(
        store.claim(&second, &asked).await,
        semel::StoreErrorKind::Unknown,
    );
    replica.nodes()[0].resume();
    let own = eventually(async || store.claim(&second, &asked).await).await;
    assert_eq!(acquired(own).attempt, 1);
}
