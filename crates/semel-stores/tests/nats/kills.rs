//! The server is killed, and what was removed before stays away.
//!
//! With one message per key it did not: a record that was claimed, completed and then removed was in
//! flight again in 300 of 300, on both of these releases.

use std::time::{Duration, Instant};

use semel::store::{Claim, Fenced, ListQuery, Retention, Store as _, StoreExt as _};
use semel::{Identity, Outcome, StateKind};
use semel_stores::NatsStore;
use semel_testkit::servers::{Nats, NatsRelease, Server as _};

use super::{LONG, acquire, complete, identity, open, request, unique, with_bucket};

/// Records past their retention, each claimed, renewed and completed.
async fn past_retention(store: &NatsStore, what: &str) -> Vec<Identity> {
    let mut past = Vec::new();
    for n in 0..200 {
        let identity = identity(&format!("{what}-{n}"));
        let token = acquire(store, &identity, LONG).await;
        let renewed = store.renew(identity.digest(), &token, LONG * 2).await;
        assert_eq!(renewed.unwrap(), Fenced::Applied);
        let retention = Retention::new(Duration::ZERO);
        let void = Outcome::void();
        let done = store.complete(identity.digest(), &token, &void, retention);
        assert_eq!(done.await.unwrap(), Fenced::Applied);
        past.push(identity);
    }
    past
}

/// Purges until so many records are gone: what came in the instant before a purge is the next one's.
async fn purged(store: &NatsStore, wanted: usize) {
    let (mut removed, started) = (0, Instant::now());
    while removed < wanted {
        assert!(started.elapsed() < Duration::from_secs(20), "{removed}");
        removed += store.purge(1_000).await.unwrap().removed;
    }
    assert_eq!(removed, wanted);
}

async fn none_is_back(store: &NatsStore, past: &[Identity], what: &str) {
    let mut back = 0;
    for identity in past {
        back += usize::from(store.get(identity.digest()).await.unwrap().is_some());
    }
    assert_eq!(back, 0, "of {} came back: {what}", past.len());
    let listed = store.list(&ListQuery::new(StateKind::InFlight)).await;
    assert!(listed.unwrap().entries.is_empty(), "{what}");
}

async fn killed(release: NatsRelease) {
    let server = Nats::start_nodes(release, 1).unwrap();
    let node = server.nodes()[0];
    let url = with_bucket(&server.url(), &unique("killed"));
    let store = open(&url).await;
    // A record that stays: those after it are not removed at the beginning of a file.
    let stays = identity("stays");
    let token = acquire(&store, &stays, LONG).await;
    let _ = complete(&store, &stays, &token).await.unwrap();

    let mut past = past_retention(&store, "purged").await;
    purged(&store, 200).await;
    node.kill();
    node.start().unwrap();
    none_is_back(&open(&url).await, &past, "after a purge").await;

    // In the middle of a purge, by a handle that met half of it before.
    past.extend(past_retention(&store, "half").await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let purging = tokio::spawn(async move { store.purge(1_000).await.map(|_| store) });
    tokio::time::sleep(Duration::from_millis(15)).await;
    node.kill();
    node.start().unwrap();
    let other = open(&url).await;
    none_is_back(&other, &past, "after half a purge").await;
    let _ = purging.await.unwrap();
    let _ = other.purge(1_000).await.unwrap();
    node.kill();
    node.start().unwrap();
    let last = open(&url).await;
    none_is_back(&last, &past, "after the rest of it").await;
    for identity in &past {
        let claim = last.claim(identity, &request(LONG)).await.unwrap();
        let Claim::Acquired(won) = claim else {
            panic!("{claim:?}")
        };
        assert_eq!(won.attempt, 1);
    }
    let kept = last.claim(&stays, &request(LONG)).await.unwrap();
    assert!(matches!(kept, Claim::Completed { .. }), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_purged_stays_away_on_2_9() {
    killed(NatsRelease::Debian).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_purged_stays_away_on_a_current_release() {
    killed(NatsRelease::Current).await;
}
