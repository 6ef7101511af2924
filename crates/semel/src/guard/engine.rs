//! One transaction, run again after conflicts: the work's writes, and what is recorded with them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::sleep;

use super::asked::Effects;
use super::attempt::{Claimed, catch_panic};
use super::settle::signal_of;
use super::{AttemptInfo, Guard, Held, Seen, Signal};
use crate::backoff::Backoff;
use crate::record::Change;
use crate::store::{Fenced, Refusal, Retention, StoreExt as _};
use crate::sync::Mutex;
use crate::transaction::{Isolation, Lent, Loan, Sealing, TransactionError, Transactional};
use crate::{FinishedStep, Outcome, Progress, StateKind, StoreError, StoreErrorKind};

/// How a transaction is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactOptions {
    isolation: Isolation,
    retries: u32,
}

/// Before work is run again.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

impl TransactOptions {
    /// How strictly it is kept apart from others. [`Isolation::ReadCommitted`] unless set.
    #[must_use]
    pub const fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// How often the work is run again after a deadlock or a serialization failure. 8 unless set.
    #[must_use]
    pub const fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }
}

impl Default for TransactOptions {
    fn default() -> Self {
        Self {
            isolation: Isolation::default(),
            retries: 8,
        }
    }
}

/// What is recorded in a transaction, beside the writes of the work.
pub(crate) enum Records {
    /// The outcome of each of its attempts, the same for all.
    Outcome(Outcome, Option<Retention>),
    /// A finished step of its attempt, behind those kept before.
    Step(FinishedStep, Progress),
}

/// Work in one transaction that is recorded for these attempts. Without protection nothing is.
pub(crate) struct Transaction<S> {
    pub(crate) guard: Guard<S>,
    pub(crate) attempts: Vec<Arc<Claimed<S>>>,
    pub(crate) options: TransactOptions,
}

/// What became of work in a transaction.
#[derive(Debug)]
pub enum Transacted<T, E> {
    /// Its effects and its outcome are committed.
    Committed(T),
    /// It never began the transaction.
    NotTaken(T),
    /// Rolled back, because there is nothing to record with it.
    RolledBack(T),
    /// Rolled back: another attempt took the place of the one at this place.
    Superseded(usize),
    /// Rolled back after the work's own error.
    Failed {
        /// The error.
        error: E,
        /// It comes from a conflict, and the work ran as often as it may.
        conflict: bool,
    },
    /// Rolled back after a panic.
    Panicked(Box<dyn Any + Send>),
    /// The work kept the transaction, or could not begin it: nothing is committed.
    Kept,
    /// The database did not commit it.
    NotCommitted {
        /// What the database said.
        source: StoreError,
        /// It was in conflict with others, and the work ran as often as it may.
        conflict: bool,
    },
    /// Nobody knows whether it is committed, or will be. Not any more once the attempt is given up.
    Unknown(StoreError),
}

/// The transaction that work is offered. It may be begun once.
pub struct Opening<S: Transactional>(Arc<Offer<S>>);

struct Offer<S: Transactional> {
    transaction: Arc<Transaction<S>>,
    // None once the work has ended.
    taking: Mutex<Option<Taking<S::Transaction>>>,
}

/// How far the work took the transaction.
struct Taking<T> {
    is_asked_for: bool,
    // Some once it is begun.
    loan: Option<Loan<T>>,
    // Renewals that wait for the transaction's end.
    paused: Vec<OwnedMutexGuard<()>>,
}

impl<S: Transactional> Opening<S> {
    /// Begins it for work that needs it from the start, and is called again by later tries.
    pub(crate) async fn lend<A, W: Future>(
        &self,
        work: &Mutex<impl FnMut(A, Lent<S::Transaction>) -> W>,
        about: A,
    ) -> Result<W::Output, StoreError> {
        let begun = self.begin().await.map_err(TransactionError::into_source)?;
        let working = (work.lock())(about, begun);
        Ok(working.await)
    }

