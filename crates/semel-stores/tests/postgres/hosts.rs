//! Which host a connection goes to, and how long it is used.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use semel::StoreErrorKind;
use semel::store::{Claim, Store as _};
use semel_stores::PostgresStore;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Postgres, Server as _};

use super::{acquire, client, complete, identity, open, request};

/// Tries until a claim goes through.
async fn claims_within(store: &PostgresStore, key: &str, limit: Duration) {
    let (end, request) = (Instant::now() + limit, request());
    loop {
        match store.claim(&identity(key), &request).await {
            Ok(Claim::Acquired(_)) => return,
            Err(_) if Instant::now() < end => {}
            other => panic!("{key}: {other:?}"),
        }
    }
}

/// The server's URL with these addresses.
fn at(url: &str, addresses: [SocketAddr; 2]) -> String {
    let (user, rest) = url
        .trim_start_matches("postgres://")
        .split_once('@')
        .unwrap();
    let (_, database) = rest.split_once('/').unwrap();
    let [one, two] = addresses;
    let (hosts, ports) = (
        format!("{},{}", one.ip(), two.ip()),
        format!("{},{}", one.port(), two.port()),
    );
    format!("postgres:///{database}?user={user}&host={hosts}&port={ports}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_takes_connections_and_says_nothing_is_passed_over() {
    let server = Postgres::start(&[]).unwrap();
    let (one, two) = (
        Proxy::start(server.address()).unwrap(),
        Proxy::start(server.address()).unwrap(),
    );
    let url = at(&server.url(), [one.address(), two.address()]);
    let store = open(&format!("{url}&timeout=3s")).await;
    acquire(&store, "first").await;
    assert_eq!(two.connections(), 0);
    // What is under way on the old connections may have happened; then the other host is found, and kept.
    one.set(Fault::Blackhole);
    claims_within(&store, "second", Duration::from_secs(20)).await;
    let silent = one.connections();
    two.cut();
    claims_within(&store, "third", Duration::from_secs(20)).await;
    assert_eq!(one.connections(), silent, "who answered last comes first");
    // And back.
    two.set(Fault::Blackhole);
    one.set(Fault::None);
    claims_within(&store, "fourth", Duration::from_secs(20)).await;
}

/// Sets whether the server takes no writes.
async fn read_only(url: &str, on: &str) {
    let admin = client(url).await;
    let set = format!("ALTER SYSTEM SET default_transaction_read_only = {on}");
    for set in [&*set, "SELECT pg_reload_conf()"] {
        admin.batch_execute(set).await.unwrap();
    }
    // Sessions hear of it a moment later.
    let show = "SHOW default_transaction_read_only";
    loop {
        let row = client(url).await.query_one(show, &[]).await.unwrap();
        if row.get::<_, String>(0) == on {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_takes_no_writes_any_more_is_left() {
    let (old, new) = (Postgres::start(&[]).unwrap(), Postgres::start(&[]).unwrap());
    open(&new.url()).await.close().await.unwrap();
    let url = at(&old.url(), [old.address(), new.address()]);
    let store = open(&format!("{url}&connections=1")).await;
    acquire(&store, "first").await;
    // Until the new one is promoted nobody takes writes: that is over in a moment, and no mistake in the
    // URL, after which an outcome would not be told again.
    read_only(&new.url(), "on").await;
    read_only(&old.url(), "on").await;
    for _ in 0..3 {
        let error = store.claim(&identity("nowhere"), &request()).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
    }
    read_only(&new.url(), "off").await;
    claims_within(&store, "second", Duration::from_secs(20)).await;
    let there = open(&new.url()).await;
    let entry = there.get(identity("second").digest()).await.unwrap();
    assert!(entry.is_some());
}

#[tokio::test]
async fn a_connection_that_lay_idle_for_long_is_made_anew() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = open(&server.url_through(proxy.address())).await;
    let token = acquire(&store, "first").await.token;
    let made = proxy.connections();
    let _done = complete(&store, "first", &token).await;
    assert_eq!(proxy.connections(), made);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(5 * 60)).await;
    tokio::time::resume();
    acquire(&store, "second").await;
    assert_eq!(proxy.connections(), made + 1);
}
