//! A memory store with transactions, whose commits do as they are told.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use semel::memory::{Limits, MemoryStore};
use semel::record::{Change, Update};
use semel::store::{Claim, ClaimRequest, Entry, Fenced, Refusal, Result, Verdict};
use semel::transaction::{Isolation, TransactionError, Transactional};
use semel::{Identity, IdentityDigest, Store, StoreError, StoreErrorKind};

/// What a commit does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    Commits,
    Conflicts,
    Fails,
    /// The answer is lost; the transaction was committed, or was not.
    Lost {
        committed: bool,
    },
}

pub(crate) struct Scripted {
    pub(crate) memory: MemoryStore,
    fates: Mutex<VecDeque<Fate>>,
    largest: usize,
    pub(crate) rolled_back: AtomicU32,
    /// How many claims came.
    pub(crate) claims: AtomicU32,
    /// How many of them a crash of the store may forget.
    pub(crate) forgettable: AtomicU32,
    /// Claims do not arrive.
    pub(crate) unreached: AtomicBool,
    /// Renewals are not answered.
    pub(crate) deaf: AtomicBool,
    /// Reads are not answered.
    pub(crate) blind: AtomicBool,
    /// How long a commit takes.
    pub(crate) commit_takes: Mutex<Duration>,
    /// No transaction begins.
    pub(crate) shut: AtomicBool,
    /// The next change in a transaction fails.
    pub(crate) broken: AtomicBool,
    /// How many transactions were asked for.
    pub(crate) begun: AtomicU32,
    /// What was committed beside the records, in its order.
    pub(crate) ledger: Mutex<Vec<String>>,
    /// What was completed, in its order.
    pub(crate) completed: Mutex<Vec<IdentityDigest>>,
}

impl Scripted {
    /// The first commits have these fates, and all others commit.
    pub(crate) fn new(fates: &[Fate]) -> Self {
        Self {
            memory: MemoryStore::new(Limits::default()),
            fates: Mutex::new(fates.iter().copied().collect()),
            largest: 1000,
            rolled_back: AtomicU32::new(0),
            claims: AtomicU32::new(0),
            forgettable: AtomicU32::new(0),
            unreached: false.into(),
            deaf: false.into(),
            blind: false.into(),
            commit_takes: Mutex::default(),
            shut: false.into(),
            broken: false.into(),
            begun: AtomicU32::new(0),
            ledger: Mutex::default(),
            completed: Mutex::default(),
        }
    }
}

/// What is committed with a transaction: changes of records, and lines of the ledger.
#[derive(Default)]
pub(crate) struct Work {
    changes: Vec<(IdentityDigest, Change)>,
    pub(crate) lines: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Conflict;

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadlock")
    }
}

impl Error for Conflict {}

/// An error of the work's, that may come from a conflict.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Option<Conflict>);

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
        self.begun.fetch_add(1, Ordering::SeqCst);
        if self.shut.load(Ordering::SeqCst) {
            return Err(TransactionError::NotCommitted(error(
                StoreErrorKind::NotApplied,
            )));
        }
        Ok(Work::default())
    }

    async fn change_in(
        &self,
        work: &mut Work,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        if self.broken.swap(false, Ordering::SeqCst) {
            let broken = error(StoreErrorKind::NotApplied);
            return Err(TransactionError::NotCommitted(broken));
        }
        if let Change::Held(token, Update::Complete(outcome, _)) = change {
            if outcome.as_bytes().len() > self.largest {
                let large = error(StoreErrorKind::TooLarge);
                return Err(TransactionError::NotCommitted(large));
            }
            let entry = self.memory.get(identity).await.unwrap();
            if entry.is_none_or(|entry| entry.record.token != *token) {
                return Ok(Refusal::Superseded.into());
            }
            self.completed.lock().unwrap().push(*identity);
        }
        work.changes.push((*identity, change.clone()));
        Ok(Fenced::Applied)
    }

    async fn commit(&self, work: Work) -> Result<(), TransactionError> {
        let takes = *self.commit_takes.lock().unwrap();
        tokio::time::sleep(takes).await;
        let fate = self.fates.lock().unwrap().pop_front();
        let fate = fate.unwrap_or(Fate::Commits);
        if let Fate::Commits | Fate::Lost { committed: true } = fate {
            for (identity, change) in work.changes {
                let done = self.memory.change(&identity, &change).await;
                assert_eq!(done.unwrap(), Fenced::Applied);
            }
            self.ledger.lock().unwrap().extend(work.lines);
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

    fn renews_beside(isolation: Isolation) -> bool {
        isolation == Isolation::ReadCommitted
    }
}

#[rustfmt::skip]
impl Store for Scripted {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.forgettable.fetch_add(request.is_forgettable.into(), Ordering::SeqCst);
        // No answer comes at once.
        tokio::task::yield_now().await;
        if self.unreached.load(Ordering::SeqCst) {
            return Err(error(StoreErrorKind::Unknown));
        }
        self.memory.claim(identity, request).await
    }
    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        match change {
            Change::Held(_, Update::Renew(_)) if self.deaf.load(Ordering::SeqCst) => {
                Err(error(StoreErrorKind::NotApplied))
            }
            Change::Held(_, Update::Complete(outcome, _)) if outcome.as_bytes().len() > self.largest => {
                Err(error(StoreErrorKind::TooLarge))
            }
            Change::Resolve(resolution)
                if matches!(&resolution.verdict, Verdict::Happened { outcome, .. }
                    if outcome.as_bytes().len() > self.largest) =>
            {
                Err(error(StoreErrorKind::TooLarge))
            }
            _ => self.memory.change(identity, change).await,
        }
    }
    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        tokio::task::yield_now().await;
        if self.blind.load(Ordering::SeqCst) {
            return Err(error(StoreErrorKind::NotApplied));
        }
        self.memory.get(identity).await
    }
    semel::delegate!(memory: list, purge, wait, probe, close);
}
