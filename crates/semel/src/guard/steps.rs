//! Steps: an attempt in parts, whose results are kept one by one, so that the attempt after it goes
//! on where it ended.

use std::fmt::{self, Display};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sha2::{Digest as _, Sha256};

use super::attempt::insist;
use super::{AttemptInfo, Event, Guard, Value};
use crate::store::{Fence, Fenced, Store, Token};
use crate::{
    DecodeError, FinishedStep, IdentityDigest, Outcome, Progress, ProgressTooLarge, StoreError,
};

/// The steps of one attempt, in their order.
///
/// A step that an earlier attempt finished is not run again: its result is taken from the record.
/// The order of steps, and their names, must be the same in every attempt; where they are not,
/// [`StepError::Changed`] says so before anything runs.
///
/// Between its effect and the keeping of its result a step can be lost as a whole attempt can; then
/// it runs again. Its [`StepKey`] is the same each time: pass it on as the idempotency key of the
/// service that the step calls. A step that writes to the store's own database is better run with
/// [`transact`](Self::transact): that one is never lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
///
/// use semel::guard::{Guard, Policy, Ran, StepError};
/// use semel::memory::MemoryStore;
/// use semel::{Fingerprint, Identity, Key, Scope};
///
/// static CHARGED: AtomicU32 = AtomicU32::new(0);
/// let guard = Guard::new(MemoryStore::default(), Policy::default());
/// let identity = Identity::new(Scope::new(["tenant-1"]), "place_order", Key::new("order-4711")?);
/// let attempt = |carrier_answers: bool| {
///     guard.run_in_steps(&identity, Fingerprint::of(b"3 apples"), move |mut steps| async move {
///         // `key` is the same in every attempt: the payment service is given it.
///         let charge: String = steps
///             .step("charge", |key| async move {
///                 assert_eq!(key.to_string().len(), 64);
///                 Ok(format!("charge {}", CHARGED.fetch_add(1, SeqCst)))
///             })
///             .await?;
///         let parcel: String = steps
///             .step("ship", |_| async move {
///                 if carrier_answers { Ok("parcel 1".into()) } else { Err("the carrier is away") }
///             })
///             .await?;
///         Ok::<String, StepError<&str>>(format!("{charge}, {parcel}"))
///     })
/// };
/// assert!(attempt(false).await.is_err());
/// assert_eq!(attempt(true).await?, Ran::First("charge 0, parcel 1".to_owned()));
/// assert_eq!(CHARGED.load(SeqCst), 1);
/// # Ok(()) }
/// ```
pub struct Steps<S> {
    pub(super) guard: Guard<S>,
    pub(super) identity: IdentityDigest,
    // None for a call without protection, of which nothing is kept.
    pub(super) token: Option<Token>,
    number: u32,
    // Read at the first step of an attempt that is not the first.
    kept: Option<Progress>,
    taken: usize,
    left: Option<Arc<AtomicUsize>>,
    // Told while renewals are to wait for a transaction.
    pub(super) still: Option<Arc<AtomicBool>>,
}

/// The key of one step: the same in every attempt on an identity, different for every other step.
/// 32 bytes, shown as 64 hexadecimal digits.
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
    /// The step ran; its result is too large to keep beside those before it.
    #[error("step {name:?} ran, but its result cannot be kept")]
    TooLarge {
        /// The step's name.
        name: Box<str>,
        /// By how much.
        source: ProgressTooLarge,
    },
    /// Another attempt took the place of this one (R4). The step ran if `ran` says so.
    #[error("another attempt took the place of this one")]
    Superseded {
        /// Whether the step ran in this attempt.
        ran: bool,
    },
    /// The store failed before the step ran; or after it, where `ran` says so. A transaction was
    /// not committed, unless the source is of kind [`Unknown`](crate::StoreErrorKind::Unknown): then
    /// nobody knows, until the record can be read. The next attempt reads it.
    #[error("the store failed{}", if *ran { " after the step ran: its result may not be kept" } else { "" })]
    Store {
        /// Whether the step ran in this attempt.
        ran: bool,
        /// What the store said.
        source: StoreError,
    },
}

impl<S: Store> Steps<S> {
    pub(super) const fn new(
        guard: Guard<S>,
        identity: IdentityDigest,
        token: Option<Token>,
        number: u32,
    ) -> Self {
        Self {
            guard,
            identity,
            token,
            number,
            kept: None,
            taken: 0,
            left: None,
            still: None,
        }
    }

    pub(super) fn held_still_by(self, still: Arc<AtomicBool>) -> Self {
        Self {
            still: Some(still),
            ..self
        }
    }

    /// The attempt that the steps belong to.
    pub fn info(&self) -> AttemptInfo {
        AttemptInfo {
            fence: self.token.map_or(Fence::default(), |token| token.fence),
            number: self.number,
        }
    }

