//! Waiting: pushed within a handle, looked for across handles.

use std::sync::Arc;

use semel::store::Clear as _;

use super::*;
use crate::servers;

#[tokio::test]
async fn wakes() {
    let url = url();
    let store = Arc::new(create(options(&url)).await);
    let other = Arc::new(create(options(&url)).await);
    let pause = Duration::from_millis(700);
    let same = servers::woken(&*store, &store, 7, pause).await;
    store.clear(false).await.unwrap();
    let across = servers::woken(&*store, &other, 7, pause).await;
    eprintln!(
        "woken after: {:?} in one handle, {:?} across handles (medians)",
        same[3], across[3]
    );
    assert!(across[6] < Duration::from_secs(20));
}

#[tokio::test]
async fn closing_ends_waits() {
    servers::closing_ends_waits(store().await).await;
}
