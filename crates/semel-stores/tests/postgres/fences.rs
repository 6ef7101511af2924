//! The sequence that fences come from.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use semel::store::{Fence, Fenced, Retention, Store as _, StoreExt as _};
use semel::{Outcome, StoreErrorKind};
use semel_stores::{OpenError, OpenOptions, PostgresOptions, Schema, migrate};
use semel_testkit::servers::{Kind, shared};
use tokio::sync::Barrier;

use super::{acquire, client, complete, identity, open, replayed, table, url};

/// How far behind the clock the sequence may be.
const SECOND: u64 = 1_000_000;

fn named(url: &str) -> &str {
    url.split("table=").nth(1).unwrap()
}

/// Sets the sequence to what an expression says.
async fn set(url: &str, to: &str) {
    let set = format!("SELECT setval('{}_fences', {to})", named(url));
    client(url).await.batch_execute(&set).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn none_is_given_out_twice_while_the_sequence_is_moved() {
    let url = url();
    let mut stores = Vec::new();
    for _ in 0..8 {
        // Each claim is a statement of its own: several find the sequence behind.
        let store = open(&format!("{url}&group=1")).await;
        acquire(&store, &format!("warm-{}", stores.len())).await;
        stores.push(Arc::new(store));
    }
    let mut given = BTreeSet::new();
    for round in 1..=10 {
        // Far behind the clock, at numbers that no round before had.
        set(&url, &format!("{round} * 1000000")).await;
        let start = Arc::new(Barrier::new(64));
        let tasks: Vec<_> = (0..64)
            .map(|n| {
                let (store, start) = (stores[n % 8].clone(), start.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    let mut fences = Vec::new();
                    for more in 0..10 {
                        let key = format!("{round}-{n}-{more}");
                        fences.push(acquire(&store, &key).await.token.fence);
                    }
                    fences
                })
            })
            .collect();
        for task in tasks {
            for fence in task.await.unwrap() {
                assert!(given.insert(fence), "{fence} twice");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn they_follow_the_clock_when_the_sequence_is_an_old_one() {
    let url = url();
    let store = open(&url).await;
    let before = acquire(&store, "kept").await.token;
    // As after a restore from a backup, or on a standby that lacks the latest claims.
    set(&url, "1000").await;
    let Fence(after) = acquire(&store, "new").await.token.fence;
    assert!(after > before.fence.0 - SECOND, "{after}, {}", before.fence);
    set(&url, "1000").await;
    let kept = identity("kept");
    let released = store.abandon(kept.digest(), &before).await;
    assert_eq!(released.unwrap(), Fenced::Applied);
    assert!(acquire(&store, "kept").await.token.fence > before.fence);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_behind_them_holds_none_back() {
    let url = url();
    let store = open(&url).await;
    let an_hour = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 3600000000";
    set(&url, an_hour).await;
    let id = identity("a-key");
    let mut last = Fence(0);
    for _ in 0..3 {
        let token = acquire(&store, "a-key").await.token;
        assert!(token.fence > last, "{} after {last}", token.fence);
        last = token.fence;
        let (nothing, brief) = (Outcome::void(), Retention::new(Duration::ZERO));
        let done = store.complete(id.digest(), &token, &nothing, brief).await;
        assert_eq!(done.unwrap(), Fenced::Applied);
        assert_eq!(store.purge(10).await.unwrap().removed, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_the_sequence_is_told_to_migrate() {
    let url = url();
    let store = open(&url).await;
    let token = acquire(&store, "kept").await.token;
    assert_eq!(complete(&store, "kept", &token).await, Fenced::Applied);
    store.close().await.unwrap();
    let sequence = format!("{}_fences", named(&url));
    let drop = format!("DROP SEQUENCE {sequence}");
    client(&url).await.batch_execute(&drop).await.unwrap();
    let options = PostgresOptions::from_url(&url).unwrap();
    let error = options.schema(Schema::Create).open().await.unwrap_err();
    assert!(matches!(&error, OpenError::Store(e) if e.kind() == StoreErrorKind::Config));
    let told = error.to_string();
    assert!(told.contains(&sequence), "{told}");
    assert!(told.contains("semel migrate"), "{told}");
    let done = migrate(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!((done.from, done.to), (Some(0), 2));
    let store = open(&url).await;
    assert_eq!(replayed(&store, "kept").await, "kept".as_bytes());
    assert!(acquire(&store, "new").await.token.fence > Fence(SECOND));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_draw_one_is_told_what_to_grant() {
    let server = shared(Kind::Postgres).unwrap();
    let (table, role) = (table(), table());
    open(&format!("{server}?table={table}")).await;
    let admin = client(&server).await;
    let some = format!(
        "CREATE ROLE {role} LOGIN; GRANT SELECT ON {table}_versions TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}"
    );
    admin.batch_execute(&some).await.unwrap();
    let guest = server.replacen("semel@", &format!("{role}@"), 1);
    let options = PostgresOptions::from_url(&format!("{guest}?table={table}")).unwrap();
    let store = options.open().await.unwrap();
    let refused = store.probe().await.unwrap_err();
    let claimed = store.claim(&identity("a-key"), &super::request()).await;
    for error in [refused, claimed.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
        assert!(error.to_string().contains("grant"), "{error}");
    }
    let more = format!("GRANT UPDATE ON SEQUENCE {table}_fences TO {role}");
    admin.batch_execute(&more).await.unwrap();
    store.probe().await.unwrap();
    acquire(&store, "a-key").await;
    // Or the server keeps the role, and what it was granted, for whoever shares it.
    let gone = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    admin.batch_execute(&gone).await.unwrap();
}
