//! Steps: an attempt in parts, whose results are kept one by one, so that the next attempt continues
//! after the last of them.

use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::future::Future;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::attempt::Claimed;
use super::run::SOON;
use super::{
    Attempt, AttemptInfo, Effects, Opening, Ran, Records, Signal, TransactOptions, Transacted,
    Transaction,
};
use crate::store::{Fenced, Store, StoreExt as _, Token};
use crate::sync::Mutex;
use crate::transaction::{Lent, Transactional, comes_from_conflict};
use crate::{
    FinishedStep, IdentityDigest, Outcome, Progress, ProgressTooLarge, StoreError, StoreErrorKind,
    Timestamp, Value,
};

/// The key of one step: the same in every protected attempt of one life of the identity, different
/// for every other step. 32 bytes, shown as 64 hexadecimal digits.
///
/// A life begins with the first claim and ends when the outcome's retention does. What makes it is
/// the store's time of that first claim, which the record keeps through take-overs and releases:
///
/// * **Retries have the same key.** A released record is forgotten after a minute, and then the next
///   claim would begin a new life. So an attempt that gave a key to its work leaves a mark when it
///   releases, and a marked record is kept for seven days like one with finished steps. A record in
///   flight or unknown is never forgotten (R8).
/// * **A new intent has a new key.** Once the outcome's retention is over the next claim begins a new
///   record, at a later time.
///
/// Nobody could do both without a bound: a store that forgets a released record and an expired one
/// alike has nothing left to tell them apart. Seven days are longer than a client retries one intent.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepKey([u8; 32]);

/// Why a step has no result. A transaction that the step ran in is rolled back, unless the variant
/// says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError<E> {
    /// The step's own work failed. Nothing was kept of it.
    #[error("{0}")]
    Failed(E),
    /// The call did not say that its effects are in steps, and its policy does not say what becomes
    /// of a lost attempt. Nothing ran.
    #[error("ask with `Asked::in_steps`, or set `Policy::with_on_lost`, for work in steps")]
    Undeclared,
    /// An earlier attempt finished another step at this place. Nothing ran.
    #[error("step {place} is {asked:?}, but an earlier attempt finished {kept:?} there")]
    Changed {
        /// Which step it is, from 0.
        place: usize,
        /// The name asked for.
        asked: Box<str>,
        /// The name kept.
        kept: Box<str>,
    },
    /// The work has not given its transaction back: it was not committed.
    #[error("step {0:?} kept its transaction, which is not committed")]
    TransactionKept(Box<str>),
    /// What was kept is not of the type asked for. Nothing ran.
    #[error("what is kept of step {0:?} is not of the type asked for")]
    Decode(Box<str>),
    /// The result is too large to keep beside those before it. Without a transaction, the step ran.
    #[error("the result of step {name:?} cannot be kept")]
    TooLarge {
        /// The step's name.
        name: Box<str>,
        /// By how much.
        source: ProgressTooLarge,
    },
    /// Another attempt took the place of this one (R4).
    #[error("another attempt took the place of this one")]
    Superseded {
        /// Whether the step had its effect in this attempt.
        ran: Ran,
    },
    /// The store failed. Where nobody knows whether a transaction was committed, the next attempt
    /// reads it in the record.
    #[error("the store failed{}", if *ran == Ran::No { "" } else { " after the step ran: its result may not be kept" })]
    Store {
        /// Whether the step had its effect in this attempt.
        ran: Ran,
        /// What the store said.
        source: StoreError,
    },
}

impl<E> StepError<E> {
    /// Whether the step had an effect in this attempt.
    pub const fn ran(&self) -> Ran {
        match self {
            Self::Failed(_) | Self::TooLarge { .. } => Ran::Yes,
            Self::Superseded { ran } | Self::Store { ran, .. } => *ran,
            Self::Undeclared
            | Self::Changed { .. }
            | Self::TransactionKept(_)
            | Self::Decode(_) => Ran::No,
        }
    }

    /// Whether the whole call may get further later without anybody's help. Of the step's own
    /// [`Failed`](Self::Failed) its error has to say that.
    pub const fn is_retryable(&self) -> bool {
        self.retry_after().is_some()
    }

    /// When to make the whole call again; `None` where time alone will not help, or the step's own
    /// error has to say.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Superseded { .. } => Some(SOON),
            Self::Store { source, .. } if source.is_retryable() => Some(SOON),
            _ => None,
        }
    }

    /// The store failed, when the step had run or had not.
    fn store(ran: Ran) -> impl Fn(StoreError) -> Self {
        move |source| Self::Store { ran, source }
    }
}