    /// Begins it. It is given back by dropping it before the work ends: one that is kept longer is
    /// not committed. Where renewals do not go with such a transaction, there are none until it ends:
    /// the lease is to be longer than the transaction.
    ///
    /// Before it, where it is the work's choice ([`super::Asked::transaction_offered`]) and the
    /// policy leaves open what becomes of a lost attempt, the record is marked: one statement more.
    ///
    /// # Errors
    /// The store's; and where it was begun before, or the work has ended. Nothing was done.
    pub async fn begin(&self) -> Result<Lent<S::Transaction>, TransactionError> {
        let refused = |why: &str| {
            TransactionError::NotCommitted(StoreError::new(StoreErrorKind::NotApplied, why))
        };
        let Offer {
            transaction,
            taking,
        } = &*self.0;
        match &mut *taking.lock() {
            Some(taking) if !taking.is_asked_for => taking.is_asked_for = true,
            _ => return Err(refused("the transaction was begun before")),
        }
        let isolation = transaction.options.isolation;
        for claimed in &transaction.attempts {
            if claimed.effects == Effects::Offered && claimed.guard.policy.on_lost.is_none() {
                let marked = claimed.mark_in_transaction().await;
                marked.map_err(TransactionError::NotCommitted)?;
            }
            if !S::renews_beside(isolation) {
                let paused = claimed.lease.pause().await;
                if let Some(taking) = &mut *taking.lock() {
                    taking.paused.push(paused);
                }
            }
        }
        let begun = transaction.guard.store().begin(isolation).await;
        let begun = begun.inspect_err(|_| transaction.store_failed())?;
        match &mut *taking.lock() {
            Some(taking) => {
                let (lent, loan) = Lent::new(begun);
                taking.loan = Some(loan);
                Ok(lent)
            }
            None => Err(refused("the work has ended")),
        }
    }
}

impl<S: Transactional> Transaction<S> {
    /// For one attempt.
    pub(super) fn of(claimed: &Arc<Claimed<S>>, options: TransactOptions) -> Self {
        let protected = claimed.token.is_some();
        Self {
            guard: claimed.guard.clone(),
            attempts: protected.then(|| Arc::clone(claimed)).into_iter().collect(),
            options,
        }
    }

    /// Runs `work` until it is committed, or fails for good. It is told how often it ran before.
    /// Where there is nothing to record of its answer, all is rolled back.
    pub(crate) async fn run<T, E, W: Future<Output = Result<T, E>>>(
        self,
        mut work: impl FnMut(u32, Opening<S>) -> W,
        is_conflict: impl Fn(&E) -> bool,
        records: impl Fn(&T) -> Option<Records>,
    ) -> Transacted<T, E> {
        let this = Arc::new(self);
        let mut backoff = Backoff::new(FIRST_PAUSE, 64 * FIRST_PAUSE);
        let mut retry = 0;
        loop {
            let offer = Arc::new(Offer {
                transaction: Arc::clone(&this),
                taking: Mutex::new(Some(Taking {
                    is_asked_for: false,
                    loan: None,
                    paused: Vec::new(),
                })),
            });
            let working = work(retry, Opening(Arc::clone(&offer)));
            #[cfg(feature = "tracing")]
            let working = tracing::Instrument::instrument(working, this.span());
            let ran = catch_panic(working).await;
            // From now on it can no longer be taken.
            let taken = offer.taking.lock().take();
            let (loan, paused) =
                taken.map_or((None, Vec::new()), |taken| (taken.loan, taken.paused));
            let begun = loan.is_some();
            for claimed in &this.attempts {
                claimed.steps.lock().took_transaction = begun;
            }
            let records = match &ran {
                Ok(Ok(value)) if begun => records(value),
                _ => None,
            };
            let sealed = match (loan.and_then(Loan::take_back), &records) {
                (Some(transaction), Some(records)) => Some(this.seal(transaction, records).await),
                (Some(transaction), None) => {
                    this.guard.store().rollback(transaction).await;
                    None
                }
                (None, _) => None,
            };
            drop(paused);
            let ended = match (ran, sealed) {
                (Ok(Ok(value)), Some(Ok(None))) => Transacted::Committed(value),
                (Ok(_), Some(Ok(Some(place)))) => {
                    this.attempts[place].signal(Signal::Stale);
                    Transacted::Superseded(place)
                }
                (Ok(_), Some(Err(error))) => this.not_committed(error),
                (Ok(Ok(_)), None) if records.is_some() => Transacted::Kept,
                (Ok(Ok(value)), None) if begun => Transacted::RolledBack(value),
                (Ok(Ok(value)), _) => Transacted::NotTaken(value),
                (Ok(Err(error)), _) => {
                    let conflict = begun && is_conflict(&error);
                    Transacted::Failed { error, conflict }
                }
                (Err(panic), _) => Transacted::Panicked(panic),
            };
            match ended {
                Transacted::Failed { conflict: true, .. }
                | Transacted::NotCommitted { conflict: true, .. }
                    if retry < this.options.retries => {}
                ended => return ended,
            }
            sleep(backoff.pause()).await;
            retry += 1;
        }
    }

