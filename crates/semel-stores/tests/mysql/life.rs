//! Waiting, sizes, connections, closing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::{Claim, Fenced, Retention, StoreExt as _, Waited};
use semel::{Outcome, Store as _, StoreErrorKind};
use semel_stores::MysqlStore;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::Server as _;
use sqlx::{Connection as _, MySqlConnection};
use tokio::task::JoinSet;

use super::{
    LONG, acquire, ask, claim, common, complete, identity, link, open, options, own, table,
};

/// How long after a completion on `settling` a waiter on `waiting` knows; the median of several.
async fn median(waiting: &Arc<MysqlStore>, settling: &MysqlStore, keys: &str) -> Duration {
    let mut all = Vec::new();
    for number in 0..21 {
        let key = format!("{keys}-{number}");
        let token = acquire(settling, &key).await;
        let waiter = tokio::spawn({
            let (waiting, key) = (waiting.clone(), identity(&key));
            async move {
                let limit = Duration::from_secs(30);
                let waited = waiting
                    .wait(key.digest(), token.fence, limit)
                    .await
                    .unwrap();
                (waited, Instant::now())
            }
        });
        tokio::time::sleep(Duration::from_millis(50 + 7 * number)).await;
        let start = Instant::now();
        assert_eq!(
            complete(settling, &key, &token).await.unwrap(),
            Fenced::Applied
        );
        let (waited, woken) = waiter.await.unwrap();
        assert_eq!(waited, Waited::Changed);
        all.push(woken.duration_since(start));
    }
    all.sort_unstable();
    all[all.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_learn_of_a_completion() {
    let options = options(&common().await);
    let store = Arc::new(options.clone().open().await.unwrap());
    let other = options.open().await.unwrap();
    println!(
        "median from the same handle: {:?}",
        median(&store, &store, "same").await
    );
    println!(
        "median from another handle: {:?}",
        median(&store, &other, "other").await
    );
}

#[tokio::test]
async fn what_is_too_large_is_said_before_it_is_sent() {
    let server = own(&["max-allowed-packet=1M"]).await;
    let store = open(&server.url()).await;
    let (key, token) = (identity("key"), acquire(&store, "key").await);
    let large = Outcome::success(&vec![b'x'; 600_000]);
    let refused = store
        .complete(key.digest(), &token, &large, Retention::ORDER)
        .await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::TooLarge);
    assert!(
        refused
            .to_string()
            .contains("max_allowed_packet is 1048576"),
        "{refused}"
    );
    let fits = Outcome::success(&vec![b'y'; 500_000]);
    let done = store
        .complete(key.digest(), &token, &fits, Retention::ORDER)
        .await;
    assert_eq!(done.unwrap(), Fenced::Applied);
    let Claim::Completed { outcome, .. } = claim(&store, "key").await.unwrap() else {
        panic!()
    };
    assert_eq!(outcome, fits);
    // A smaller limit that is set while the store is open.
    let mut root = link(&server.url()).await;
    ask(&mut root, "SET GLOBAL max_allowed_packet=65536").await;
    let store = open(&server.url()).await;
    let (key, token) = (identity("key"), acquire(&store, "key").await);
    let refused = store
        .complete(key.digest(), &token, &fits, Retention::ORDER)
        .await;
    assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::TooLarge);
    let omitted = fits.to_omitted();
    let done = store
        .complete(key.digest(), &token, &omitted, Retention::ORDER)
        .await;
    assert_eq!(done.unwrap(), Fenced::Applied);
}

