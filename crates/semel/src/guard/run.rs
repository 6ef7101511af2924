//! The whole of it for any async function.

use std::fmt::{self, Display};
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::{AttemptInfo, Begin, Guard, OnFailure, Settled, Steps};
use crate::operation::CallError;
use crate::store::Store;
use crate::{Fingerprint, Identity, Outcome, OutcomeKind, StoreError};

/// A value that can be kept as an outcome and made again from it.
pub trait Value: Sized {
    /// The outcome that keeps it.
    fn to_outcome(&self) -> Outcome;

    /// The value that an outcome keeps; `None` where it is not one of this type.
    fn from_outcome(outcome: &Outcome) -> Option<Self>;
}

impl Value for () {
    fn to_outcome(&self) -> Outcome {
        Outcome::void()
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        outcome.body().is_none().then_some(())
    }
}

impl Value for Bytes {
    fn to_outcome(&self) -> Outcome {
        Outcome::success(self)
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        outcome.body()
    }
}

impl Value for Vec<u8> {
    fn to_outcome(&self) -> Outcome {
        Outcome::success(self)
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        outcome.body().map(Into::into)
    }
}

impl Value for String {
    fn to_outcome(&self) -> Outcome {
        Outcome::success(self.as_bytes())
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        Self::from_utf8(outcome.body()?.into()).ok()
    }
}

/// The answer of an operation that happened once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ran<T> {
    /// This call ran it.
    First(T),
    /// An earlier call ran it, and this is its answer.
    Replayed(T),
    /// This call ran it without protection: it had no key, or the store could not be used and the
    /// policy is to run all the same (R9).
    Unprotected(T),
}

