//! What only shows with an engine that can be held, failed and counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use semel::store::{Claim, Clear as _, ListQuery, Retention, StoreExt as _};
use semel::{ManualClock, Outcome, StateKind, Store, StoreErrorKind, Timestamp};
use semel_stores::FileOptions;

use super::fake::{Fake, spawn_complete, store};
use super::{LONG, acquire, identity, replayed, request, settle};

#[tokio::test]
async fn nobody_sees_what_is_not_on_disk() {
    let (fake, store) = store();
    let token = acquire(&store, "k").await.token;
    fake.hold(true);
    let completing = spawn_complete(&store, "k", token);
    fake.until_syncing().await;
    let digest = *identity("k").digest();
    // The engine shows the completion already; it must not be seen.
    let seen = store.get(&digest).await.unwrap().unwrap();
    assert_eq!(seen.record.state.kind(), StateKind::InFlight);
    assert!(matches!(
        store.claim(&identity("k"), &request()).await.unwrap(),
        Claim::InFlight { .. }
    ));
    // A listing reads the engine: it waits until it knows.
    let listing = tokio::spawn({
        let store = store.clone();
        async move { store.list(&ListQuery::new(StateKind::Completed)).await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!completing.is_finished() && !listing.is_finished());
    fake.hold(false);
    assert_eq!(
        completing.await.unwrap().unwrap(),
        semel::store::Fenced::Applied
    );
    assert_eq!(listing.await.unwrap().unwrap().entries.len(), 1);
    assert_eq!(replayed(&store, "k").await, "answer");
}

#[tokio::test]
async fn a_reader_of_an_uncommitted_settled_record_waits_for_the_sync() {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1)));
    let fake = Arc::new(Fake::default());
    let options = FileOptions::new().clock(clock.clone());
    let store = Arc::new(fake.open(options).unwrap());
    settle(&store, "k").await;
    clock.advance(Duration::from_hours(25));
    fake.hold(true);
    // A purge removes the record from the engine; until that is on disk, its absence is not.
    let purging = tokio::spawn({
        let store = store.clone();
        async move { store.purge(10).await }
    });
    fake.until_syncing().await;
    let claiming = tokio::spawn({
        let store = store.clone();
        async move { store.claim(&identity("k"), &request()).await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!claiming.is_finished());
    fake.hold(false);
    assert_eq!(purging.await.unwrap().unwrap().removed, 1);
    assert!(matches!(
        claiming.await.unwrap().unwrap(),
        Claim::Acquired(_)
    ));
}

#[tokio::test]
async fn concurrent_steps_share_a_sync_and_one_claim_wins() {
    let (fake, store) = store();
    fake.hold(true);
    let first = tokio::spawn({
        let store = store.clone();
        async move { acquire(&store, "first").await }
    });
    fake.until_syncing().await;
    let before = fake.syncs.load(Ordering::SeqCst);
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let key = format!("k{}", n / 2);
                store.claim(&identity(&key), &request()).await.unwrap()
            })
        })
        .collect();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    fake.hold(false);
    first.await.unwrap();
    let mut won = 0;
    for task in tasks {
        match task.await.unwrap() {
            Claim::Acquired(_) => won += 1,
            Claim::InFlight { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(won, 32, "of two claims on a key one wins");
    let syncs = fake.syncs.load(Ordering::SeqCst) - before;
    assert_eq!(syncs, 2, "the first step's, and one for the 64 that waited");
}

#[tokio::test]
async fn steps_of_one_group_build_on_each_other() {
    let (fake, store) = store();
    let token = acquire(&store, "k").await.token;
    fake.hold(true);
    let other = tokio::spawn({
        let store = store.clone();
        async move { acquire(&store, "other").await }
    });
    fake.until_syncing().await;
    // All in the next group, in this order.
    let digest = *identity("k").digest();
    let (again, request) = (identity("k"), request());
    let steps = async {
        let outcome = Outcome::success(b"answer");
        tokio::join!(
            store.renew(&digest, &token, LONG * 2),
            store.abandon(&digest, &token),
            store.claim(&again, &request),
            store.complete(&digest, &token, &outcome, Retention::ORDER),
            async { fake.hold(false) },
        )
    };
    let (renewed, abandoned, claimed, stale, ()) = steps.await;
    assert_eq!(renewed.unwrap(), semel::store::Fenced::Applied);
    assert_eq!(abandoned.unwrap(), semel::store::Fenced::Applied);
    // This claim saw the durable state before it was queued, or queued: never the stale token.
    match claimed.unwrap() {
        Claim::InFlight { fence, .. } => assert_eq!(fence, token.fence),
        Claim::Acquired(acquired) => assert_eq!(acquired.attempt, 2),
        other => panic!("{other:?}"),
    }
    assert!(matches!(stale.unwrap(), semel::store::Fenced::Refused(_)));
    other.await.unwrap();
}

#[tokio::test]
async fn old_marks_go_once_the_log_is_past_them() {
    let (fake, store) = store();
    for n in 0..200 {
        settle(&store, &format!("k{n}")).await;
    }
    let marks = |fake: &Fake| fake.map.lock().range(b"g".to_vec()..b"h".to_vec()).count();
    assert!(marks(&fake) < 50, "{} marks", marks(&fake));
    store.close().await.unwrap();
    drop(store);
    fake.open(FileOptions::new()).unwrap();
    // One that is missing is told.
    let key = {
        let map = fake.map.lock();
        let mut marks = map.range(b"g".to_vec()..b"h".to_vec());
        marks.nth(2).unwrap().0.clone()
    };
    fake.map.lock().remove(&key);
    let refused = fake.open(FileOptions::new()).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Corrupt);
    assert!(
        refused.to_string().contains("lost acknowledged records"),
        "{refused}"
    );
}

/// It goes slice by slice, with what others ask for in between.
#[tokio::test]
async fn a_clear_removes_more_than_a_slice() {
    let (fake, store) = store();
    for n in 0..1100 {
        settle(&store, &format!("k{n}")).await;
    }
    acquire(&store, "open").await;
    let purging = async {
        for _ in 0..5 {
            assert_eq!(store.purge(10).await.unwrap().removed, 0);
        }
    };
    let (cleared, ()) = tokio::join!(store.clear(true), purging);
    cleared.unwrap();
    let left: Vec<u8> = fake.map.lock().keys().map(|key| key[0]).collect();
    assert!(left.iter().all(|kind| b"fg".contains(kind)), "{left:?}");
    acquire(&store, "open").await;
}

#[tokio::test]
async fn a_layout_that_is_not_known_is_refused() {
    let fake = Arc::new(Fake::default());
    fake.map.lock().insert("f".into(), Bytes::from_static(&[9]));
    let refused = fake.open(FileOptions::new()).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Corrupt);
    let fake = Arc::new(Fake::default());
    fake.map
        .lock()
        .insert("somebody else's".into(), Bytes::new());
    assert!(fake.open(FileOptions::new()).is_err());
}

/// The record that ends a page belongs to the next one.
#[tokio::test]
async fn a_page_before_a_damaged_record_is_listed() {
    let (fake, store) = store();
    let mut digests = Vec::new();
    for n in 0..6 {
        let key = format!("k{n}");
        settle(&store, &key).await;
        digests.push(*identity(&key).digest());
    }
    digests.sort_unstable();
    let key = [b"s", &digests[3].as_bytes()[..]].concat();
    let damaged = Bytes::from_static(b"damaged");
    assert!(fake.map.lock().insert(key, damaged).is_some());
    let mut query = ListQuery::new(StateKind::Completed);
    query.limit = 3;
    let page = store.list(&query).await.unwrap();
    assert_eq!(page.entries.len(), 3);
    query.after = page.next;
    let next = store.list(&query).await.unwrap_err();
    assert_eq!(next.kind(), StoreErrorKind::Corrupt);
}
