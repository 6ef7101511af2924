//! Waiters: how soon they are woken, and by whom.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::Store as _;
use semel::store::{StoreExt as _, Waited};
use semel_testkit::servers::{Kind, Redis, Server as _, shared};
use tokio::time::sleep;

use super::{claim, identity, options, tell};
use crate::runtimes::runtime;
use crate::servers;

#[expect(clippy::print_stdout, reason = "a measurement")]
async fn median(kind: Kind) {
    let url = shared(kind).unwrap();
    let options = options();
    let store = options.clone().open(&url).await.unwrap();
    let other = Arc::new(options.open(&url).await.unwrap());
    let took = servers::woken(&store, &other, 31, Duration::from_millis(20)).await;
    println!(
        "{}: woken after the completion's answer: median {:?}, longest {:?}",
        kind.name(),
        took[15],
        took[30]
    );
    // Pushed: a waiter that polls would take half a second.
    assert!(took[15] < Duration::from_millis(250));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_woken_by_a_push() {
    median(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_woken_by_a_push_in_a_cluster() {
    median(Kind::RedisCluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_told_where_nobody_waits() {
    let server = Redis::start(&[]).unwrap();
    let store = options().open(&server.url()).await.unwrap();
    let published = async || {
        let said = tell(server.address(), &["INFO", "commandstats"]).await;
        let said: String = ::redis::from_redis_value(said).unwrap();
        let calls = said.split("cmdstat_publish:calls=").nth(1);
        calls.map_or(0_u32, |calls| {
            calls.split(',').next().unwrap().parse().unwrap()
        })
    };
    // Opening tried whether it may.
    let before = published().await;
    for n in 0..20 {
        let id = identity(&format!("a-key-of-some-length-{n}"));
        let own = claim(&store, &id).await;
        let done = super::complete(&store, id.digest(), &own.token).await;
        assert!(done.is_ok());
    }
    assert_eq!(published().await, before);
    // Until the subscription is there a waiter polls; then it marks the record, and is told.
    for n in 0.. {
        let id = identity(&format!("another-key-of-some-length-{n}"));
        let own = claim(&store, &id).await;
        let waited = store.wait(id.digest(), own.token.fence, Duration::from_millis(100));
        assert_eq!(waited.await.unwrap(), Waited::TimedOut);
        let done = super::complete(&store, id.digest(), &own.token).await;
        assert!(done.is_ok() && n < 100);
        if published().await == before + 1 {
            return;
        }
    }
}

/// A server without room takes no mark: nobody is pushed, so who waits polls.
#[tokio::test(flavor = "multi_thread")]
async fn who_could_not_be_marked_polls() {
    let server = Redis::start(&[]).unwrap();
    let store = options().open(&server.url()).await.unwrap();
    let mut running = Vec::new();
    for n in 0..6 {
        let id = identity(&format!("a-key-of-some-length-{n}"));
        running.push((claim(&store, &id).await.token, *id.digest()));
    }
    // The subscription is there by then.
    let (token, digest) = running.pop().unwrap();
    let waited = store.wait(&digest, token.fence, Duration::from_secs(1));
    assert_eq!(waited.await.unwrap(), Waited::TimedOut);
    tell(server.address(), &["CONFIG", "SET", "maxmemory", "1"]).await;
    let mut soonest = Duration::MAX;
    for (token, digest) in running {
        let from = Instant::now();
        let (waited, done) = tokio::join!(
            store.wait(&digest, token.fence, Duration::from_secs(20)),
            async {
                sleep(Duration::from_millis(20)).await;
                super::complete(&store, &digest, &token).await
            }
        );
        assert!(done.is_ok());
        assert_eq!(waited.unwrap(), Waited::Changed);
        soonest = soonest.min(from.elapsed());
    }
    // Who relies on a push looks after 375 ms at the earliest.
    assert!(soonest < Duration::from_millis(250), "{soonest:?}");
}

/// Nor does a waiter that polls fetch what it does not need.
#[tokio::test(flavor = "multi_thread")]
async fn who_polls_fetches_no_outcome() {
    let server = Redis::start(&[]).unwrap();
    let store = options().open(&server.url()).await.unwrap();
    let forbid = ["ACL", "SETUSER", "default", "-subscribe"];
    tell(server.address(), &forbid).await;
    let id = identity("a-key-of-some-length");
    let own = claim(&store, &id).await;
    let sent = async || {
        let said = tell(server.address(), &["INFO", "stats"]).await;
        let said: String = ::redis::from_redis_value(said).unwrap();
        let bytes = said.split("total_net_output_bytes:").nth(1).unwrap();
        bytes.lines().next().unwrap().parse::<u64>().unwrap()
    };
    let before = sent().await;
    let large = semel::Outcome::success(&[b'x'; 1_000_000]);
    let (waited, done) = tokio::join!(
        store.wait(id.digest(), own.token.fence, Duration::from_secs(20)),
        async {
            sleep(Duration::from_millis(20)).await;
            let retention = semel::store::Retention::ORDER;
            store
                .complete(id.digest(), &own.token, &large, retention)
                .await
        }
    );
    assert!(done.is_ok());
    assert_eq!(waited.unwrap(), Waited::Changed);
    let sent = sent().await - before;
    assert!(sent < 500_000, "{sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_broke_is_made_again() {
    let server = Redis::start(&[]).unwrap();
    let store = options().open(&server.url()).await.unwrap();
    for _ in 0..3 {
        let identity = identity("a-key-of-some-length");
        let own = claim(&store, &identity).await;
        let (waiting, digest) = (store.clone(), *identity.digest());
        let waiter = tokio::spawn(async move {
            let from = Instant::now();
            let wait = waiting.wait(&digest, own.token.fence, Duration::from_secs(30));
            (wait.await.unwrap(), from.elapsed())
        });
        sleep(Duration::from_millis(100)).await;
        tell(server.address(), &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        let done = super::complete(&store, identity.digest(), &own.token);
        let _ = done.await.unwrap();
        let (waited, took) = waiter.await.unwrap();
        assert_eq!(waited, Waited::Changed);
        assert!(took < Duration::from_secs(8), "{took:?}");
    }
}

/// The runtime on which somebody first waited ends, during another's wait.
#[test]
fn another_subscribes_where_a_runtime_ends() {
    let (first, second) = (runtime(), runtime());
    let server = Redis::start(&[]).unwrap();
    // Until there is a subscriber other than this one.
    let subscriber = async |other: &str| loop {
        let list = ["CLIENT", "LIST", "TYPE", "pubsub"];
        let said: String = ::redis::from_redis_value(tell(server.address(), &list).await).unwrap();
        let id = said.split(' ').next().unwrap().to_owned();
        if said.contains(" sub=1 ") && id != other {
            break id;
        }
        sleep(Duration::from_millis(20)).await;
    };
    let long = Duration::from_secs(30);
    let id = identity("a-key-of-some-length");
    let (store, own, before) = first.block_on(async {
        let store = options().open(&server.url()).await.unwrap();
        let own = claim(&store, &id).await;
        let before = tokio::select! {
            waited = store.wait(id.digest(), own.token.fence, long) => panic!("{waited:?}"),
            before = subscriber("") => before,
        };
        (store, own, before)
    });
    let waiting = second.spawn({
        let (store, digest) = (store.clone(), *id.digest());
        async move { store.wait(&digest, own.token.fence, long).await }
    });
    drop(first);
    second.block_on(async {
        let soon = tokio::time::timeout(long, subscriber(&before));
        soon.await.expect("nobody subscribes");
        let done = super::complete(&store, id.digest(), &own.token);
        assert!(done.await.is_ok());
        assert_eq!(waiting.await.unwrap().unwrap(), Waited::Changed);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_waits_at_once() {
    let url = shared(Kind::Redis).unwrap();
    servers::closing_ends_waits(options().open(&url).await.unwrap()).await;
}
