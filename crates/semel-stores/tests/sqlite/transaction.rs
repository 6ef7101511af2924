//! The operation's writes and its completion in one transaction of the application's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use semel::record::Change;
use semel::store::{
    Acquired, Claim, ClaimRequest, Fenced, OnLost, Refusal, Retention, Token, Waited,
};
use semel::{Outcome, StateKind, Store, StoreErrorKind};
use semel_stores::SqliteStore;

use super::{LONG, acquire, file, foreign, identity, open, replayed, request};

fn app(path: &Path) -> Connection {
    let app = foreign(path);
    app.execute_batch("CREATE TABLE IF NOT EXISTS orders (what TEXT)")
        .unwrap();
    app
}

fn begin(app: &mut Connection) -> Transaction<'_> {
    app.transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap()
}

fn order(store: &SqliteStore, on: &Transaction<'_>, token: &Token) -> Fenced {
    on.execute("INSERT INTO orders VALUES ('tea')", []).unwrap();
    let outcome = Outcome::success(b"ordered");
    let retention = Retention::new(LONG);
    store
        .change_on(
            on,
            identity("key").digest(),
            &Change::complete(token, &outcome, retention),
        )
        .unwrap()
}

fn orders(path: &Path) -> i64 {
    foreign(path)
        .query_row("SELECT count(*) FROM orders", [], |row| row.get(0))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_are_committed_or_neither() {
    let (_directory, path) = file();
    let store = Arc::new(open(&path));
    let mut app = app(&path);
    let token = acquire(&store, "key").await.token;
    let digest = *identity("key").digest();

    let transaction = begin(&mut app);
    assert_eq!(order(&store, &transaction, &token), Fenced::Applied);
    transaction.rollback().unwrap();
    assert_eq!(orders(&path), 0);
    let claim = store.claim(&identity("key"), &request()).await.unwrap();
    assert!(matches!(claim, Claim::InFlight { .. }), "{claim:?}");

    let waiter = {
        let store = store.clone();
        tokio::spawn(async move {
            store
                .wait(&digest, token.fence, Duration::from_secs(30))
                .await
        })
    };
    let transaction = begin(&mut app);
    assert_eq!(order(&store, &transaction, &token), Fenced::Applied);
    assert!(matches!(
        store.claim(&identity("key"), &request()).await,
        Ok(Claim::InFlight { .. })
    ));
    transaction.commit().unwrap();
    assert_eq!(waiter.await.unwrap().unwrap(), Waited::Changed);
    assert_eq!(replayed(&store, "key").await, &b"ordered"[..]);

    // An answer to the commit that was lost: the same again is no second order.
    let transaction = begin(&mut app);
    let again = order(&store, &transaction, &token);
    let settled = Refusal::Settled(StateKind::Completed);
    assert_eq!(again, Fenced::Refused(settled));
    transaction.rollback().unwrap();
    assert_eq!(orders(&path), 1);
}

#[tokio::test]
async fn of_two_attempts_past_the_lease_one_has_its_effect() {
    let (_directory, path) = file();
    let store = open(&path);
    let brief = ClaimRequest {
        lease: Duration::ZERO,
        on_lost: OnLost::Retry,
        ..request()
    };
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let again = ClaimRequest {
            nonce: request().nonce,
            ..brief.clone()
        };
        let claim = store.claim(&identity("key"), &again).await.unwrap();
        let Claim::Acquired(Acquired { token, .. }) = claim else {
            panic!("not acquired: {claim:?}");
        };
        tokens.push(token);
    }
    let mut app = app(&path);
    for (token, wanted) in tokens
        .iter()
        .zip([Fenced::Refused(Refusal::Superseded), Fenced::Applied])
    {
        let transaction = begin(&mut app);
        let answer = order(&store, &transaction, token);
        assert_eq!(answer, wanted);
        match answer {
            Fenced::Applied => transaction.commit().unwrap(),
            Fenced::Refused(_) => transaction.rollback().unwrap(),
        }
    }
    assert_eq!(orders(&path), 1);
}

#[tokio::test]
async fn a_transaction_that_read_before_others_wrote_is_told() {
    let (_directory, path) = file();
    let store = open(&path);
    let mut app = app(&path);
    let token = acquire(&store, "key").await.token;
    let digest = *identity("key").digest();
    let outcome = Outcome::void();
    let retention = Retention::new(LONG);

    let transaction = app.transaction().unwrap();
    let none: i64 = transaction
        .query_row("SELECT count(*) FROM orders", [], |row| row.get(0))
        .unwrap();
    assert_eq!(none, 0);
    acquire(&store, "another").await;
    let error = store.change_on(
        &transaction,
        &digest,
        &Change::complete(&token, &outcome, retention),
    );
    let error = error.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Contended);
    assert!(error.to_string().contains("Immediate"), "{error}");
    transaction.rollback().unwrap();

    store.close().await.unwrap();
    let transaction = begin(&mut app);
    let error = store.change_on(
        &transaction,
        &digest,
        &Change::complete(&token, &outcome, retention),
    );
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Closed);
}

const FILE: &str = "SEMEL_TEST_SQLITE_TRANSACTION";

/// What is killed: orders, and completes in the same transactions. A test only so that the test
/// binary can start itself.
#[tokio::test]
async fn victim() {
    let Ok(path) = std::env::var(FILE) else {
        return;
    };
    let store = open(Path::new(&path));
    let mut app = app(Path::new(&path));
    app.busy_timeout(Duration::from_secs(10)).unwrap();
    for n in 0_u64.. {
        let key = format!("{}-{n}", std::process::id());
        let token = acquire(&store, &key).await.token;
        let transaction = begin(&mut app);
        transaction
            .execute("INSERT INTO orders VALUES (?1)", [&key])
            .unwrap();
        let (identity, outcome) = (identity(&key), Outcome::success(key.as_bytes()));
        let retention = Retention::new(LONG);
        let done = store.change_on(
            &transaction,
            identity.digest(),
            &Change::complete(&token, &outcome, retention),
        );
        assert_eq!(done.unwrap(), Fenced::Applied);
        transaction.commit().unwrap();
    }
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "what was counted")]
async fn a_kill_leaves_no_order_without_its_record_and_no_record_without_its_order() {
    let (_directory, path) = file();
    drop((open(&path), app(&path)));
    for round in 0..10_u64 {
        let before = orders(&path);
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sqlite::transaction::victim", "--nocapture"])
            .env(FILE, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while orders(&path) == before {
            assert!(std::time::Instant::now() < until, "nothing was ordered");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_micros(5_000 + round * 1_733)).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let count = |sql: &str| -> i64 { foreign(&path).query_row(sql, [], |row| row.get(0)).unwrap() };
    let completed = count("SELECT count(*) FROM semel WHERE state = 'completed'");
    let left = count("SELECT count(*) FROM semel WHERE state = 'in-flight'");
    eprintln!("{completed} ordered and completed, {left} left in flight");
    assert_eq!(orders(&path), completed);
    let store = open(&path);
    let keys: Vec<String> = foreign(&path)
        .prepare("SELECT what FROM orders")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for key in keys {
        assert_eq!(replayed(&store, &key).await, key.as_bytes());
    }
}
