//! Locks of others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::{Fenced, Nonce, Resolution, Retention, StoreExt as _, Verdict};
use semel::{Outcome, OutcomeKind, Store, StoreErrorKind};

use super::{LONG, acquire, complete, file, foreign, identity, open, options, replayed, request};

/// Erased bytes are in the log until a purge cuts it, which nobody may be reading.
#[tokio::test]
async fn a_purge_fails_while_erased_bytes_are_in_the_log() {
    let (_directory, path) = file();
    let store = open(&path);
    let token = acquire(&store, "done").await.token;
    complete(&store, "done", &token, b"what-is-erased").await;
    let reader = foreign(&path);
    reader.execute_batch("BEGIN").unwrap();
    let tables = "SELECT count(*) FROM sqlite_schema";
    reader
        .query_row(tables, [], |row| row.get::<_, i64>(0))
        .unwrap();
    let erasure = Resolution {
        verdict: Verdict::Amended {
            outcome: Outcome::builder(OutcomeKind::Omitted).void(),
            retention: Retention::new(Duration::ZERO).with_tombstone(LONG),
        },
        by: "test".into(),
        reason: "asked to".into(),
        fence: token.fence,
        nonce: Nonce::random().unwrap(),
    };
    let erased = store.resolve(identity("done").digest(), &erasure).await;
    assert_eq!(erased.unwrap(), Fenced::Applied);
    let is_there = || {
        let files = std::fs::read_dir(path.parent().unwrap()).unwrap();
        let mut files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
        files.any(|file| file.windows(14).any(|bytes| bytes == b"what-is-erased"))
    };
    let left = store.purge(1).await.unwrap_err();
    assert_eq!(left.kind(), StoreErrorKind::NotApplied);
    assert!(left.to_string().contains("write-ahead log"), "{left}");
    assert!(is_there());
    reader.execute_batch("COMMIT").unwrap();
    store.purge(1).await.unwrap();
    assert!(!is_there());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_held_longer_than_the_time_out_is_told_and_waited_for() {
    let (_directory, path) = file();
    let store = Arc::new(
        options()
            .timeout(Duration::from_millis(600))
            .open(&path)
            .unwrap(),
    );
    let token = acquire(&store, "done").await.token;
    complete(&store, "done", &token, b"done").await;

    let lock = foreign(&path);
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let started = Instant::now();
    let error = store.claim(&identity("new"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Contended, "{error}");
    assert!(
        error
            .to_string()
            .contains("another connection held the lock"),
        "{error}"
    );
    assert!(started.elapsed() >= Duration::from_millis(600));
    assert!(started.elapsed() < Duration::from_secs(5));
    // Reading needs no lock.
    assert_eq!(replayed(&store, "done").await, &b"done"[..]);
    assert!(store.get(identity("new").digest()).await.unwrap().is_none());

    let waiting = {
        let store = store.clone();
        tokio::spawn(async move { acquire(&store, "new").await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    lock.execute_batch("ROLLBACK").unwrap();
    assert_eq!(
        waiting.await.unwrap().attempt,
        1,
        "what timed out was not done"
    );
}

#[tokio::test]
async fn a_locked_file_is_told_when_opening() {
    let (_directory, path) = file();
    drop(open(&path));
    let lock = foreign(&path);
    lock.execute_batch("PRAGMA locking_mode = exclusive; BEGIN EXCLUSIVE; UPDATE semel_clock SET latest = latest; COMMIT")
        .unwrap();
    let error = options()
        .timeout(Duration::from_millis(300))
        .open(&path)
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Contended, "{error}");
    assert!(
        error
            .to_string()
            .contains("another connection held the lock"),
        "{error}"
    );
    drop(lock);
    acquire(&open(&path), "key").await;
}

#[tokio::test]
async fn a_store_under_a_lock_can_be_dropped() {
    let (_directory, path) = file();
    let store = options()
        .timeout(Duration::from_millis(100))
        .open(&path)
        .unwrap();
    let lock = foreign(&path);
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    store.claim(&identity("key"), &request()).await.unwrap_err();
    let (identity, request) = (identity("key"), request());
    let given_up =
        tokio::time::timeout(Duration::from_millis(10), store.claim(&identity, &request));
    given_up.await.unwrap_err();
    let started = Instant::now();
    drop(store);
    assert!(started.elapsed() < Duration::from_secs(5));
}
