//! After a commit that failed: opened again, as from the disk.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use semel::guard::{Asked, Guard, OnStoreError, Policy};
use semel::store::{Claim, Fenced, ListQuery, StoreExt as _, Waited};
use semel::{StateKind, Store, StoreErrorKind};
use semel_stores::{FileOptions, FileStore};
use tokio::time::timeout;

use super::fake::{Fake, Fault, spawn_complete, store};
use super::{acquire, complete, identity, open, replayed, request, settle};

async fn until_open(store: &FileStore) {
    while store.probe().await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn fail(fake: &Fake, fault: Fault) {
    *fake.fault.lock() = fault;
}

/// What was acknowledged is there, what was in the failed commit is unknown until it is asked for
/// again, and everything else was refused as not done.
#[tokio::test]
async fn a_failed_commit_is_unknown_and_the_store_opens_again() {
    for fault in [Fault::Sync, Fault::Write, Fault::Panic] {
        let (fake, store) = store();
        let token = acquire(&store, "k").await.token;
        let other = acquire(&store, "other").await.token;
        let last = settle(&store, "done").await;
        fake.hold(true);
        let first = spawn_complete(&store, "k", token);
        fake.until_syncing().await;
        let queued = tokio::spawn({
            let store = store.clone();
            async move { store.claim(&identity("new"), &request()).await }
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        fail(&fake, fault);
        fake.hold(false);
        let unknown = first.await.unwrap().unwrap_err();
        assert_eq!(unknown.kind(), StoreErrorKind::Unknown);
        assert!(
            unknown.to_string().contains("may have happened"),
            "{unknown}"
        );
        let refused = queued.await.unwrap().unwrap_err();
        let kind = match fault {
            Fault::Write => StoreErrorKind::Capacity,
            _ => StoreErrorKind::NotApplied,
        };
        assert_eq!(refused.kind(), kind, "{fault:?}: {refused}");

        fail(&fake, Fault::None);
        until_open(&store).await;
        assert_eq!(fake.opened.load(Ordering::SeqCst), 2, "{fault:?}");
        assert_eq!(replayed(&store, "done").await, "done");
        // Told again under the same token, whether it arrived or not.
        complete(&store, "k", &token, b"answer").await;
        assert_eq!(replayed(&store, "k").await, "answer");
        complete(&store, "other", &other, b"late").await;
        let new = acquire(&store, "new").await.token;
        assert!(new.fence > last.fence);
    }
}

/// Who runs without a store that is away must not run without one that lost something (R9).
#[tokio::test]
async fn what_is_damaged_is_not_away() {
    let (fake, store) = store();
    settle(&store, "done").await;
    fail(&fake, Fault::Damaged);
    store.claim(&identity("new"), &request()).await.unwrap_err();
    let refusal = || async {
        let again = store.claim(&identity("done"), &request()).await;
        again.unwrap_err()
    };
    while refusal().await.kind() != StoreErrorKind::Corrupt {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let policy = Policy::default().with_on_store_error(OnStoreError::FailOpen);
    let guard = Guard::new(store.clone(), policy);
    let asked = Asked::new(identity("done"), request().fingerprint);
    let refused = guard.begin(&asked).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Corrupt, "{refused}");
    fail(&fake, Fault::None);
    until_open(&store).await;
    assert_eq!(replayed(&store, "done").await, "done");
}

#[tokio::test]
async fn while_it_cannot_be_opened_everything_is_refused_and_says_why() {
    let (fake, store) = store();
    let token = acquire(&store, "k").await.token;
    settle(&store, "done").await;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            let digest = *identity("k").digest();
            store
                .wait(&digest, token.fence, Duration::from_secs(60))
                .await
        }
    });
    tokio::task::yield_now().await;
    fail(&fake, Fault::Full);
    let doubtful = store.claim(&identity("new"), &request()).await.unwrap_err();
    assert_eq!(doubtful.kind(), StoreErrorKind::Unknown);
    let woken = waiting.await.unwrap().unwrap_err();
    let digest = *identity("done").digest();
    for refused in [
        woken,
        store.get(&digest).await.map(drop).unwrap_err(),
        store
            .claim(&identity("done"), &request())
            .await
            .map(drop)
            .unwrap_err(),
        store
            .renew(&digest, &token, Duration::from_secs(1))
            .await
            .map(drop)
            .unwrap_err(),
        store.purge(1).await.map(drop).unwrap_err(),
        store.probe().await.map(drop).unwrap_err(),
        store
            .list(&ListQuery::new(StateKind::InFlight))
            .await
            .map(drop)
            .unwrap_err(),
        store
            .list(&ListQuery::new(StateKind::Completed))
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert_eq!(refused.kind(), StoreErrorKind::Capacity);
        let said = refused.to_string();
        assert!(
            said.contains("opened again by itself") && said.contains("the disk is full"),
            "{said}"
        );
        assert_eq!(said.matches("the disk is full").count(), 1, "{said}");
    }
    fail(&fake, Fault::None);
    until_open(&store).await;
    // The watch goes on as before.
    let store_of_waiter = store.clone();
    let waiting = tokio::spawn(async move {
        let digest = *identity("k").digest();
        let waited = store_of_waiter.wait(&digest, token.fence, Duration::from_secs(60));
        waited.await
    });
    tokio::task::yield_now().await;
    complete(&store, "k", &token, b"answer").await;
    assert_eq!(waiting.await.unwrap().unwrap(), Waited::Changed);
    // The claim that was in the failed commit was undone with it.
    acquire(&store, "new").await;
}

