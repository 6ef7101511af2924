//! What a step costs: transactions, each with one sync.

use std::sync::Arc;
use std::time::Duration;

use semel::store::{Fenced, ListQuery, StoreExt as _};
use semel::{Outcome, StateKind, Store, StoreErrorKind};

use super::{LONG, acquire, complete, file, foreign, identity, open, options, replayed};

#[tokio::test]
async fn a_step_that_changes_is_one_commit_and_others_are_none() {
    let (_directory, path) = file();
    let store = open(&path);
    let digest = *identity("key").digest();
    let mut before = store.commits();
    let mut counted = |step: &str, wanted: u64| {
        let now = store.commits();
        assert_eq!(now - before, wanted, "commits of {step}");
        before = now;
    };
    let token = acquire(&store, "key").await.token;
    counted("a claim", 1);
    assert_eq!(
        store.renew(&digest, &token, LONG * 2).await.unwrap(),
        Fenced::Applied
    );
    counted("a renewal", 1);
    assert_eq!(
        store.abandon(&digest, &token).await.unwrap(),
        Fenced::Applied
    );
    counted("an abandonment", 1);
    let token = acquire(&store, "key").await.token;
    assert_eq!(
        store.mark_unknown(&digest, &token).await.unwrap(),
        Fenced::Applied
    );
    counted("a claim and a mark", 2);
    complete(&store, "key", &token, b"body").await;
    counted("a completion", 1);
    complete(&store, "key", &token, b"body").await;
    replayed(&store, "key").await;
    store.get(&digest).await.unwrap().unwrap();
    store
        .list(&ListQuery::new(StateKind::Completed))
        .await
        .unwrap();
    let refused = store.abandon(&digest, &token).await.unwrap();
    assert!(matches!(refused, Fenced::Refused(_)));
    assert_eq!(store.purge(10).await.unwrap().removed, 0);
    counted("what changes nothing", 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_that_wait_share_a_commit() {
    let (_directory, path) = file();
    let store = Arc::new(open(&path));
    let lock = foreign(&path);
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { acquire(&store, &format!("key-{n}")).await.token.fence })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    lock.execute_batch("ROLLBACK").unwrap();
    let mut fences = Vec::new();
    for task in tasks {
        fences.push(task.await.unwrap());
    }
    assert_eq!(store.commits(), 1);
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 50, "no two claims have one fence");
}

#[tokio::test]
async fn large_outcomes_have_a_bound() {
    let (_directory, path) = file();
    let store = options()
        .timeout(Duration::from_secs(60))
        .open(&path)
        .unwrap();
    let token = acquire(&store, "key").await.token;
    let body = vec![b'x'; 8 << 20];
    let outcome = Outcome::success(&vec![b'x'; 33 << 20]);
    let digest = *identity("key").digest();
    let retention = semel::store::Retention::new(LONG);
    let error = store
        .complete(&digest, &token, &outcome, retention)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLarge);
    complete(&store, "key", &token, &body).await;
    assert_eq!(replayed(&store, "key").await, body);
}
