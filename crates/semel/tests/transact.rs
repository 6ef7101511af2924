//! Work in a transaction, on a memory store whose commits do as they are told.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{Guard, OnFailure, Policy, Ran, RunError, TransactOptions};
use semel::memory::{Limits, MemoryStore};
use semel::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Resolution, Result,
    Retention, Token, Waited,
};
use semel::transaction::{Isolation, TransactionError, Transactional};
use semel::{
    Fingerprint, FinishedStep, Identity, IdentityDigest, Key, Outcome, OutcomeKind, Scope,
    StateKind, Store, StoreError, StoreErrorKind,
};

/// What a commit does.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Commits,
    Conflicts,
    Fails,
    /// The answer is lost; the transaction was committed, or was not.
    Lost {
        committed: bool,
    },
}

struct Scripted {
    memory: MemoryStore,
    fates: Mutex<VecDeque<Fate>>,
    largest: usize,
    rolled_back: AtomicU32,
    deaf: std::sync::atomic::AtomicBool,
}

type Completion = (IdentityDigest, Token, Outcome, Retention);

/// What is committed with a transaction, if anything.
struct Work(Option<Completion>);

#[derive(Debug)]
struct Conflict;

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadlock")
    }
}

impl Error for Conflict {}

/// An error of the work's, that may come from a conflict.
#[derive(Debug)]
struct Failure(Option<Conflict>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such article")
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_ref().map(|conflict| conflict as _)
    }
}

fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "as told")
}

impl Transactional for Scripted {
    type Transaction = Work;

    async fn begin(&self, _: Isolation) -> Result<Work, TransactionError> {
        Ok(Work(None))
    }

    async fn complete_in(
        &self,
        work: &mut Work,
        identity: &IdentityDigest,
        token: &Token,
        outcome: &Outcome,
        retention: Retention,
    ) -> Result<Fenced, TransactionError> {
        if outcome.as_bytes().len() > self.largest {
            let large = error(StoreErrorKind::TooLarge);
            return Err(TransactionError::NotCommitted(large));
        }
        work.0 = Some((*identity, *token, outcome.clone(), retention));
        Ok(Fenced::Applied)
    }

    async fn commit(&self, work: Work) -> Result<(), TransactionError> {
        let fate = self.fates.lock().unwrap().pop_front();
        let fate = fate.unwrap_or(Fate::Commits);
        if let (Fate::Commits | Fate::Lost { committed: true }, Some(done)) = (fate, work.0) {
            let (identity, token, outcome, retention) = done;
            let done = self.memory.complete(&identity, &token, &outcome, retention);
            assert_eq!(done.await.unwrap(), Fenced::Applied);
        }
        let told = error(StoreErrorKind::Unknown);
        match fate {
            Fate::Commits => Ok(()),
            Fate::Conflicts => Err(TransactionError::Conflict(told)),
            Fate::Fails => Err(TransactionError::NotCommitted(told)),
            Fate::Lost { .. } => Err(TransactionError::Unknown(told)),
        }
    }

    async fn rollback(&self, _: Work) {
        self.rolled_back.fetch_add(1, Ordering::SeqCst);
    }

    fn is_conflict(error: &(dyn Error + 'static)) -> bool {
        error.is::<Conflict>()
    }

    fn renews_beside(_: Isolation) -> bool {
        true
    }
}

#[rustfmt::skip]
impl Store for Scripted {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.memory.claim(identity, request).await
    }
    async fn renew(&self, identity: &IdentityDigest, token: &Token, lease: Duration) -> Result<Fenced> {
        if self.deaf.load(Ordering::SeqCst) {
            return Err(error(StoreErrorKind::NotApplied));
        }
        self.memory.renew(identity, token, lease).await
    }
    async fn complete(&self, identity: &IdentityDigest, token: &Token, outcome: &Outcome, retention: Retention) -> Result<Fenced> {
        self.memory.complete(identity, token, outcome, retention).await
    }
    async fn keep_step(&self, identity: &IdentityDigest, token: &Token, step: &FinishedStep, kept: usize) -> Result<Fenced> {
        self.memory.keep_step(identity, token, step, kept).await
    }
    async fn abandon(&self, identity: &IdentityDigest, token: &Token) -> Result<Fenced> {
        self.memory.abandon(identity, token).await
    }
    async fn mark_unknown(&self, identity: &IdentityDigest, token: &Token) -> Result<Fenced> {
        self.memory.mark_unknown(identity, token).await
    }
    async fn resolve(&self, identity: &IdentityDigest, resolution: &Resolution) -> Result<Fenced> {
        self.memory.resolve(identity, resolution).await
    }
    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        self.memory.get(identity).await
    }
    async fn list(&self, query: &ListQuery) -> Result<Page> {
        self.memory.list(query).await
    }
    async fn purge(&self, limit: usize) -> Result<Purged> {
        self.memory.purge(limit).await
    }
    async fn wait(&self, identity: &IdentityDigest, fence: Fence, timeout: Duration) -> Result<Waited> {
        self.memory.wait(identity, fence, timeout).await
    }
    async fn probe(&self) -> Result<Probe> {
        self.memory.probe().await
    }
    async fn close(&self) -> Result<()> {
        self.memory.close().await
    }
}