    /// The result of the next step: kept by an earlier attempt, or made by `work` now and then kept.
    /// One call of the store for each step that runs, and one more in an attempt that is not the
    /// first.
    ///
    /// # Errors
    /// See [`StepError`]; its variants say whether the step ran.
    pub async fn step<T, E, W>(
        &mut self,
        name: &str,
        work: impl FnOnce(StepKey) -> W,
    ) -> Result<T, StepError<E>>
    where
        T: Value,
        W: Future<Output = Result<T, E>>,
    {
        let progress = self.progress().await?;
        if let Some(value) = self.replayed(&progress, name)? {
            return Ok(value);
        }
        let key = StepKey::of(&self.identity, self.taken, name);
        let value = work(key).await.map_err(StepError::Failed)?;
        let (step, next) = finished(&progress, name, &value)?;
        self.keep(&step, progress.as_bytes().len()).await?;
        self.finish(next);
        Ok(value)
    }

    /// The result of the next step, where an earlier attempt finished it.
    pub(super) fn replayed<T: Value, E>(
        &mut self,
        progress: &Progress,
        name: &str,
    ) -> Result<Option<T>, StepError<E>> {
        let Some((kept, result)) = progress.steps().nth(self.taken) else {
            return Ok(None);
        };
        if kept != name {
            return Err(StepError::Changed {
                place: self.taken,
                asked: name.into(),
                kept: kept.into(),
            });
        }
        let value = decode(result).ok_or_else(|| StepError::Decode(name.into()))?;
        self.take();
        self.guard.observe(Event::StepReplayed);
        Ok(Some(value))
    }

    /// Goes on after a step that is kept now, as the last of `all`.
    pub(super) fn finish(&mut self, all: Progress) {
        self.kept = Some(all);
        self.take();
    }

    /// Counts in `left` the finished steps that are not asked for, from now on.
    pub(super) async fn count_in(&mut self, left: Arc<AtomicUsize>) -> Result<(), StoreError> {
        self.left = Some(left);
        match self.progress::<std::convert::Infallible>().await {
            Err(StepError::Store { source, .. }) => Err(source),
            // Superseded already: the first step will say so.
            _ => {
                self.count();
                Ok(())
            }
        }
    }

    fn take(&mut self) {
        self.taken += 1;
        self.count();
    }

    fn count(&self) {
        if let Some(left) = &self.left {
            let kept = self.kept.as_ref().map_or(0, |kept| kept.steps().count());
            left.store(kept.saturating_sub(self.taken), Ordering::Relaxed);
        }
    }

    pub(super) async fn progress<E>(&mut self) -> Result<Progress, StepError<E>> {
        if let Some(kept) = &self.kept {
            return Ok(kept.clone());
        }
        let kept = match self.number {
            // A first attempt has nothing before it, nor has one without protection.
            1 => Progress::EMPTY,
            _ => self.read().await?,
        };
        Ok(self.kept.insert(kept).clone())
    }

    async fn read<E>(&self) -> Result<Progress, StepError<E>> {
        let entry = self.guard.store().get(&self.identity).await;
        let entry = entry.map_err(|source| StepError::Store { ran: false, source })?;
        match entry {
            Some(entry) if Some(entry.record.token) == self.token => Ok(entry.record.progress),
            _ => Err(StepError::Superseded { ran: false }),
        }
    }

    async fn keep<E>(&self, step: &FinishedStep, kept: usize) -> Result<(), StepError<E>> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        let store = self.guard.store();
        let done = insist(&self.guard, || {
            store.keep_step(&self.identity, token, step, kept)
        });
        match done.await {
            Ok(Fenced::Applied) => {
                self.guard.observe(Event::StepKept);
                Ok(())
            }
            Ok(Fenced::Refused(_)) => {
                self.guard.observe(Event::Stale);
                Err(StepError::Superseded { ran: true })
            }
            Err(source) => Err(StepError::Store { ran: true, source }),
        }
    }
}

/// A step as it is kept, and all that are kept with it.
pub(super) fn finished<T: Value, E>(
    progress: &Progress,
    name: &str,
    value: &T,
) -> Result<(FinishedStep, Progress), StepError<E>> {
    let too_large = |source| StepError::TooLarge {
        name: name.into(),
        source,
    };
    let outcome = value.to_outcome();
    let step = FinishedStep::new(name, outcome.as_bytes()).map_err(too_large)?;
    let next = progress.with(&step).map_err(too_large)?;
    Ok((step, next))
}

fn decode<T: Value>(result: &[u8]) -> Option<T> {
    let outcome: Result<Outcome, DecodeError> =
        Outcome::from_bytes(bytes::Bytes::copy_from_slice(result));
    T::from_outcome(&outcome.ok()?)
}

impl StepKey {
    pub(super) fn of(identity: &IdentityDigest, place: usize, name: &str) -> Self {
        let mut digest = Sha256::new();
        digest.update(b"semel/step/1");
        digest.update(identity.as_bytes());
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
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A key all the same: the start is enough to tell two apart.
        write!(f, "StepKey({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

impl<S> fmt::Debug for Steps<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps")
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}
