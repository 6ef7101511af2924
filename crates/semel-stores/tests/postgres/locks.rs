//! Records that a transaction holds locked for long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::record::Change;
use semel::store::{Fenced, Retention, Store as _, StoreExt as _, Waited};
use semel::transaction::{Isolation, TransactionError, Transactional as _};
use semel::{Outcome, StoreErrorKind};
use semel_testkit::servers::{Postgres, Server as _};
use tokio::time::sleep;

use super::{acquire, client, complete, identity, open, url};

/// A transaction completes a record, and stands there: its client is paused, or its commit waits for
/// a standby. Who waits for the record, and who renews it, holds up nobody else meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn one_locked_record_stalls_nobody_else() {
    // A lock is waited for up to half of this.
    let store = Arc::new(open(&format!("{}&timeout=20s", url())).await);
    let held = acquire(&store, "held").await.token;
    let id = identity("held");
    let mut transaction = store.begin(Isolation::ReadCommitted).await.unwrap();
    let (outcome, retention) = (Outcome::success(b"held"), Retention::ORDER);
    let change = Change::complete(&held, &outcome, retention);
    let done = store.change_in(&mut transaction, id.digest(), &change);
    assert_eq!(done.await.unwrap(), Fenced::Applied);

    let waiting: Vec<_> = (0..32)
        .map(|_| {
            let (store, id) = (store.clone(), id.clone());
            tokio::spawn(async move {
                let patience = Duration::from_secs(60);
                store.wait(id.digest(), held.fence, patience).await
            })
        })
        .collect();
    let renewing: Vec<_> = (0..8)
        .map(|_| {
            let (store, id) = (store.clone(), id.clone());
            tokio::spawn(async move {
                let lease = Duration::from_secs(60);
                store.renew(id.digest(), &held, lease).await
            })
        })
        .collect();
    let others: Vec<_> = (0..200)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let (key, begun) = (format!("other-{n}"), Instant::now());
                let token = acquire(&store, &key).await.token;
                assert_eq!(complete(&store, &key, &token).await, Fenced::Applied);
                begun.elapsed()
            })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for other in others {
        slowest = slowest.max(other.await.unwrap());
    }
    assert!(slowest < Duration::from_secs(8), "{slowest:?}");
    for renewal in renewing {
        let error = renewal.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Contended, "{error}");
    }
    assert!(!waiting.iter().any(|wait| wait.is_finished()));
    store.commit(transaction).await.unwrap();
    for wait in waiting {
        assert_eq!(wait.await.unwrap().unwrap(), Waited::Changed);
    }
}

/// The server answers the COMMIT of a failed transaction with success, and rolls back.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_whose_statement_failed_is_not_committed() {
    let url = url();
    let store = open(&url).await;
    let table = url.split("table=").nth(1).unwrap();
    let other = format!("{table}_effects");
    super::client(&url)
        .await
        .batch_execute(&format!("CREATE TABLE {other} (n int PRIMARY KEY)"))
        .await
        .unwrap();
    let insert = format!("INSERT INTO {other} VALUES (1)");
    let transaction = store.begin(Isolation::ReadCommitted).await.unwrap();
    transaction.batch_execute(&insert).await.unwrap();
    // A handler that looks away from the error.
    transaction.batch_execute(&insert).await.unwrap_err();
    match store.commit(transaction).await {
        Err(TransactionError::NotCommitted(error)) => {
            assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
        }
        told => panic!("{told:?}"),
    }
    // Nor where the record was completed in it before.
    let held = acquire(&store, "held").await.token;
    let (id, outcome) = (identity("held"), Outcome::success(b"held"));
    let mut transaction = store.begin(Isolation::ReadCommitted).await.unwrap();
    transaction.batch_execute(&insert).await.unwrap();
    let retention = Retention::ORDER;
    let change = Change::complete(&held, &outcome, retention);
    let done = store.change_in(&mut transaction, id.digest(), &change);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    transaction.batch_execute(&insert).await.unwrap_err();
    let told = store.commit(transaction).await;
    assert!(
        matches!(told, Err(TransactionError::NotCommitted(_))),
        "{told:?}"
    );
    let transaction = store.begin(Isolation::ReadCommitted).await.unwrap();
    transaction.batch_execute(&insert).await.unwrap();
    store.commit(transaction).await.unwrap();
}

