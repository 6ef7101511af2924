//! A file that cannot grow.

use std::sync::Arc;
use std::time::Duration;

use semel::store::{Fenced, Retention};
use semel::{Outcome, Store, StoreErrorKind};

use super::{LONG, acquire, complete, file, foreign, identity, options, replayed, request};

#[tokio::test]
async fn a_full_file_refuses_and_forgets_nothing() {
    let (_directory, path) = file();
    let store = options().max_bytes(256 << 10).open(&path).unwrap();
    let done = acquire(&store, "done").await.token;
    complete(&store, "done", &done, b"done").await;
    let mut tokens = Vec::new();
    let error = loop {
        let key = format!("key-{}", tokens.len());
        match store.claim(&identity(&key), &request()).await {
            Ok(semel::store::Claim::Acquired(acquired)) => tokens.push((key, acquired.token)),
            Ok(other) => panic!("{other:?}"),
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Capacity, "{error}");
    assert!(error.to_string().contains("max_bytes"), "{error}");
    assert!(tokens.len() > 100, "{}", tokens.len());
    assert_eq!(replayed(&store, "done").await.body().unwrap(), &b"done"[..]);

    // Room comes back with what is purged.
    for (key, token) in tokens.drain(..60) {
        let gone = Retention::new(Duration::ZERO);
        let digest = *identity(&key).digest();
        let completed = store
            .complete(&digest, &token, &Outcome::void(), gone)
            .await;
        assert_eq!(completed.unwrap(), Fenced::Applied);
    }
    assert_eq!(store.purge(1_000).await.unwrap().removed, 60);
    acquire(&store, "after").await;
    for (key, _) in &tokens {
        assert!(
            store.get(identity(key).digest()).await.unwrap().is_some(),
            "{key}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_does_not_fit_takes_no_other_with_it() {
    let (_directory, path) = file();
    let store = Arc::new(options().max_bytes(512 << 10).open(&path).unwrap());
    let large = acquire(&store, "large").await.token;
    let lock = foreign(&path);
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let spawn = |n: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            if n == 7 {
                let outcome = Outcome::success(&vec![b'x'; 1 << 20]);
                let digest = *identity("large").digest();
                let retention = Retention::new(LONG);
                let full = store.complete(&digest, &large, &outcome, retention).await;
                assert_eq!(full.unwrap_err().kind(), StoreErrorKind::Capacity);
            } else {
                acquire(&store, &format!("small-{n}")).await;
            }
        })
    };
    let tasks: Vec<_> = (0..20).map(spawn).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    lock.execute_batch("ROLLBACK").unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    // And it is kept without its body.
    complete(&store, "large", &large, b"").await;
}
