//! Opening, closing, purging, waiting, listing.

use std::sync::Arc;
use std::time::Duration;

use semel::store::{
    Claim, Clear as _, Fenced, ListQuery, Nonce, Refusal, Resolution, Retention, StoreExt as _,
    Verdict, Waited,
};
use semel::{ManualClock, Outcome, StateKind, Store, StoreErrorKind, Timestamp};
use semel_stores::{FileOptions, FileStore};

use super::{acquire, complete, identity, open, replayed, request, settle};

#[tokio::test]
async fn reopening_keeps_every_state() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let running = acquire(&store, "running").await.token;
    let doubtful = acquire(&store, "unknown").await.token;
    let marked = store
        .mark_unknown(identity("unknown").digest(), &doubtful)
        .await;
    assert_eq!(marked.unwrap(), Fenced::Applied);
    settle(&store, "done").await;
    let released = acquire(&store, "released").await.token;
    let abandoned = store
        .abandon(identity("released").digest(), &released)
        .await;
    assert_eq!(abandoned.unwrap(), Fenced::Applied);
    let mut before = Vec::new();
    for key in ["running", "unknown", "done", "released"] {
        before.push(store.get(identity(key).digest()).await.unwrap().unwrap());
    }
    store.close().await.unwrap();
    store.close().await.unwrap();
    let closed = store.get(identity("done").digest()).await.unwrap_err();
    assert_eq!(closed.kind(), StoreErrorKind::Closed);

    // The closed store is still there: closing freed the directory.
    let store = open(directory.path());
    for entry in before {
        assert_eq!(store.get(&entry.label.digest).await.unwrap(), Some(entry));
    }
    assert_eq!(replayed(&store, "done").await, "done");
    complete(&store, "running", &running, b"late").await;
    assert_eq!(replayed(&store, "running").await, "late");
    let resolved = store
        .resolve(
            identity("unknown").digest(),
            &Resolution {
                verdict: Verdict::DidNotHappen,
                by: "me".into(),
                reason: "looked".into(),
                fence: doubtful.fence,
                nonce: Nonce::random().unwrap(),
            },
        )
        .await;
    assert_eq!(resolved.unwrap(), Fenced::Applied);
    let again = acquire(&store, "released").await;
    assert_eq!(again.attempt, 2);
    assert!(again.token.fence > released.fence);
}

#[tokio::test]
async fn neither_time_nor_fences_go_back_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let at = |micros| ManualClock::new(Timestamp::from_micros(micros));
    let with = |clock| FileOptions::new().clock(clock).open(directory.path());
    let store = with(at(2_000_000_000)).unwrap();
    let first = settle(&store, "a").await;
    store.close().await.unwrap();

    let store = with(at(1_000)).unwrap();
    let second = acquire(&store, "b").await.token;
    assert!(second.fence > first.fence);
    let entry = store.get(identity("b").digest()).await.unwrap().unwrap();
    assert_eq!(
        entry.record.claimed_at,
        Timestamp::from_micros(2_000_000_000)
    );
}

#[tokio::test]
async fn a_directory_has_one_store_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let refused = FileOptions::new().open(directory.path()).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    let message = refused.to_string();
    assert!(message.contains("is in use"), "{message}");
    assert!(
        message.contains(&*directory.path().to_string_lossy()),
        "{message}"
    );
    drop(store);
    open(directory.path());
}

fn manual(directory: &std::path::Path) -> (FileStore, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
    let store = FileOptions::new()
        .clock(clock.clone())
        .for_tests()
        .open(directory)
        .unwrap();
    (store, clock)
}

#[tokio::test]
async fn a_purge_removes_what_expired_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let (store, clock) = manual(directory.path());
    let retention = |secs| Retention::new(Duration::from_secs(secs));
    for n in 0..700 {
        let key = format!("k{n}");
        let token = acquire(&store, &key).await.token;
        let keep = if n % 7 == 0 { 100 } else { 10 };
        let fenced = store
            .complete(
                identity(&key).digest(),
                &token,
                &Outcome::void(),
                retention(keep),
            )
            .await;
        assert_eq!(fenced.unwrap(), Fenced::Applied);
    }
    acquire(&store, "open").await;
    assert_eq!(store.purge(usize::MAX).await.unwrap().removed, 0);

    clock.advance(Duration::from_secs(10));
    let first = store.purge(500).await.unwrap();
    assert_eq!((first.removed, first.more), (500, true));
    // One that expires earlier than all that is left comes in behind the purge.
    let token = acquire(&store, "short").await.token;
    let fenced = store
        .complete(
            identity("short").digest(),
            &token,
            &Outcome::void(),
            retention(0),
        )
        .await;
    assert_eq!(fenced.unwrap(), Fenced::Applied);
    let second = store.purge(usize::MAX).await.unwrap();
    assert_eq!((second.removed, second.more), (101, false));

    clock.advance(Duration::from_secs(90));
    store.close().await.unwrap();
    let (store, clock) = manual(directory.path());
    clock.advance(Duration::from_secs(1_000_000));
    assert_eq!(store.purge(usize::MAX).await.unwrap().removed, 100);
    assert_eq!(store.purge(usize::MAX).await.unwrap().removed, 0);
    let open = store.get(identity("open").digest()).await.unwrap();
    assert_eq!(open.unwrap().record.state.kind(), StateKind::InFlight);
    let gone = store.get(identity("k0").digest()).await.unwrap();
    assert_eq!(gone, None);
}