/// A claim that came to the disk with the failed commit belongs to who made it.
#[tokio::test]
async fn a_claim_of_the_failed_commit_is_won_by_its_own_nonce() {
    let (fake, store) = store();
    fail(&fake, Fault::Sync);
    let asked = request();
    let doubtful = store.claim(&identity("k"), &asked).await.unwrap_err();
    assert_eq!(doubtful.kind(), StoreErrorKind::Unknown);
    fail(&fake, Fault::None);
    until_open(&store).await;
    assert!(matches!(
        store.claim(&identity("k"), &request()).await.unwrap(),
        Claim::InFlight { .. }
    ));
    let Claim::Acquired(mine) = store.claim(&identity("k"), &asked).await.unwrap() else {
        panic!("the claim is lost to itself");
    };
    complete(&store, "k", &mine.token, b"answer").await;
}

/// A purge that waits for its answer, or could have it, and that nobody polls any more.
fn begun(store: &FileStore) -> Pin<Box<impl Future + use<'_>>> {
    loop {
        let mut purge = Box::pin(store.purge(10));
        let mut here = Context::from_waker(Waker::noop());
        if purge.as_mut().poll(&mut here).is_pending() {
            return purge;
        }
    }
}

/// A purge that waits, and that nobody polls, holds nothing.
#[tokio::test]
async fn it_opens_again_beside_a_purge_that_nobody_polls() {
    let (fake, store) = store();
    settle(&store, "done").await;
    let _purge = begun(&store);
    *fake.fault.lock() = Fault::Sync;
    let failed = store.claim(&identity("new"), &request()).await;
    assert_eq!(failed.unwrap_err().kind(), StoreErrorKind::Unknown);
    *fake.fault.lock() = Fault::None;
    let opened = timeout(Duration::from_secs(4), until_open(&store));
    opened.await.expect("the purge holds the engine");
}

#[tokio::test]
async fn the_directory_is_free_after_closing_beside_a_purge_that_nobody_polls() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    settle(&store, "k").await;
    let _purge = begun(&store);
    store.close().await.unwrap();
    FileOptions::new().open(directory.path()).unwrap();
}

/// The disk said no, and shows the batch all the same: whatever is built on it afterwards is lost
/// with it, or not at all.
#[tokio::test]
async fn what_a_failed_sync_left_is_followed_by_a_mark_that_is_on_disk() {
    let (fake, store) = store();
    let token = acquire(&store, "k").await.token;
    fail(&fake, Fault::Sync);
    let told = spawn_complete(&store, "k", token).await.unwrap();
    assert_eq!(told.unwrap_err().kind(), StoreErrorKind::Unknown);
    let before = fake.syncs.load(Ordering::SeqCst);
    fail(&fake, Fault::None);
    while store.get(identity("k").digest()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(fake.syncs.load(Ordering::SeqCst) - before, 1);
    assert_eq!(replayed(&store, "k").await, "answer");
}

#[tokio::test]
async fn closing_does_not_wait_for_the_disk() {
    let (fake, store) = store();
    fail(&fake, Fault::Full);
    store.claim(&identity("k"), &request()).await.unwrap_err();
    store.close().await.unwrap();
    let closed = store.probe().await.unwrap_err();
    assert_eq!(closed.kind(), StoreErrorKind::Closed);
    fail(&fake, Fault::None);
    fake.open(FileOptions::new()).unwrap();
}

/// Claims and completions by several tasks while commits fail again and again: what was
/// acknowledged is replayed, each key was won once at a time, and no fence came twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_over_many_failures() {
    let (fake, store) = store();
    let failing = tokio::spawn({
        let fake = fake.clone();
        async move {
            for round in 0..30 {
                let fault = [Fault::Sync, Fault::Write, Fault::Full, Fault::Panic][round % 4];
                fail(&fake, fault);
                tokio::time::sleep(Duration::from_millis(7)).await;
                fail(&fake, Fault::None);
                tokio::time::sleep(Duration::from_millis(70)).await;
            }
        }
    });
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let (store, failing) = (Arc::clone(&store), failing.abort_handle());
            tokio::spawn(async move {
                let mut done = Vec::new();
                for n in 0.. {
                    if failing.is_finished() {
                        break;
                    }
                    let key = format!("{worker}-{n}");
                    done.extend(once(&store, &key).await.map(|fence| (key, fence)));
                }
                done
            })
        })
        .collect();
    let mut fences = std::collections::HashSet::new();
    let mut completed = Vec::new();
    for worker in workers {
        for (key, fence) in worker.await.unwrap() {
            assert!(fences.insert(fence), "{fence:?} came twice");
            completed.push(key);
        }
    }
    failing.await.unwrap();
    until_open(&store).await;
    assert!(fake.opened.load(Ordering::SeqCst) > 5);
    assert!(completed.len() > 100, "{}", completed.len());
    for key in &completed {
        assert_eq!(replayed(&store, key).await, "answer", "{key}");
    }
    store.close().await.unwrap();
    let store = fake.open(FileOptions::new()).unwrap();
    for key in &completed {
        assert_eq!(replayed(&store, key).await, "answer", "{key}");
    }
}

/// Claims and completes, asking again in the same name until it is answered.
async fn once(store: &Arc<FileStore>, key: &str) -> Option<semel::store::Fence> {
    let asked = request();
    let token = loop {
        match store.claim(&identity(key), &asked).await {
            Ok(Claim::Acquired(acquired)) => break acquired.token,
            Ok(other) => panic!("{key}: {other:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    };
    let key = Box::leak(key.to_owned().into_boxed_str());
    loop {
        match spawn_complete(store, key, token).await.unwrap() {
            Ok(Fenced::Applied) => return Some(token.fence),
            Ok(other) => panic!("{key}: {other:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}
