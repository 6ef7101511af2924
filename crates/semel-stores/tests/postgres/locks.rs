//! Records that a transaction holds locked for long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::record::Change;
use semel::store::{Fenced, Retention, Store as _, StoreExt as _, Waited};
use semel::transaction::{Isolation, TransactionError, Transactional as _};
use semel::{Outcome, StoreErrorKind};
use semel_testkit::servers::{Postgres, Server as _};

use super::{acquire, complete, identity, open, url};

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
        assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
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
                    tokio::time::sleep(Duration::from_millis(30)).await;
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
    tokio::time::sleep(Duration::from_secs(2)).await;
    let row = super::client(&server.url()).await;
    let row = row.query_one(rolled_back, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}