/// How far an attempt is.
#[derive(Default)]
pub(super) struct Taken {
    /// Read at the first step of an attempt that is not the first.
    pub(super) kept: Option<Progress>,
    pub(super) taken: usize,
    /// The work was given a key.
    pub(super) keys: bool,
    /// What a release leaves under the record, whatever else it would.
    pub(super) leaves: Option<FinishedStep>,
    /// The transaction on offer was taken in this try.
    pub(super) took_transaction: bool,
}

impl<S: Store> Attempt<S> {
    /// The result of the next step: kept by an earlier attempt, or made by `work` now, and kept.
    ///
    /// A step that an earlier attempt finished is not run again: its result is taken from the record.
    /// The order of steps, and their names, must be the same in every attempt; where they are not,
    /// [`StepError::Changed`] says so before anything runs.
    ///
    /// Between its effect and the keeping of its result a step can be lost as a whole attempt can;
    /// then it runs again. Its [`StepKey`] is the same each time: pass it on as the idempotency key of
    /// the service that the step calls. A step that writes to the store's own database is better run
    /// with [`transact`](Self::transact): that one is never lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use semel::guard::{Asked, Attempt, Done, Guard, StepError};
    /// use semel::memory::MemoryStore;
    /// use semel::{Fingerprint, Identity, Key, Scope};
    ///
    /// let guard = Guard::from(MemoryStore::default());
    /// let identity = Identity::new(Scope::new(["tenant-1"]), "place_order", Key::new("order-4711")?);
    /// let asked = Asked::new(identity, Fingerprint::of(b"3 apples")).in_steps();
    /// let place = |mut attempt: Attempt<MemoryStore>| async move {
    ///     let number = attempt.number;
    ///     // `key` is the same in every attempt: the payment service is given it.
    ///     let charge: String = attempt
    ///         .step("charge", |key| async move { Ok(format!("charge by attempt {number}")) })
    ///         .await?;
    ///     let parcel: String = attempt
    ///         .step("ship", |_| async move {
    ///             if number > 1 { Ok("parcel".into()) } else { Err("the carrier is away") }
    ///         })
    ///         .await?;
    ///     Ok::<String, StepError<&str>>(format!("{charge}, {parcel}"))
    /// };
    /// assert!(guard.run(asked.clone(), place).await.is_err());
    /// let done = guard.run(asked, place).await?;
    /// assert_eq!(done, Done::Fresh("charge by attempt 1, parcel".into()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`StepError`].
    pub async fn step<T, E, W>(
        &mut self,
        name: &str,
        work: impl FnOnce(StepKey) -> W,
    ) -> Result<T, StepError<E>>
    where
        T: Value,
        W: Future<Output = Result<T, E>>,
    {
        let claimed = &*self.claimed;
        let kept = match claimed.next_step(name).await? {
            ControlFlow::Break(finished) => return Ok(finished),
            ControlFlow::Continue(kept) => kept,
        };
        let place = {
            let mut steps = claimed.steps.lock();
            steps.keys = true;
            steps.taken
        };
        let key = StepKey::of(&claimed.identity, claimed.since, place, name);
        let value = work(key).await.map_err(StepError::Failed)?;
        let (step, all) = finished(&kept, name, &value)?;
        let done = claimed.keep(&step, &kept).await;
        match done.map_err(StepError::store(Ran::Yes))? {
            Fenced::Applied => claimed.signal(Signal::StepKept),
            Fenced::Refused(_) => return Err(StepError::Superseded { ran: Ran::Yes }),
        }
        claimed.finish_step(all);
        Ok(value)
    }
}