impl<T> Ran<T> {
    /// The answer, whoever ran it.
    pub fn into_inner(self) -> T {
        match self {
            Self::First(value) | Self::Replayed(value) | Self::Unprotected(value) => value,
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The call does not have what its [operation](crate::operation) needs. Nothing ran.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The policy demands a key, and the call had none. Nothing ran.
    #[error("this operation needs a key")]
    KeyRequired,
    /// Another attempt is running. Nothing ran; ask again.
    #[error("an attempt with this key is in flight")]
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// An earlier attempt may have had its effect. Nothing ran (R7).
    #[error("an earlier attempt with this key may have had its effect; nobody recorded it")]
    Unknown,
    /// The key was used with another request. Nothing ran (R3).
    #[error("this key was used with another request")]
    Mismatch,
    /// The outcome's retention ended. Nothing ran.
    #[error("the answer to this key is no longer kept")]
    Expired,
    /// The work failed in this call. Whether the failure was kept is the policy's choice.
    #[error("{0}")]
    Failed(E),
    /// The work failed in an earlier call, and the failure was kept: its text.
    #[error("an earlier attempt with this key failed: {0}")]
    FailedBefore(String),
    /// The work was done in an earlier call, and its answer was too large to keep.
    #[error("done by an earlier call, whose answer was too large to keep")]
    Omitted,
    /// The work was done in this call, but another attempt had taken its place: its outcome was
    /// not recorded (R4).
    #[error("another attempt took the place of this one; its outcome was not recorded")]
    Superseded,
    /// An earlier attempt finished so many more steps than the work asked for: the code changed.
    /// Nothing was recorded, and the finished steps stay.
    #[error("an earlier attempt finished {0} more steps than this one asked for")]
    StepsLeft(usize),
    /// The work ended and kept its transaction, which was therefore not committed.
    #[error("the work kept its transaction, which was not committed")]
    TransactionKept,
    /// What is stored is not a value of this type.
    #[error("the stored answer is not of the type asked for")]
    Decode,
    /// The store failed before the work ran; or after it, where `ran` says so.
    #[error("the store failed{}", if *ran { " after the work ran: it may not be recorded" } else { "" })]
    Store {
        /// Whether the work ran in this call.
        ran: bool,
        /// What the store said.
        source: StoreError,
    },
}

impl<S: Store> Guard<S> {
    /// Makes `work` happen once for `identity`: claims it, runs it in a task of its own while the
    /// lease is renewed, and records its answer. Duplicates get that answer.
    ///
    /// A failure is released or kept, a panic released or marked unknown, as the policy says; a
    /// panic goes on in the caller. If the caller is dropped, the work goes on (R11).
    ///
    /// # Errors
    /// See [`RunError`]; its variants say whether the work ran.
    pub async fn run<T, E, F, W>(
        &self,
        identity: &Identity,
        fingerprint: Fingerprint,
        work: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Value + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(AttemptInfo) -> W,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.run_attempt(identity, fingerprint, None, |steps| work(steps.info()))
            .await
    }

    /// Like [`run`](Self::run) for work in steps: what an earlier attempt finished is not run again.
    ///
    /// # Errors
    /// See [`RunError`]; [`StepsLeft`](RunError::StepsLeft) where the work asked for fewer steps than
    /// an earlier attempt finished.
    pub async fn run_in_steps<T, E, F, W>(
        &self,
        identity: &Identity,
        fingerprint: Fingerprint,
        work: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Value + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(Steps<S>) -> W,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let left = Arc::new(AtomicUsize::new(0));
        self.run_attempt(identity, fingerprint, Some(left), work)
            .await
    }

    // `left` counts the finished steps that the work has not asked for.
    async fn run_attempt<T, E, F, W>(
        &self,
        identity: &Identity,
        fingerprint: Fingerprint,
        left: Option<Arc<AtomicUsize>>,
        work: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Value + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(Steps<S>) -> W,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let unreached = |source| RunError::Store { ran: false, source };
        let begun = self.begin_detached(identity, fingerprint).await;
        let mut attempt = match begun.map_err(unreached)? {
            Begin::Acquired(attempt) => attempt,
            Begin::Completed(outcome) => return replay(&outcome).map(Ran::Replayed),
            Begin::InFlight { retry_after } => return Err(RunError::InFlight { retry_after }),
            Begin::Unknown => return Err(RunError::Unknown),
            Begin::Mismatch => return Err(RunError::Mismatch),
            Begin::Expired => return Err(RunError::Expired),
            Begin::Unprotected(_) => {
                let steps = Steps::new(self.clone(), *identity.digest(), None, 1);
                return unprotected(work(steps)).await;
            }
        };
        let mut steps = match left {
            Some(_) => attempt.steps(),
            None => attempt.no_steps(),
        };
        if let Some(left) = &left
            && let Err(source) = steps.count_in(left.clone()).await
        {
            // If the store cannot be told either, the lease lapses.
            attempt.abandon().await.ok();
            return Err(unreached(source));
        }
        let work = work(steps);
        let on_failure = self.policy().on_failure;
        let task = self.spawn(async move {
            let done = match attempt.hold_catching(work).await {
                Ok(done) => done,
                Err(panic) => {
                    // Whatever the store says, the panic is what the caller must see.
                    attempt.panicked().await.ok();
                    resume_unwind(panic)
                }
            };
            let left = left.map_or(0, |left| left.load(Ordering::Relaxed));
            if done.is_ok() && left > 0 {
                // The finished steps stay: code that asks for them again can go on.
                attempt.abandon().await.ok();
                return Err(RunError::StepsLeft(left));
            }
            let outcome = match &done {
                Ok(value) => Some(value.to_outcome()),
                Err(error) if on_failure == OnFailure::Keep => {
                    Some(Outcome::failure(error.to_string().as_bytes()))
                }
                Err(_) => None,
            };
            let settled = match outcome {
                Some(outcome) => attempt.complete(&outcome).await,
                None => attempt.abandon().await,
            };
            match (done, settled) {
                (Err(error), _) => Err(RunError::Failed(error)),
                (Ok(value), Ok(Settled::Applied | Settled::Omitted)) => Ok(Ran::First(value)),
                (Ok(_), Ok(Settled::Refused(_))) => Err(RunError::Superseded),
                (Ok(_), Err(source)) => Err(RunError::Store { ran: true, source }),
            }
        });
        joined(task).await
    }
}

/// What a task answers, for a caller who waits for it.
pub(crate) async fn joined<T>(task: JoinHandle<T>) -> T {
    match task.await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is shutting down, and the caller with it.
            Err(_) => std::future::pending().await,
        },
    }
}

pub(super) async fn unprotected<T, E>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<Ran<T>, RunError<E>> {
    work.await.map(Ran::Unprotected).map_err(RunError::Failed)
}

pub(super) fn replay<T: Value, E>(outcome: &Outcome) -> Result<T, RunError<E>> {
    match outcome.kind() {
        OutcomeKind::Success => T::from_outcome(outcome).ok_or(RunError::Decode),
        OutcomeKind::Failure => {
            let body = outcome.body().unwrap_or_default();
            Err(RunError::FailedBefore(
                String::from_utf8_lossy(&body).into_owned(),
            ))
        }
        OutcomeKind::Omitted => Err(RunError::Omitted),
    }
}

impl<T: Display> Display for Ran<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First(value) | Self::Replayed(value) | Self::Unprotected(value) => value.fmt(f),
        }
    }
}
