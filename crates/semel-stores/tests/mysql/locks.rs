//! Other transactions hold locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use semel::store::{Claim, Fenced, OnLost, Purged, Retention, StoreExt as _};
use semel::{Outcome, Store as _, StoreErrorKind};
use semel_stores::{MysqlOptions, Schema};
use semel_testkit::servers::Server as _;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::task::JoinSet;

use super::{
    LONG, acquire, acquired, ask, claim, common, complete, identity, link, open, own, request,
    table,
};

#[tokio::test]
async fn a_foreign_lock_is_waited_for_and_then_told() {
    let (url, table) = (common().await, table());
    let options = MysqlOptions::from_url(&url).unwrap().table(&table).unwrap();
    let options = options
        .schema(Schema::Create)
        .timeout(Duration::from_secs(4));
    let store = Arc::new(options.open().await.unwrap());
    let token = acquire(&store, "key").await;
    acquire(&store, "other").await;
    let mut foreign = link(&url).await;
    let digest = identity("key").digest().to_string();
    ask(&mut foreign, "BEGIN").await;
    ask(
        &mut foreign,
        format!("SELECT * FROM {table} WHERE digest=x'{digest}' FOR UPDATE"),
    )
    .await;
    let start = Instant::now();
    let late = complete(&store, "key", &token).await.unwrap_err();
    assert_eq!(late.kind(), StoreErrorKind::Contended, "{late}");
    println!("given up after {:?}: {late}", start.elapsed());
    // Duplicates and reads do not wait, and others are not held up.
    let duplicate = claim(&store, "key").await.unwrap();
    assert!(matches!(duplicate, Claim::InFlight { .. }), "{duplicate:?}");
    store.get(identity("key").digest()).await.unwrap();
    acquire(&store, "third").await;

    // A lock that ends in time is waited for.
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { complete(&store, "key", &token).await }
    });
    tokio::time::sleep(Duration::from_millis(1300)).await;
    ask(&mut foreign, "COMMIT").await;
    assert_eq!(waiting.await.unwrap().unwrap(), Fenced::Applied);
}

/// With this setting, the default from MariaDB 11.6.2 on, a claim whose look came before a rival's commit
/// is rolled back (1020).
#[tokio::test(flavor = "multi_thread")]
async fn rivals_are_told_so_with_snapshot_isolation_too() {
    let server = own(&["innodb-snapshot-isolation=ON"]).await;
    let store = Arc::new(open(&server.url()).await);
    for round in 0..20 {
        let mut claims = JoinSet::new();
        for _ in 0..12 {
            let store = store.clone();
            claims.spawn(async move { claim(&store, &format!("key-{round}")).await });
        }
        let mut won = 0;
        while let Some(claim) = claims.join_next().await {
            match claim.unwrap() {
                Ok(Claim::Acquired(_)) => won += 1,
                Ok(Claim::InFlight { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(won, 1);
    }
}

/// Others read the row under a shared lock and then write it: with anybody between them a deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_are_run_again() {
    let server = own(&["innodb-lock-wait-timeout=2"]).await;
    let (url, table) = (server.url(), table());
    let options = MysqlOptions::from_url(&url).unwrap().table(&table).unwrap();
    let options = options
        .schema(Schema::Create)
        .timeout(Duration::from_secs(20));
    let store = Arc::new(options.open().await.unwrap());
    let token = acquire(&store, "key").await;
    let digest = identity("key").digest().to_string();
    let stop = Arc::new(AtomicBool::new(false));
    let mut foreign = JoinSet::new();
    for _ in 0..2 {
        let (stop, url, table, digest) = (stop.clone(), url.clone(), table.clone(), digest.clone());
        foreign.spawn(async move {
            let mut link = link(&url).await;
            while !stop.load(Ordering::SeqCst) {
                let sql = format!(
                    "BEGIN;SELECT state FROM {table} WHERE digest=x'{digest}' LOCK IN SHARE MODE;\
                     DO SLEEP(0.003);\
                     UPDATE {table} SET operation=CONCAT(operation,'') WHERE digest=x'{digest}'"
                );
                let run = sqlx::raw_sql(AssertSqlSafe(sql));
                run.execute(&mut link).await.ok();
                ask(&mut link, "ROLLBACK").await;
            }
        });
    }
    let end = Instant::now() + Duration::from_secs(4);
    let mut steps = 0;
    while Instant::now() < end {
        let renewed = store.renew(identity("key").digest(), &token, LONG).await;
        assert_eq!(renewed.unwrap(), Fenced::Applied);
        claim(&store, "key").await.unwrap();
        steps += 2;
    }
    let done = complete(&store, "key", &token).await.unwrap();
    assert_eq!(done, Fenced::Applied);
    stop.store(true, Ordering::SeqCst);
    foreign.join_all().await;
    let deadlocks = &ask(
        &mut link(&url).await,
        "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'",
    )
    .await[0];
    let deadlocks: String = deadlocks.get(1);
    println!("{steps} steps among {deadlocks} deadlocks");
    assert!(deadlocks.parse::<u64>().unwrap() > 10);
    assert!(steps > 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn purging_goes_on_beside_claims() {
    let store = Arc::new(super::open(&common().await).await);
    let mut filling = JoinSet::new();
    for caller in 0..8 {
        let store = store.clone();
        filling.spawn(async move {
            for number in 0..150 {
                let key = identity(&format!("old-{caller}-{number}"));
                let claim = store.claim(&key, &request(LONG, OnLost::Hold)).await;
                let token = acquired(claim.unwrap()).token;
                let retention = Retention::new(Duration::from_millis(1));
                let outcome = Outcome::success(&[7; 1000]);
                let done = store
                    .complete(key.digest(), &token, &outcome, retention)
                    .await;
                assert_eq!(done.unwrap(), Fenced::Applied);
            }
        });
    }
    filling.join_all().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let claiming = tokio::spawn({
        let store = store.clone();
        async move {
            let mut longest = Duration::ZERO;
            for number in 0..100 {
                let start = Instant::now();
                // Some of them are the very records that are being purged.
                acquire(&store, &format!("old-{}-{number}", number % 8)).await;
                longest = longest.max(start.elapsed());
            }
            longest
        }
    });
    let first = store.purge(1000).await.unwrap();
    println!("first {first:?}");
    let rest = store.purge(5000).await.unwrap();
    println!("longest claim meanwhile: {:?}", claiming.await.unwrap());
    assert_eq!(
        (first, rest.more),
        (
            Purged {
                removed: 1000,
                more: first.more
            },
            false
        )
    );
    // What was claimed anew in time was not there to be purged.
    assert!((100..=200).contains(&rest.removed), "{rest:?}");
    let none = store.purge(10).await.unwrap();
    assert_eq!(
        none,
        Purged {
            removed: 0,
            more: false
        }
    );
}