impl<S: Transactional> Attempt<S> {
    /// The result of the next step: kept by an earlier attempt, or made by `work` now, in a
    /// transaction of the store's database in which the result is kept as well. Both are committed
    /// together: a step that wrote is finished, and a step that is finished wrote once. An attempt
    /// that was taken over commits nothing.
    ///
    /// `work` gets the driver's transaction, and drops it when it is done with it; it must neither
    /// commit nor roll it back. It is called again after a conflict with other transactions, as
    /// often as `options` say: [`AttemptInfo::retry`] counts. On an error all is rolled back.
    ///
    /// ```
    /// # use semel::guard::{Attempt, StepError, TransactOptions};
    /// # use semel::transaction::Transactional;
    /// # use std::io;
    /// # async fn reserve_in<T>(_: &mut T) -> io::Result<String> { Ok("shelf 4".into()) }
    /// # async fn charge_card(_: &str) -> io::Result<String> { Ok("ch_1".into()) }
    /// async fn order<S: Transactional>(mut attempt: Attempt<S>) -> Result<String, StepError<io::Error>> {
    ///     let options = TransactOptions::default();
    ///     // In the database, in one transaction with the step itself.
    ///     let place: String = attempt
    ///         .transact("reserve", options, |_, mut tx| async move { reserve_in(&mut *tx).await })
    ///         .await?;
    ///     // Elsewhere, under a key that is the same in every attempt.
    ///     let charge: String = attempt
    ///         .step("charge", |key| async move { charge_card(&key.to_string()).await })
    ///         .await?;
    ///     Ok(format!("{place}, {charge}"))
    /// }
    /// ```
    ///
    /// One statement in the transaction, besides those of `work`, its beginning and its commit.
    ///
    /// # Errors
    /// See [`StepError`].
    pub async fn transact<T, E, W>(
        &mut self,
        name: &str,
        options: TransactOptions,
        work: impl FnMut(AttemptInfo, Lent<S::Transaction>) -> W,
    ) -> Result<T, StepError<E>>
    where
        T: Value,
        E: StdError + 'static,
        W: Future<Output = Result<T, E>>,
    {
        let kept = &match self.claimed.next_step(name).await? {
            ControlFlow::Break(finished) => return Ok(finished),
            ControlFlow::Continue(kept) => kept,
        };
        let transaction = Transaction::of(&self.claimed, options);
        let info = &self.info;
        let work = &Mutex::new(work);
        let transacted = transaction.run(
            |retry, opening: Opening<S>| async move {
                let done = opening.lend(work, info.again(retry)).await;
                let done = done.map_err(StepError::store(Ran::No))?;
                let value = done.map_err(StepError::Failed)?;
                let (step, all) = finished(kept, name, &value)?;
                Ok((value, step, all))
            },
            |error| matches!(error, StepError::Failed(error) if comes_from_conflict::<S>(error)),
            |(_, step, _)| Some(Records::Step(step.clone(), kept.clone())),
        );
        match transacted.await {
            Transacted::Committed((value, _, all)) => {
                self.claimed.finish_step(all);
                Ok(value)
            }
            Transacted::Superseded(_) => Err(StepError::Superseded { ran: Ran::No }),
            Transacted::Failed { error, .. } => Err(error),
            Transacted::Panicked(panic) => resume_unwind(panic),
            Transacted::NotCommitted { source, .. } => Err(StepError::store(Ran::No)(source)),
            Transacted::Unknown(source) => Err(StepError::store(Ran::Unknown)(source)),
            Transacted::Kept | Transacted::NotTaken(_) | Transacted::RolledBack(_) => {
                Err(StepError::TransactionKept(name.into()))
            }
        }
    }
}

impl<S: Store> Claimed<S> {
    /// What the step returned where it is finished; else what is kept before it.
    async fn next_step<T: Value, E>(
        &self,
        name: &str,
    ) -> Result<ControlFlow<T, Progress>, StepError<E>> {
        let policy = &self.guard.policy;
        if self.token.is_some() && self.effects != Effects::InSteps && policy.on_lost.is_none() {
            return Err(StepError::Undeclared);
        }
        let kept = self.readable_steps().await;
        let kept = kept.map_err(StepError::store(Ran::No))?;
        let kept = kept.ok_or(StepError::Superseded { ran: Ran::No })?;
        let place = self.steps.lock().taken;
        if let Some((finished, result)) = kept.steps().nth(place) {
            if finished != name {
                return Err(StepError::Changed {
                    place,
                    asked: name.into(),
                    kept: finished.into(),
                });
            }
            let value = decode(result).ok_or_else(|| StepError::Decode(name.into()))?;
            self.steps.lock().taken += 1;
            self.signal(Signal::StepReplayed);
            return Ok(ControlFlow::Break(value));
        }
        let held = self.ensure_held().await;
        match held.map_err(StepError::store(Ran::No))? {
            Fenced::Applied => Ok(ControlFlow::Continue(kept)),
            Fenced::Refused(_) => Err(StepError::Superseded { ran: Ran::No }),
        }
    }

    fn finish_step(&self, all: Progress) {
        let mut steps = self.steps.lock();
        steps.kept = Some(all);
        steps.taken += 1;
    }

    /// How many steps an earlier attempt finished that this one did not ask for.
    pub(super) fn steps_left(&self) -> usize {
        let steps = self.steps.lock();
        let kept = steps.kept.as_ref().map_or(0, |kept| kept.steps().count());
        kept.saturating_sub(steps.taken)
    }

