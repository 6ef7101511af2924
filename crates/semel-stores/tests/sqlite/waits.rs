//! Who waits is woken: by this handle at once, by another (as by another process) soon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::Waited;
use semel::{Store, StoreErrorKind};

use super::{acquire, complete, file, identity, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stderr, reason = "what was measured")]
async fn waiters_learn_of_a_completion_soon() {
    let (_directory, path) = file();
    let (here, there) = (open(&path), Arc::new(open(&path)));
    let here = Arc::new(here);
    for (name, waits) in [("the same handle", &here), ("another handle", &there)] {
        let mut took = Vec::new();
        for n in 0..40 {
            let key = format!("{}-{n}", name.len());
            let token = acquire(&here, &key).await.token;
            let (waits, digest) = (waits.clone(), *identity(&key).digest());
            let waiter = tokio::spawn(async move {
                let waited = waits
                    .wait(&digest, token.fence, Duration::from_secs(30))
                    .await;
                assert_eq!(waited.unwrap(), Waited::Changed);
                Instant::now()
            });
            tokio::time::sleep(Duration::from_millis(15 + n % 7)).await;
            complete(&here, &key, &token, b"done").await;
            let done = Instant::now();
            took.push(waiter.await.unwrap().saturating_duration_since(done));
        }
        took.sort_unstable();
        eprintln!(
            "woken through {name}: median {:?}, longest {:?}",
            took[20], took[39]
        );
        assert!(took[20] < Duration::from_secs(1), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_waits() {
    let (_directory, path) = file();
    let store = Arc::new(open(&path));
    let token = acquire(&store, "key").await.token;
    let waiter = {
        let (store, digest) = (store.clone(), *identity("key").digest());
        tokio::spawn(async move {
            store
                .wait(&digest, token.fence, Duration::from_hours(1))
                .await
        })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.close().await.unwrap();
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_are_all_woken() {
    let (_directory, path) = file();
    let (here, there) = (open(&path), Arc::new(open(&path)));
    let token = acquire(&here, "key").await.token;
    let waiters: Vec<_> = (0..500)
        .map(|_| {
            let (there, digest) = (there.clone(), *identity("key").digest());
            tokio::spawn(async move {
                there
                    .wait(&digest, token.fence, Duration::from_secs(60))
                    .await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    complete(&here, "key", &token, b"done").await;
    let started = Instant::now();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap(), Waited::Changed);
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}