    /// Records what there is to record in the transaction, and commits it.
    ///
    /// Attempts are written in the order of their digests: transactions that complete some of the
    /// same records, as those of an attempt and of a zombie do, then wait for each other instead of
    /// locking each other out.
    ///
    /// Committed, or the place of an attempt that another one took.
    async fn seal(
        &self,
        transaction: S::Transaction,
        records: &Records,
    ) -> Result<Option<usize>, TransactionError> {
        let mut ordered: Vec<_> = self.attempts.iter().enumerate().collect();
        ordered.sort_unstable_by_key(|(_, claimed)| claimed.identity);
        let mut changes = Vec::with_capacity(ordered.len());
        for (_, claimed) in &ordered {
            if S::renews_beside(self.options.isolation) {
                // Whatever the answer is, the statement decides, which is fenced.
                claimed.ensure_held().await.ok();
            }
            changes.extend(
                records
                    .change(claimed)
                    .map(|change| (claimed.identity, change)),
            );
        }
        let (sealed, omitted) = match self.guard.store().seal(transaction, &changes).await {
            Ok(Sealing::Committed { omitted }) => (Ok(None), omitted),
            Ok(Sealing::Refused(refused)) => (Ok(Some(ordered[refused].0)), Vec::new()),
            Err(TransactionError::Unknown(error)) => {
                self.store_failed();
                let sealed = match ordered.first() {
                    // One record tells of all: they are committed together.
                    Some((place, claimed)) => match records.read_back(claimed).await {
                        Ok(Found::Committed) => Ok(None),
                        Ok(Found::Superseded) => Ok(Some(*place)),
                        Ok(Found::Nothing) => Err(TransactionError::Unknown(error)),
                        Err(unread) => Err(TransactionError::Unknown(unread)),
                    },
                    None => Err(TransactionError::Unknown(error)),
                };
                (sealed, Vec::new())
            }
            Err(error) => (Err(error), Vec::new()),
        };
        if let Ok(None) = sealed {
            for (place, (_, claimed)) in ordered.iter().enumerate() {
                claimed.signal(match omitted.contains(&place) {
                    true => Signal::Omitted,
                    false => records.signal(),
                });
            }
        }
        sealed
    }

    /// One failure is one event, which names its attempt where there are not several.
    fn store_failed(&self) {
        match &*self.attempts {
            [claimed] => claimed.signal(Signal::StoreError),
            _ => self.guard.tell(&Seen::new(Signal::StoreError)),
        }
    }

    #[cfg(feature = "tracing")]
    fn span(&self) -> tracing::Span {
        match &*self.attempts {
            [claimed] => claimed.span.clone(),
            _ => tracing::Span::none(),
        }
    }

    fn not_committed<T, E>(&self, error: TransactionError) -> Transacted<T, E> {
        let conflict = matches!(error, TransactionError::Conflict(_));
        match error {
            TransactionError::Unknown(error) => {
                let what = "whether the transaction was committed is not known";
                Transacted::Unknown(
                    StoreError::new(StoreErrorKind::Unknown, what).with_source(error),
                )
            }
            // The commit was not sent, or was refused: whatever its answer was, nothing is committed.
            TransactionError::Conflict(error) | TransactionError::NotCommitted(error) => {
                if !conflict {
                    self.store_failed();
                }
                let source = error.known_not_applied();
                Transacted::NotCommitted { source, conflict }
            }
        }
    }
}