    /// The same, for those who read it.
    pub(crate) async fn readable_steps(&self) -> Result<Option<Progress>, StoreError> {
        let kept = self.finished_steps().await?;
        if let Some(kept) = &kept {
            kept.readable()?;
        }
        Ok(kept)
    }

    /// What is kept under the record; `None` where another attempt has it.
    pub(crate) async fn finished_steps(&self) -> Result<Option<Progress>, StoreError> {
        if let Some(kept) = self.steps.lock().kept.clone() {
            return Ok(Some(kept));
        }
        let kept = match self.number {
            // A first attempt has nothing before it, nor has one without protection.
            1 => Progress::EMPTY,
            _ => match self.store().get(&self.identity).await? {
                Some(entry) if Some(entry.record.token) == self.token => entry.record.progress,
                _ => return Ok(None),
            },
        };
        Ok(Some(self.steps.lock().kept.insert(kept).clone()))
    }

    /// Keeps a step behind those before it.
    pub(crate) async fn keep(
        &self,
        step: &FinishedStep,
        kept: &Progress,
    ) -> Result<Fenced, StoreError> {
        let Some(token) = &self.token else {
            return Ok(Fenced::Applied);
        };
        let (store, before) = (self.store(), kept.as_bytes().len());
        let keep = || store.keep_step(&self.identity, token, step, before);
        let done = self.insist(keep).await?;
        if done != Fenced::Applied {
            self.signal(Signal::Stale);
        }
        Ok(done)
    }

    /// Keeps what a release leaves under the record.
    ///
    /// A mark where a step key was given out, by this attempt or, for all that is known, by one
    /// before it; not where the record is kept anyway.
    pub(super) async fn leave_mark(&self, token: &Token) -> Result<Fenced, StoreError> {
        let (leaves, keys) = {
            let steps = self.steps.lock();
            (steps.leaves.clone(), steps.keys)
        };
        let keys = keys || self.effects == Effects::InSteps && self.number > 1;
        let mark = leaves.or_else(|| keys.then(FinishedStep::keys_given));
        let kept = match mark {
            Some(_) => self.finished_steps().await?,
            None => None,
        };
        match (mark, kept) {
            (Some(mark), Some(kept)) if !keys || kept.is_bare() => {
                let (store, before) = (self.store(), kept.as_bytes().len());
                let mark = mark.behind(&kept);
                store.keep_step(&self.identity, token, &mark, before).await
            }
            _ => Ok(Fenced::Applied),
        }
    }

    /// Says in the record that what this attempt does is in a transaction.
    pub(super) async fn mark_in_transaction(&self) -> Result<(), StoreError> {
        let kept = self.finished_steps().await?.unwrap_or_default();
        if kept.is_in_transaction() {
            return Ok(());
        }
        let mark = FinishedStep::in_transaction().behind(&kept);
        if let Fenced::Refused(refusal) = self.keep(&mark, &kept).await? {
            let what = "the attempt lost its lease";
            return Err(StoreError::new(StoreErrorKind::NotApplied, what).with_source(refusal));
        }
        self.steps.lock().kept = kept.with(&mark).ok();
        Ok(())
    }
}

/// A step as it is kept, and all that are kept with it.
fn finished<T: Value, E>(
    kept: &Progress,
    name: &str,
    value: &T,
) -> Result<(FinishedStep, Progress), StepError<E>> {
    let too_large = |source| StepError::TooLarge {
        name: name.into(),
        source,
    };
    let outcome = value.to_outcome();
    let step = FinishedStep::new(name, outcome.as_bytes()).map_err(too_large)?;
    let step = step.behind(kept);
    let all = kept.with(&step).map_err(too_large)?;
    Ok((step, all))
}

pub(super) fn decode<T: Value>(result: &[u8]) -> Option<T> {
    let outcome = Outcome::from_bytes(bytes::Bytes::copy_from_slice(result));
    T::from_outcome(&outcome.ok()?)
}

impl StepKey {
    pub(super) fn of(
        identity: &IdentityDigest,
        since: Timestamp,
        place: usize,
        name: &str,
    ) -> Self {
        let mut digest = Sha256::new();
        digest.update(b"semel/step/2");
        digest.update(identity.as_bytes());
        digest.update(since.as_micros().to_be_bytes());
        digest.update((place as u64).to_be_bytes());
        digest.update(name.as_bytes());
        Self(digest.finalize().into())
    }

    /// The key's bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Display for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A key all the same: the start is enough to tell two apart.
        write!(f, "StepKey({}…)", hex::encode(&self.0[..2]))
    }
}
