//! Waiting: pushed within a handle, looked for across handles.

use std::sync::Arc;
use std::time::Instant;

use semel::StoreErrorKind;
use semel::store::{Clear as _, StoreExt as _, Waited};

use super::*;

/// How long after a completion a waiter is told, several times, in order.
async fn delays(completing: &Arc<DynamoDbStore>, waiting: &Arc<DynamoDbStore>) -> Vec<Duration> {
    let mut delays = Vec::new();
    for n in 0..7 {
        let one = identity(&format!("key {n}"));
        let token = acquired(claim(&**completing, &one, &request(LONG, OnLost::Hold)).await).token;
        let (store, digest) = (waiting.clone(), *one.digest());
        let waiter = tokio::spawn(async move {
            let waited = store.wait(&digest, token.fence, LONG).await.unwrap();
            (waited, Instant::now())
        });
        tokio::time::sleep(Duration::from_millis(700)).await;
        applied(
            completing
                .complete(&digest, &token, &outcome(), DAY)
                .await
                .unwrap(),
        );
        let completed = Instant::now();
        let (waited, woken) = waiter.await.unwrap();
        assert_eq!(waited, Waited::Changed);
        delays.push(woken.saturating_duration_since(completed));
    }
    delays.sort();
    delays
}

#[tokio::test]
async fn wakes() {
    let url = url();
    let store = Arc::new(create(options(&url)).await);
    let other = Arc::new(create(options(&url)).await);
    let same = delays(&store, &store).await;
    store.clear(false).await.unwrap();
    let across = delays(&store, &other).await;
    eprintln!(
        "woken after: {:?} in one handle, {:?} across handles (medians)",
        same[3], across[3]
    );
    assert!(across[6] < Duration::from_secs(20));
}

#[tokio::test]
async fn closing_ends_waits() {
    let store = Arc::new(store().await);
    let one = identity("one");
    let token = acquired(claim(&*store, &one, &request(LONG, OnLost::Hold)).await).token;
    let (waiting, digest) = (store.clone(), *one.digest());
    let waiter = tokio::spawn(async move { waiting.wait(&digest, token.fence, LONG).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.close().await.unwrap();
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Closed);
}
