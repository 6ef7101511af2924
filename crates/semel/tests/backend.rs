//! What [`Recorded`] makes of a database that is wrong, slow or about to be closed. What it makes of
//! a right one, `examples/own-store` shows.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use semel::backend::{Backend, Read, Recorded, Row, Scan};
use semel::record::StateKind;
use semel::store::{
    Claim, ClaimRequest, Durability, Fenced, ListQuery, Nonce, Probe, Result, Retention, Waited,
};
use semel::{
    Fingerprint, Identity, IdentityDigest, Key, Outcome, Scope, Store, StoreErrorKind,
    StoreExt as _, Timestamp,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

#[derive(Default)]
struct Database {
    rows: Mutex<BTreeMap<[u8; 32], (u64, Bytes)>>,
    writes: AtomicUsize,
    scanned: AtomicUsize,
    /// All keys are listed from the last to the first.
    backwards: AtomicBool,
    /// A write by somebody else comes before each of ours.
    contended: AtomicBool,
    read: Notify,
    closed: AtomicBool,
}

#[derive(Clone, Default)]
struct Fake(Arc<Database>);

impl Fake {
    fn now(&self) -> Timestamp {
        let latest = self.0.writes.fetch_add(1, Ordering::SeqCst);
        Timestamp::from_micros(1_000_000 + latest as u64)
    }
}

impl Backend for Fake {
    type Version = u64;

    async fn read(&self, key: &IdentityDigest) -> Result<Read<u64>> {
        assert!(!self.0.closed.load(Ordering::SeqCst), "read after close");
        let value = self.0.rows.lock().get(key.as_bytes()).cloned();
        self.0.read.notify_waiters();
        let now = self.now();
        Ok(Read { value, now })
    }

    async fn write_if(
        &self,
        key: &IdentityDigest,
        version: Option<&u64>,
        value: Option<Bytes>,
    ) -> Result<bool> {
        let mut rows = self.0.rows.lock();
        let contended = self.0.contended.load(Ordering::SeqCst);
        if contended || rows.get(key.as_bytes()).map(|(version, _)| version) != version {
            return Ok(false);
        }
        let written = self.now().as_micros();
        match value {
            Some(value) => rows.insert(*key.as_bytes(), (written, value)),
            None => rows.remove(key.as_bytes()),
        };
        Ok(true)
    }

    async fn scan(&self, after: Option<&IdentityDigest>, _: usize) -> Result<Scan<u64>> {
        // Fewer than asked for, as where values are large.
        const FEW: usize = 3;
        let rows = self.0.rows.lock();
        let behind = |key: &[u8; 32]| after.is_none_or(|after| key > after.as_bytes());
        let found = rows.iter().filter(|(key, _)| behind(key));
        let mut rows: Vec<_> = found
            .map(|(key, (version, value))| Row {
                key: IdentityDigest::from_bytes(*key),
                version: *version,
                value: value.clone(),
            })
            .collect();
        if self.0.backwards.load(Ordering::SeqCst) {
            rows.reverse();
        }
        let more = rows.len() > FEW;
        rows.truncate(FEW);
        self.0.scanned.fetch_add(rows.len(), Ordering::SeqCst);
        // Far in the future: what is completed is due.
        let now = Timestamp::from_micros(u64::MAX / 2);
        Ok(Scan { rows, more, now })
    }

    async fn changed(&self, _: &IdentityDigest, _: &u64, _: Duration) {
        std::future::pending::<()>().await;
    }

    async fn probe(&self) -> Result<Probe> {
        Ok(Probe {
            store: "fake",
            durability: Durability::Process,
            warnings: Vec::new(),
        })
    }

    async fn close(&self) {
        sleep(Duration::from_secs(1)).await;
        self.0.closed.store(true, Ordering::SeqCst);
    }
}

fn identity(number: usize) -> Identity {
    let key = Key::new(&format!("key-{number}")).unwrap();
    Identity::new(Scope::anonymous(), "order", key)
}

fn request() -> ClaimRequest {
    ClaimRequest::new(
        Nonce::random().unwrap(),
        Fingerprint::of(b"apples"),
        Duration::from_secs(60),
    )
}

async fn completed(store: &Recorded<Fake>, number: usize) {
    let Claim::Acquired(claimed) = store.claim(&identity(number), &request()).await.unwrap() else {
        panic!("{number} is taken");
    };
    let (id, outcome) = (identity(number), Outcome::void());
    let retention = Retention::new(Duration::from_secs(1));
    let done = store.complete(id.digest(), &claimed.token, &outcome, retention);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
}

#[tokio::test]
async fn a_purge_passes_what_cannot_be_read_and_goes_on_where_it_stopped() {
    let fake = Fake::default();
    let store = Recorded::new(fake.clone());
    for number in 0..10 {
        completed(&store, number).await;
    }
    let first = *fake.0.rows.lock().keys().next().unwrap();
    let damaged = (1, Bytes::from_static(b"\xff"));
    fake.0.rows.lock().insert(first, damaged);
    for (removed, more) in [(4, true), (4, true), (1, false)] {
        let purged = store.purge(4).await.unwrap();
        assert_eq!((purged.removed, purged.more), (removed, more));
    }
    // The damaged one is looked at in the first turn, and once around in the last.
    let scanned = fake.0.scanned.load(Ordering::SeqCst);
    assert!(scanned <= 20, "{scanned}");
    assert_eq!(fake.0.rows.lock().len(), 1);
    let digest = IdentityDigest::from_bytes(first);
    let error = store.get(&digest).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn a_listing_shows_each_record_once_however_few_come_at_a_time() {
    let store = Recorded::new(Fake::default());
    let mut wanted: Vec<_> = (0..10).map(|n| *identity(n).digest()).collect();
    wanted.sort_unstable();
    for number in 0..10 {
        store.claim(&identity(number), &request()).await.unwrap();
    }
    for limit in [1, 2, 3, 100] {
        let mut query = ListQuery::new(StateKind::InFlight);
        query.limit = limit;
        let mut seen = Vec::new();
        loop {
            let page = store.list(&query).await.unwrap();
            assert!(page.entries.len() <= limit);
            seen.extend(page.entries.iter().map(|entry| entry.label.digest));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, wanted, "{limit} at a time");
    }
}

#[tokio::test]
async fn keys_that_meet_or_come_in_another_order_are_damage() {
    let fake = Fake::default();
    let store = Recorded::new(fake.clone());
    completed(&store, 1).await;
    completed(&store, 2).await;
    fake.0.backwards.store(true, Ordering::SeqCst);
    let error = store.purge(10).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);

    let (one, other) = (identity(1), identity(2));
    let row = fake.0.rows.lock()[one.digest().as_bytes()].clone();
    fake.0.rows.lock().insert(*other.digest().as_bytes(), row);
    let error = store.claim(&other, &request()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

/// Steps under way end, waits are ended, and only then the backend is closed, by whichever call comes through.
#[tokio::test(start_paused = true)]
async fn closing_ends_waits_and_tries_and_closes_the_backend_once_nothing_is_under_way() {
    let fake = Fake::default();
    let store = Arc::new(Recorded::new(fake.clone()));
    let id = identity(1);
    let Claim::Acquired(claimed) = store.claim(&id, &request()).await.unwrap() else {
        panic!("it is new");
    };
    let waiting = tokio::spawn({
        let (store, id) = (store.clone(), id.clone());
        async move {
            let wait = store.wait(id.digest(), claimed.token.fence, Duration::MAX);
            wait.await
        }
    });
    fake.0.read.notified().await;
    fake.0.contended.store(true, Ordering::SeqCst);
    let trying = tokio::spawn({
        let (store, id) = (store.clone(), id.clone());
        async move { store.abandon(id.digest(), &claimed.token).await }
    });
    fake.0.read.notified().await;

    let given_up = tokio::time::timeout(Duration::from_millis(100), store.close());
    assert!(given_up.await.is_err(), "the backend takes a second");
    let begun = Instant::now();
    let (one, other) = tokio::join!(store.close(), store.close());
    one.unwrap();
    other.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert!(fake.0.closed.load(Ordering::SeqCst));
    for ended in [
        waiting
            .await
            .unwrap()
            .map(|waited| waited == Waited::Changed),
        trying.await.unwrap().map(|_| false),
    ] {
        assert_eq!(ended.unwrap_err().kind(), StoreErrorKind::Closed);
    }
}
