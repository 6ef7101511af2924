//! An effect and its completion in one transaction of the store's.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::guard::{AttemptInfo, Done, Guard, Policy, RunError, TransactOptions};
use semel::record::Change;
use semel::store::{Claim, ClaimRequest, Fenced, OnLost, Refusal, Retention, Store as _};
use semel::transaction::{Isolation, Lent, TransactionError, Transactional};
use semel::{Fingerprint, Outcome, StoreErrorKind};
use semel_stores::{Schema, SqliteOptions, SqliteStore, SqliteTransaction};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::{acquire, file, foreign, identity, open, replayed, request};

pub(super) type Tx = Lent<SqliteTransaction>;

pub(super) struct Bench {
    _directory: TempDir,
    pub(super) path: PathBuf,
    pub(super) store: Arc<SqliteStore>,
}

impl Bench {
    pub(super) fn new() -> Self {
        let (directory, path) = file();
        let store = Arc::new(open(&path));
        foreign(&path)
            .execute_batch("CREATE TABLE orders (what TEXT)")
            .unwrap();
        Self {
            _directory: directory,
            path,
            store,
        }
    }

    async fn run<F, W>(
        &self,
        key: &str,
        policy: Policy,
        work: F,
    ) -> Result<Done<String>, RunError<rusqlite::Error>>
    where
        F: FnMut(AttemptInfo, Tx) -> W + Send + 'static,
        W: Future<Output = rusqlite::Result<String>> + Send + 'static,
    {
        let guard = Guard::new(self.store.clone(), policy);
        let options = TransactOptions::default();
        let asked = Fingerprint::of(b"request");
        guard.transact((&identity(key), asked), options, work).await
    }
}

pub(super) fn orders(path: &Path, key: &str) -> i64 {
    let sql = "SELECT count(*) FROM orders WHERE what = ?1";
    foreign(path)
        .query_row(sql, [key], |row| row.get(0))
        .unwrap()
}

pub(super) async fn order(mut tx: Tx, key: &'static str) -> rusqlite::Result<String> {
    tx.call(move |on| on.execute("INSERT INTO orders VALUES (?1)", [key]))
        .await?;
    Ok(key.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_longer_than_its_lease_is_committed() {
    let bench = Bench::new();
    let brief = Policy::default().with_lease(Duration::from_millis(100));
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let ran = bench.run("k", brief, move |_, tx| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {
            sleep(Duration::from_millis(400)).await;
            order(tx, "k").await
        }
    });
    assert_eq!(ran.await.unwrap(), Done::Fresh("k".into()));
    assert_eq!(
        (runs.load(Ordering::Relaxed), orders(&bench.path, "k")),
        (1, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_past_its_lease_commits_nothing() {
    let bench = Bench::new();
    let short = ClaimRequest {
        lease: Duration::ZERO,
        on_lost: OnLost::Retry,
        ..request()
    };
    let claim = bench.store.claim(&identity("k"), &short).await.unwrap();
    let Claim::Acquired(zombie) = claim else {
        panic!("{claim:?}");
    };
    // A fingerprint as `request` has it.
    let ran = bench
        .run("k", Policy::default(), |_, tx| order(tx, "k"))
        .await;
    assert_eq!(ran.unwrap(), Done::Fresh("k".into()));
    let mut tx = bench.store.begin(Isolation::Serializable).await.unwrap();
    tx.call(|on| on.execute("INSERT INTO orders VALUES ('k')", []))
        .await
        .unwrap();
    let outcome = Outcome::success(b"the zombie's");
    let (id, change) = (
        identity("k"),
        Change::complete(&zombie.token, &outcome, Retention::ORDER),
    );
    let done = bench.store.change_in(&mut tx, id.digest(), &change);
    assert_eq!(done.await.unwrap(), Fenced::Refused(Refusal::Superseded));
    bench.store.rollback(tx).await;
    assert_eq!(orders(&bench.path, "k"), 1);
    assert_eq!(replayed(&bench.store, "k").await, "k");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_dropped_is_rolled_back_and_frees_the_lock() {
    let bench = Bench::new();
    for given_up in [false, true] {
        let mut tx = bench.store.begin(Isolation::default()).await.unwrap();
        tx.call(|on| on.execute("INSERT INTO orders VALUES ('k')", []))
            .await
            .unwrap();
        if given_up {
            let slow = tx.call(|_| {
                std::thread::sleep(Duration::from_millis(200));
                Ok::<_, rusqlite::Error>(())
            });
            assert!(timeout(Duration::from_millis(50), slow).await.is_err());
            // Half a call may have been done: nothing more goes.
            assert!(tx.call(|_| Ok::<_, rusqlite::Error>(())).await.is_err());
            let committed = bench.store.commit(tx).await;
            assert!(matches!(committed, Err(TransactionError::NotCommitted(_))));
        } else {
            drop(tx);
        }
        // Others write at once.
        acquire(&bench.store, if given_up { "a" } else { "b" }).await;
        assert_eq!(orders(&bench.path, "k"), 0);
    }
    bench.store.close().await.unwrap();
    let closed = bench.store.begin(Isolation::default()).await.unwrap_err();
    assert_eq!(closed.into_source().kind(), StoreErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_costs_one_commit_for_the_claim_which_does_not_wait_for_the_disk() {
    let bench = Bench::new();
    // The first makes the connection for transactions.
    for key in ["warm", "counted"] {
        let before = commits(&bench.path);
        let ran = bench
            .run(key, Policy::default(), move |_, tx| order(tx, key))
            .await;
        assert_eq!(ran.unwrap(), Done::Fresh(key.to_owned()));
        assert_eq!(commits(&bench.path) - before, 2, "{key}");
    }
    assert_eq!(bench.store.commits(), 0, "syncs of claims");
    // Where a lost attempt is not run again, a crash must not forget that it began.
    let held = Policy::default().with_on_lost(OnLost::Hold);
    let ran = bench.run("held", held, |_, tx| order(tx, "held")).await;
    assert_eq!(ran.unwrap(), Done::Fresh("held".to_owned()));
    assert_eq!(bench.store.commits(), 1, "syncs of claims");
}

/// How many commits are in the write-ahead log: a frame has the file's size where it ends one.
fn commits(path: &Path) -> usize {
    const HEADER: usize = 32;
    const FRAME: usize = 24;
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let log = std::fs::read(log).unwrap();
    let page = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    log[HEADER..]
        .chunks_exact(FRAME + page)
        .filter(|frame| frame[4..8] != [0; 4])
        .count()
}

/// The time for the transaction before it to end, and for the file's lock, is one.
#[tokio::test(start_paused = true)]
async fn a_beginning_takes_no_longer_than_a_call_may() {
    const LIMIT: Duration = Duration::from_secs(20);
    let (_directory, path) = file();
    let options = SqliteOptions::new().schema(Schema::Create).timeout(LIMIT);
    let store = options.open(&path).unwrap();
    let mut first = store.begin(Isolation::Serializable).await.unwrap();
    // The lock goes to another process.
    let ended = first.call(|on| on.execute_batch("ROLLBACK"));
    ended.await.unwrap();
    let other = foreign(&path);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let from = std::time::Instant::now();
    let (begun, ()) = tokio::join!(store.begin(Isolation::Serializable), async {
        sleep(LIMIT - Duration::from_millis(50)).await;
        drop(first);
    });
    let Err(TransactionError::NotCommitted(error)) = begun else {
        panic!("{begun:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Contended, "{error}");
    // What was waited for before has passed at once here, and SQLite waits in earnest.
    assert!(from.elapsed() < LIMIT / 2);
}