#[tokio::test]
async fn an_expired_record_gives_way_to_a_new_claim() {
    let directory = tempfile::tempdir().unwrap();
    let (store, clock) = manual(directory.path());
    let old = settle(&store, "k").await;
    clock.advance(Duration::from_hours(25));
    assert_eq!(store.get(identity("k").digest()).await.unwrap(), None);
    let new = acquire(&store, "k").await;
    assert_eq!(new.attempt, 1);
    assert!(new.token.fence > old.fence);
    // The old record's place in the index went with it: nothing is purged under the new claim.
    assert_eq!(store.purge(usize::MAX).await.unwrap().removed, 0);
    let stale = store
        .complete(
            identity("k").digest(),
            &old,
            &Outcome::void(),
            Retention::API,
        )
        .await;
    assert_eq!(stale.unwrap(), Fenced::Refused(Refusal::Superseded));
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_completion() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(open(directory.path()));
    let token = acquire(&store, "k").await.token;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            let digest = *identity("k").digest();
            let waited = store.wait(&digest, token.fence, Duration::from_secs(60));
            (waited.await.unwrap(), replayed(&store, "k").await)
        }
    });
    tokio::task::yield_now().await;
    complete(&store, "k", &token, b"answer").await;
    let (waited, body) = waiting.await.unwrap();
    assert_eq!(waited, Waited::Changed);
    assert_eq!(body, "answer");

    let token = acquire(&store, "other").await.token;
    let digest = *identity("other").digest();
    let waited = store
        .wait(&digest, token.fence, Duration::from_millis(5))
        .await;
    assert_eq!(waited.unwrap(), Waited::TimedOut);
    // Closing wakes who waits, too.
    let waiting = store.wait(&digest, token.fence, Duration::from_secs(60));
    let (waited, closed) = tokio::join!(waiting, store.close());
    closed.unwrap();
    assert_eq!(waited.unwrap_err().kind(), StoreErrorKind::Closed);
}

#[tokio::test]
async fn listings_show_each_record_once() {
    let directory = tempfile::tempdir().unwrap();
    let (store, clock) = manual(directory.path());
    for n in 0..30 {
        settle(&store, &format!("done{n}")).await;
        acquire(&store, &format!("open{n}")).await;
    }
    for state in [
        StateKind::InFlight,
        StateKind::Completed,
        StateKind::Released,
    ] {
        let mut query = ListQuery::new(state);
        query.limit = 7;
        let mut seen = Vec::new();
        loop {
            let page = store.list(&query).await.unwrap();
            assert!(page.entries.len() <= 7);
            seen.extend(page.entries.into_iter().map(|e| e.label.digest));
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        assert!(seen.is_sorted_by(|a, b| a < b));
        let expected = if state == StateKind::Released { 0 } else { 30 };
        assert_eq!(seen.len(), expected, "{state:?}");
    }
    store.clear(false).await.unwrap();
    for state in StateKind::ALL {
        assert!(
            store
                .list(&ListQuery::new(state))
                .await
                .unwrap()
                .entries
                .is_empty()
        );
    }
    // Clearing and purging go by the same index.
    assert_eq!(store.purge(10).await.unwrap().removed, 0);
    settle(&store, "done0").await;
    clock.advance(Duration::from_hours(25));
    assert_eq!(store.purge(10).await.unwrap().removed, 1);
}

#[tokio::test]
async fn only_test_stores_are_cleared_without_force() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    settle(&store, "k").await;
    let refused = store.clear(false).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    replayed(&store, "k").await;
    store.clear(true).await.unwrap();
    acquire(&store, "k").await;
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_takes_completions_but_no_claims() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let token = acquire(&store, "k").await.token;
    store.close().await.unwrap();
    let store = FileOptions::new()
        .reserve_bytes(u64::MAX)
        .open(directory.path())
        .unwrap();
    let refused = store.claim(&identity("new"), &request()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Capacity);
    complete(&store, "k", &token, b"x").await;
    let claim = store.claim(&identity("k"), &request()).await.unwrap();
    assert!(matches!(claim, Claim::Completed { .. }));
}

#[tokio::test]
async fn an_outcome_beyond_the_limit_is_refused_and_its_omission_taken() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let token = acquire(&store, "k").await.token;
    let large = Outcome::success(&vec![0; 33 << 20]);
    let digest = *identity("k").digest();
    let refused = store
        .complete(&digest, &token, &large, Retention::API)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::TooLarge);
    let fenced = store
        .complete(&digest, &token, &large.to_omitted(), Retention::API)
        .await;
    assert_eq!(fenced.unwrap(), Fenced::Applied);
}
