//! How soon who waits is woken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::{Store as _, Waited};
use semel_testkit::servers::{Nats, Server as _};

use super::{LONG, acquire, complete, identity, open, unique, with_bucket};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_by_another_handle_wakes() {
    let server = Nats::start().unwrap();
    let url = with_bucket(&server.url(), &unique("wake"));
    let (store, other) = (open(&url).await, Arc::new(open(&url).await));
    let mut took = Vec::new();
    for round in 0..41 {
        let identity = identity(&format!("wake-{round}"));
        let token = acquire(&store, &identity, LONG).await;
        let waiting = {
            let (other, identity) = (other.clone(), identity.clone());
            tokio::spawn(async move {
                let waited = other
                    .wait(identity.digest(), token.fence, Duration::from_secs(20))
                    .await;
                (waited.unwrap(), Instant::now())
            })
        };
        tokio::time::sleep(Duration::from_millis(20)).await;
        let _ = complete(&store, &identity, &token).await.unwrap();
        let done = Instant::now();
        let (waited, woken) = waiting.await.unwrap();
        assert_eq!(waited, Waited::Changed);
        took.push(woken.saturating_duration_since(done));
    }
    took.sort_unstable();
    println!(
        "woken after the completion's answer: median {:?}, longest {:?}",
        took[20], took[40]
    );
    // By the push, not by the look that comes after half a second.
    assert!(
        took[20] < Duration::from_millis(300),
        "median {:?}",
        took[20]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_waits() {
    let server = Nats::start().unwrap();
    let url = with_bucket(&server.url(), &unique("close"));
    let store = Arc::new(open(&url).await);
    let identity = identity("close");
    let token = acquire(&store, &identity, LONG).await;
    let waiting = {
        let (store, identity) = (store.clone(), identity.clone());
        tokio::spawn(async move { store.wait(identity.digest(), token.fence, LONG).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    store.close().await.unwrap();
    let waited = waiting.await.unwrap();
    assert_eq!(waited.unwrap_err().kind(), semel::StoreErrorKind::Closed);
}