/// Who waits marks the record, and it is completed while that commit, here of 100 ms, is under way: a
/// group waits for it rather than being rolled back and sent one by one.
#[tokio::test(flavor = "multi_thread")]
async fn slow_commits_break_no_group() {
    let server = Postgres::start(&["commit_delay=100000", "commit_siblings=0"]).unwrap();
    let url = format!("{}?timeout=20s", server.url());
    let store = Arc::new(open(&url).await);
    let other = Arc::new(open(&url).await);
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let (store, other) = (store.clone(), other.clone());
            tokio::spawn(async move {
                for round in 0..4 {
                    let key = format!("{n}-{round}");
                    let token = acquire(&store, &key).await.token;
                    let (other, id) = (other.clone(), identity(&key));
                    let waiting = tokio::spawn(async move {
                        let patience = Duration::from_secs(60);
                        other.wait(id.digest(), token.fence, patience).await
                    });
                    sleep(Duration::from_millis(30)).await;
                    assert_eq!(complete(&store, &key, &token).await, Fenced::Applied);
                    assert_eq!(waiting.await.unwrap().unwrap(), Waited::Changed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let rolled_back = "SELECT sum(xact_rollback)::bigint FROM pg_stat_database";
    // The server counts a little later.
    sleep(Duration::from_secs(2)).await;
    let row = super::client(&server.url()).await;
    let row = row.query_one(rolled_back, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}

/// Beside a transaction that looks back, what a purge has removed stays in the index: each slice begins where the one
/// before it ended, and does not go over that again. A record that is due before that place is purged later.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_beside_an_old_snapshot_goes_on_from_where_it_was() {
    const SLICE: usize = 200;
    const SLICES: usize = 20;
    let server = Postgres::start(&["autovacuum=off"]).unwrap();
    let store = open(&format!("{}?table=records", server.url())).await;
    let client = client(&server.url()).await;
    let fill = |count: usize, due: &str| {
        format!(
            "INSERT INTO records (digest, state, fence, nonce, attempt, fingerprint, created_at, claimed_at, \
             lease_until, expires_at, purge_at, scope, operation, key_hint) \
             SELECT sha256(('{due}' || n)::bytea), 'completed', n, '', 1, '', now(), now(), now(), now(), \
             now() - interval '{due}' + n * interval '1 ms', '{{}}', '', '' FROM generate_series(1, {count}) AS n"
        )
    };
    client
        .batch_execute(&fill(SLICE * SLICES, "1 hour"))
        .await
        .unwrap();
    let old = self::client(&server.url()).await;
    let look_back = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM records";
    old.batch_execute(look_back).await.unwrap();

    for slice in 1..=SLICES {
        let purged = store.purge(SLICE).await.unwrap();
        assert_eq!((purged.removed, purged.more), (SLICE, slice < SLICES));
        if slice == SLICES / 2 {
            client.batch_execute(&fill(1, "2 hours")).await.unwrap();
        }
    }
    assert_eq!(store.purge(SLICE).await.unwrap().removed, 1);

    // A session tells its counts when it ends.
    store.close().await.unwrap();
    let others = "SELECT 1 FROM pg_stat_activity WHERE datname IS NOT NULL AND backend_type = 'client backend'";
    let until = Instant::now() + Duration::from_secs(30);
    while client.query(others, &[]).await.unwrap().len() > 2 {
        assert!(Instant::now() < until, "its sessions do not end");
        sleep(Duration::from_millis(20)).await;
    }
    let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname LIKE '%purge'";
    let read: i64 = client.query_one(read, &[]).await.unwrap().get(0);
    let removed = i64::try_from(SLICE * SLICES).unwrap();
    assert!(
        (removed..3 * removed).contains(&read),
        "{read} entries of the index were read"
    );
}