#[tokio::test]
async fn many_megabytes_come_back() {
    let server = own(&["max-allowed-packet=64M"]).await;
    let store = open(&server.url()).await;
    let (key, token) = (identity("key"), acquire(&store, "key").await);
    // More than one packet of the protocol, both ways.
    let body: Vec<u8> = (0..20_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let large = Outcome::success(&body);
    let done = store
        .complete(key.digest(), &token, &large, Retention::ORDER)
        .await;
    assert_eq!(done.unwrap(), Fenced::Applied);
    let Claim::Completed { outcome, .. } = claim(&store, "key").await.unwrap() else {
        panic!()
    };
    assert_eq!(outcome, large);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_callers_than_the_server_has_connections() {
    let server = own(&["max-connections=10"]).await;
    let store = Arc::new(options(&server.url()).connections(64).open().await.unwrap());
    // Others have all that the server allows.
    let mut others = Vec::new();
    while let Ok(other) = MySqlConnection::connect(&server.url()).await {
        others.push(other);
    }
    let refused = claim(&store, "refused").await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NotApplied, "{refused}");
    for other in others {
        other.close().await.unwrap();
    }
    let mut callers = JoinSet::new();
    for caller in 0..64 {
        let store = store.clone();
        callers.spawn(async move {
            loop {
                match claim(&store, &format!("key-{caller}")).await {
                    Ok(claim) => break assert!(matches!(claim, Claim::Acquired(_)), "{claim:?}"),
                    Err(error) => assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    callers.join_all().await;
}

#[tokio::test]
async fn connections_that_the_server_closed_are_not_used() {
    let server = own(&["wait-timeout=1"]).await;
    let store = open(&server.url()).await;
    for round in 0..3 {
        acquire(&store, &format!("key-{round}")).await;
        tokio::time::sleep(Duration::from_millis(2200)).await;
    }
    acquire(&store, "last").await;
}

#[tokio::test]
async fn dropped_calls_do_no_harm() {
    let store = Arc::new(
        options(&common().await)
            .connections(1)
            .open()
            .await
            .unwrap(),
    );
    for number in 0..40_u64 {
        let key = format!("key-{number}");
        let claiming = claim(&store, &key);
        let dropped = tokio::time::timeout(Duration::from_micros(number * 50), claiming).await;
        drop(dropped);
        // The answer of the one that was dropped is nobody's.
        let got = store.get(identity("nobody").digest()).await.unwrap();
        assert_eq!(got, None);
    }
}

#[tokio::test]
async fn closing_gives_the_connections_back() {
    let server = own(&[]).await;
    let store = open(&server.url()).await;
    acquire(&store, "key").await;
    let mut root = link(&server.url()).await;
    let count =
        "SELECT id FROM information_schema.processlist WHERE user='semel' AND id<>CONNECTION_ID()";
    assert!(!ask(&mut root, count).await.is_empty());
    store.close().await.unwrap();
    store.close().await.unwrap();
    assert_eq!(
        claim(&store, "key").await.unwrap_err().kind(),
        StoreErrorKind::Closed
    );
    for _ in 0..100 {
        if ask(&mut root, count).await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("connections are left");
}

/// A server that has stopped answers no farewell, and none is waited for.
#[tokio::test]
async fn closing_waits_for_no_answers() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let store = Arc::new(open(&server.url_through(proxy.address())).await);
    // Slow enough that steps that come together take a connection each.
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let mut claims = JoinSet::new();
    for n in 0..64 {
        let store = store.clone();
        claims.spawn(async move { acquire(&store, &n.to_string()).await });
    }
    claims.join_all().await;
    assert!(proxy.connections() > 3, "{}", proxy.connections());
    proxy.set(Fault::Blackhole);
    tokio::time::pause();
    let from = tokio::time::Instant::now();
    store.close().await.unwrap();
    let took = from.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// The server's clock went back by an hour while attempts ran. What they leave is kept for no shorter than was asked
/// for, and the next attempt's lease is no longer.
#[tokio::test]
async fn what_is_settled_after_the_clock_went_back_is_kept() {
    let (url, table) = (common().await, table());
    let store = options(&url).table(&table).unwrap().open().await.unwrap();
    let mut link = link(&url).await;
    let mut begun = async |key: &str| {
        let token = acquire(&store, key).await;
        let hour = 3_600_000_000_u64;
        let times = ["claimed_at", "created_at", "lease_until"];
        let later = times.map(|time| format!("{time}={time}+{hour}")).join(",");
        let digest = *identity(key).digest();
        let earlier = format!("UPDATE {table} SET {later} WHERE digest=x'{digest}'");
        ask(&mut link, earlier).await;
        (digest, token)
    };
    let minutes = Retention::new(Duration::from_mins(5));
    let (digest, token) = begun("completed").await;
    let paid = Outcome::success(b"paid");
    let done = store.complete(&digest, &token, &paid, minutes);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    let again = claim(&store, "completed").await.unwrap();
    assert!(matches!(again, Claim::Completed { .. }), "{again:?}");

    let (digest, token) = begun("released").await;
    let done = store.abandon(&digest, &token);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    acquire(&store, "released").await;
    let rival = claim(&store, "released").await.unwrap();
    let Claim::InFlight { remaining, .. } = rival else {
        panic!("{rival:?}");
    };
    assert!(remaining <= LONG, "{remaining:?}");
}