impl Records {
    /// What the transaction writes last, fenced by the attempt's token; none without protection.
    fn change<S: Transactional>(&self, claimed: &Claimed<S>) -> Option<Change> {
        let token = claimed.token.as_ref()?;
        Some(match self {
            Self::Step(step, kept) => Change::keep_step(token, step, kept.as_bytes().len()),
            Self::Outcome(outcome, retention) => {
                let retention = claimed.guard.policy.kept_for(*retention);
                Change::complete(token, outcome, retention)
            }
        })
    }

    /// What is said of an attempt whose change is committed as it is.
    fn signal(&self) -> Signal {
        match self {
            Self::Step(..) => Signal::StepKept,
            Self::Outcome(outcome, _) => signal_of(outcome.kind()),
        }
    }

    /// Asks a record what became of the transaction, by a renewal: a write waits for a commit that has begun.
    async fn read_back<S: Transactional>(&self, claimed: &Claimed<S>) -> Result<Found, StoreError> {
        let Some(token) = &claimed.token else {
            return Ok(Found::Nothing);
        };
        let (store, identity, policy) = (claimed.store(), &claimed.identity, &claimed.guard.policy);
        let renewed = claimed.insist(|| store.renew(identity, token, policy.lease));
        Ok(match (renewed.await?, self) {
            // Our token is proof that it was this attempt.
            (Fenced::Refused(Refusal::Settled(StateKind::Completed)), _) => Found::Committed,
            (
                Fenced::Applied | Fenced::Refused(Refusal::Settled(StateKind::Unknown)),
                Self::Step(step, kept),
            ) => {
                let entry = claimed.insist(|| store.get(identity)).await?;
                let record = entry.filter(|entry| entry.record.token == *token);
                let progress = record.map_or(Progress::EMPTY, |entry| entry.record.progress);
                match progress.as_bytes().strip_prefix(kept.as_bytes()) {
                    Some(later) if later == step.as_bytes() => Found::Committed,
                    _ => Found::Nothing,
                }
            }
            // Of what was committed the record would be there still. A step may have been before.
            (Fenced::Refused(Refusal::Superseded), Self::Outcome(_, retention))
                if claimed.sent.elapsed() < policy.kept_for(*retention).replay =>
            {
                Found::Superseded
            }
            _ => Found::Nothing,
        })
    }
}

/// What the record says of a transaction whose commit was not answered.
enum Found {
    Committed,
    /// Another attempt took over: it will not be committed.
    Superseded,
    /// It may be on its way still.
    Nothing,
}

impl<S: Transactional> Held<S> {
    /// Runs `work`, which may begin the transaction that it is offered; then the outcome that
    /// `outcome` makes of its answer (kept as [`Settlement::Complete`](super::Settlement::Complete)
    /// says) is recorded in it and both are committed, or, where that is
    /// none, all is rolled back. Runs it again after a conflict, which `is_conflict` finds in its
    /// error, as often as the options say.
    ///
    /// A lost answer to the commit is resolved by reading the record back; an outcome too large for
    /// the store is recorded as omitted. Where nothing is committed the attempt is still to be
    /// settled.
    pub async fn transact<T, E, W: Future<Output = Result<T, E>>>(
        &mut self,
        options: TransactOptions,
        mut work: impl FnMut(AttemptInfo, Opening<S>) -> W,
        is_conflict: impl Fn(&E) -> bool,
        outcome: impl Fn(&T) -> Option<(Outcome, Option<Retention>)>,
    ) -> Transacted<T, E> {
        let info = self.info();
        let work = |retry, opening| work(info.again(retry), opening);
        let transaction = Transaction::of(self.claimed(), options);
        let records = |value: &T| {
            outcome(value).map(|(outcome, retention)| Records::Outcome(outcome, retention))
        };
        let transacted = transaction.run(work, is_conflict, records).await;
        if let Transacted::Committed(_) | Transacted::Superseded(_) = transacted {
            self.forget();
        }
        transacted
    }
}

impl<S: Transactional> fmt::Debug for Opening<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").finish_non_exhaustive()
    }
}