struct Bench {
    store: Arc<Scripted>,
    runs: Arc<AtomicU32>,
    policy: Policy,
    retries: u32,
}

impl Bench {
    fn new(fates: &[Fate]) -> Self {
        let store = Scripted {
            memory: MemoryStore::new(Limits::default()),
            fates: Mutex::new(fates.iter().copied().collect()),
            largest: 1000,
            rolled_back: AtomicU32::new(0),
            deaf: false.into(),
        };
        Self {
            store: Arc::new(store),
            runs: Arc::default(),
            policy: Policy::default(),
            retries: 3,
        }
    }

    async fn run(
        &self,
        work: impl Fn(u32) -> Result<String, Failure> + Clone + Send + 'static,
    ) -> Result<Ran<String>, RunError<Failure>> {
        self.run_as(Some(&identity()), work).await
    }

    async fn run_as(
        &self,
        identity: Option<&Identity>,
        work: impl Fn(u32) -> Result<String, Failure> + Clone + Send + 'static,
    ) -> Result<Ran<String>, RunError<Failure>> {
        let guard = Guard::new(self.store.clone(), self.policy);
        let options = TransactOptions::default().with_retries(self.retries);
        let runs = self.runs.clone();
        let work = move |info: semel::guard::TransactInfo, transaction| {
            let (work, runs) = (work.clone(), runs.clone());
            async move {
                assert_eq!(runs.fetch_add(1, Ordering::SeqCst), info.again);
                drop(transaction);
                work(info.again)
            }
        };
        guard
            .transact_optional(identity, Fingerprint::of(b"asked"), options, work)
            .await
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    async fn state(&self) -> StateKind {
        let entry = self.store.get(identity().digest()).await.unwrap();
        entry.unwrap().record.state.kind()
    }
}

fn identity() -> Identity {
    Identity::new(Scope::new(["tenant"]), "op", Key::new("key").unwrap())
}

fn counted(again: u32) -> Result<String, Failure> {
    Ok(format!("run {again}"))
}

#[tokio::test(start_paused = true)]
async fn conflicts_run_again_within_the_bound() {
    let bench = Bench::new(&[Fate::Conflicts, Fate::Conflicts, Fate::Conflicts]);
    let ran = bench.run(counted).await;
    assert_eq!(ran.unwrap(), Ran::First("run 3".into()));

    let bench = Bench::new(&[Fate::Conflicts; 4]);
    match bench.run(counted).await {
        // Certain: it was rolled back, whatever the answer was.
        Err(RunError::Store { ran: true, source }) => {
            assert_eq!(source.kind(), StoreErrorKind::NotApplied);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (bench.runs(), bench.state().await),
        (4, StateKind::Released)
    );
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_found_behind_the_works_error_and_never_kept() {
    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_on_failure(OnFailure::Keep);
    let once = |again| match again {
        0 => Err(Failure(Some(Conflict))),
        _ => Ok("done".into()),
    };
    assert_eq!(bench.run(once).await.unwrap(), Ran::First("done".into()));
    assert_eq!(bench.store.rolled_back.load(Ordering::SeqCst), 1);

    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_on_failure(OnFailure::Keep);
    let ran = bench.run(|_| Err(Failure(Some(Conflict)))).await;
    assert!(matches!(ran, Err(RunError::Failed(_))));
    assert_eq!(
        (bench.runs(), bench.state().await),
        (4, StateKind::Released)
    );

    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_on_failure(OnFailure::Keep);
    let ran = bench.run(|_| Err(Failure(None))).await;
    assert!(matches!(ran, Err(RunError::Failed(_))));
    assert_eq!(
        (bench.runs(), bench.state().await),
        (1, StateKind::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_what_the_record_says() {
    let bench = Bench::new(&[Fate::Lost { committed: true }]);
    let ran = bench.run(counted).await;
    assert_eq!(ran.unwrap(), Ran::First("run 0".into()));

    let bench = Bench::new(&[Fate::Lost { committed: false }]);
    let ran = bench.run(counted).await;
    assert_eq!(ran.unwrap(), Ran::First("run 1".into()));
    assert_eq!(bench.state().await, StateKind::Completed);

    // Nobody answers: neither run again nor released.
    let bench = Bench::new(&[Fate::Lost { committed: true }]);
    bench.store.deaf.store(true, Ordering::SeqCst);
    match bench.run(counted).await {
        Err(RunError::Store { ran: true, source }) => {
            assert_eq!(source.kind(), StoreErrorKind::Unknown);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (bench.runs(), bench.state().await),
        (1, StateKind::Completed)
    );
    let replayed = bench.run(counted).await;
    assert_eq!(replayed.unwrap(), Ran::Replayed("run 0".into()));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_committed_is_released_and_what_is_too_large_omitted() {
    let bench = Bench::new(&[Fate::Fails]);
    let ran = bench.run(counted).await;
    assert!(
        matches!(ran, Err(RunError::Store { ran: true, .. })),
        "{ran:?}"
    );
    assert_eq!(
        (bench.runs(), bench.state().await),
        (1, StateKind::Released)
    );

    let bench = Bench::new(&[]);
    let large = "x".repeat(2000);
    let ran = bench.run(move |_| Ok(large.clone())).await;
    assert!(matches!(ran, Ok(Ran::First(_))));
    let entry = bench.store.get(identity().digest()).await.unwrap();
    match entry.unwrap().record.state {
        semel::State::Completed(outcome) => assert_eq!(outcome.kind(), OutcomeKind::Omitted),
        other => panic!("{other:?}"),
    }
    assert!(matches!(bench.run(counted).await, Err(RunError::Omitted)));
}

#[tokio::test(start_paused = true)]
async fn r13_without_a_key_a_transaction_is_committed_without_a_record() {
    let plainly = async |fates: &[Fate], work: fn(u32) -> Result<String, Failure>| {
        let bench = Bench::new(fates);
        let ran = bench.run_as(None, work).await;
        assert!(bench.store.memory.is_empty());
        let rolled_back = bench.store.rolled_back.load(Ordering::SeqCst);
        (ran, bench.runs(), rolled_back)
    };
    let (ran, ..) = plainly(&[], counted).await;
    assert_eq!(ran.unwrap(), Ran::Unprotected("run 0".into()));

    // Conflicts run again, in the commit and in the work, within the bound.
    let once = |again| match again {
        0 => Err(Failure(Some(Conflict))),
        _ => counted(again),
    };
    let (ran, _, rolled_back) = plainly(&[Fate::Conflicts], once).await;
    assert_eq!(ran.unwrap(), Ran::Unprotected("run 2".into()));
    assert_eq!(rolled_back, 1);
    let (ran, runs, _) = plainly(&[Fate::Conflicts; 4], counted).await;
    assert!(
        matches!(&ran, Err(RunError::Store { ran: true, source }) if source.kind() == StoreErrorKind::NotApplied)
    );
    assert_eq!(runs, 4);

    let (ran, runs, rolled_back) = plainly(&[], |_| Err(Failure(None))).await;
    assert!(matches!(ran, Err(RunError::Failed(_))));
    assert_eq!((runs, rolled_back), (1, 1));

    // Nobody can tell, and it is not run again.
    let lost = [Fate::Lost { committed: false }];
    let (ran, runs, _) = plainly(&lost, counted).await;
    assert!(
        matches!(&ran, Err(RunError::Store { ran: true, source }) if source.kind() == StoreErrorKind::Unknown)
    );
    assert_eq!(runs, 1);

    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_key_required(true);
    let refused = bench.run_as(None, counted).await;
    assert!(matches!(refused, Err(RunError::KeyRequired)));
    assert_eq!(bench.runs(), 0);
}
