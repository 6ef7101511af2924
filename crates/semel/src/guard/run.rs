//! `Guard::run`: the full cycle of claim, run and record for an async function.

use std::fmt::{self, Display};
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::attempt::Claimed;
use super::{Asked, Attempt, Begin, Effects, Guard, Held, Settled, Settlement};
use crate::store::Store;
use crate::{Outcome, OutcomeKind, StoreError, Value};

/// The answer of an operation that happened once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done<T> {
    /// This call ran it.
    Fresh(T),
    /// An earlier call ran it, and this is its answer.
    Replayed(T),
    /// This call ran it without protection: it had no key, or the store could not be reached and the
    /// policy is to run all the same (R9).
    Unprotected(T),
}

impl<T> Done<T> {
    /// The answer, whichever call ran it.
    pub fn into_inner(self) -> T {
        match self {
            Self::Fresh(value) | Self::Replayed(value) | Self::Unprotected(value) => value,
        }
    }

    /// The same for another value.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Done<U> {
        match self {
            Self::Fresh(value) => Done::Fresh(map(value)),
            Self::Replayed(value) => Done::Replayed(map(value)),
            Self::Unprotected(value) => Done::Unprotected(map(value)),
        }
    }
}

/// Whether a call that failed had an effect. Earlier calls are not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ran {
    /// The work did not run, or all that it did was rolled back.
    No,
    /// The work ran.
    Yes,
    /// The work ran, and nobody knows whether it was committed.
    Unknown,
}

/// A failure of the work: that of this call, or one that an earlier call left and that was kept.
/// Both have the same text. Of an event also its panic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed<E> {
    text: Box<str>,
    error: Option<E>,
    ran: Ran,
    is_released: bool,
}

impl<E> Failed<E> {
    /// The error itself; `None` where it is a replay, of which the text was kept, or a panic.
    pub fn into_error(self) -> Option<E> {
        self.error
    }

    /// The error itself; `None` where it is a replay, of which the text was kept, or a panic.
    pub const fn error(&self) -> Option<&E> {
        self.error.as_ref()
    }

    /// Whether what the work did stands: not in a transaction.
    pub const fn ran(&self) -> Ran {
        self.ran
    }

    /// Whether it was given back, so that the next call runs the work again.
    pub const fn is_released(&self) -> bool {
        self.is_released
    }

    /// The same after this settlement. `again` says whether the next call does nothing twice.
    pub(super) fn settled(mut self, settlement: &Settlement, again: bool) -> Self {
        self.is_released = again && matches!(settlement, Settlement::Release);
        self
    }

    pub(crate) fn panicked(message: &str, ran: Ran) -> Self {
        Self {
            text: format!("the work panicked: {message}").into(),
            error: None,
            ran,
            is_released: false,
        }
    }
}

impl<E: Display> Failed<E> {
    pub(crate) fn now(error: E, ran: Ran) -> Self {
        Self {
            text: error.to_string().into(),
            error: Some(error),
            ran,
            is_released: false,
        }
    }
}

impl<E> Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The policy demands a key, and the call had none.
    #[error("this operation needs a key")]
    KeyRequired,
    /// Another attempt is running: ask again.
    #[error("an attempt with this key is in flight")]
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// An earlier attempt may have had its effect (R7).
    #[error(
        "an earlier attempt with this key may have had its effect, but its outcome was not recorded"
    )]
    Unknown,
    /// The key was used with another request (R3).
    #[error("this key was used with another request")]
    Mismatch,
    /// The outcome's retention ended.
    #[error("the answer to this key is no longer kept")]
    Expired,
    /// The work failed, in this call or in an earlier one whose failure was kept.
    #[error("{0}")]
    Failed(Failed<E>),
    /// An earlier call did the work, and its answer was too large to keep.
    #[error("done by an earlier call, whose answer was too large to keep")]
    Omitted,
    /// Another attempt had taken the place of this one: its outcome was not recorded (R4), and a
    /// transaction was rolled back.
    #[error("another attempt took the place of this one; its outcome was not recorded")]
    Superseded {
        /// Whether the effects of this one stand.
        ran: Ran,
    },
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
    /// The store failed. After the work ran without a transaction, its outcome is recorded as soon
    /// as the store takes it (R14).
    #[error("the store failed{}", if *ran == Ran::No { "" } else { " after the work ran" })]
    Store {
        /// Whether the work had an effect.
        ran: Ran,
        /// What the store said.
        source: StoreError,
    },
}

impl<E> RunError<E> {
    /// Whether this call had an effect.
    pub const fn ran(&self) -> Ran {
        match self {
            Self::Failed(failed) => failed.ran(),
            Self::Superseded { ran } | Self::Store { ran, .. } => *ran,
            Self::StepsLeft(_) => Ran::Yes,
            Self::KeyRequired
            | Self::InFlight { .. }
            | Self::Unknown
            | Self::Mismatch
            | Self::Expired
            | Self::Omitted
            | Self::TransactionKept
            | Self::Decode => Ran::No,
        }
    }

    /// Whether the same call, with the same key, may get an answer later without anybody's help. What
    /// the work itself failed with may know better: of a step
    /// [`StepError::is_retryable`](super::StepError::is_retryable).
    pub const fn is_retryable(&self) -> bool {
        self.retry_after().is_some()
    }

    /// When to make the same call again; `None` where time alone will not help: the key was used for
    /// something else, the failure lasts, or the outcome has to be resolved.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InFlight { retry_after } => Some(*retry_after),
            Self::Failed(failed) if failed.is_released() => Some(SOON),
            Self::Superseded { .. } => Some(SOON),
            Self::Store { source, .. } if source.is_retryable() => Some(SOON),
            _ => None,
        }
    }

    /// The store failed, when the work had run or had not.
    pub(super) fn store(ran: Ran) -> impl Fn(StoreError) -> Self {
        move |source| Self::Store { ran, source }
    }
}

/// When to ask again where nobody knows better.
pub(super) const SOON: Duration = Duration::from_secs(1);

pub(super) type Answer<T, E> = Result<Done<T>, RunError<E>>;

impl<S: Store> Guard<S> {
    /// Makes `work` happen once for what is asked: claims it, runs it in a task of its own while the
    /// lease is renewed, and records its answer. Duplicates get that answer. Without a key it runs
    /// plainly, and no store call is made (R13).
    ///
    /// What an error or a panic means the [`Policy`](super::Policy) says, or
    /// [`Asked::classify`]; a panic goes on in the caller. If the caller is dropped, the work goes
    /// on (R11).
    ///
    /// Work whose effects are all in [steps](Attempt::step) asks with [`Asked::in_steps`].
    ///
    /// # Errors
    /// See [`RunError`]; [`RunError::ran`] says whether the work had an effect.
    pub async fn run<T, E, F, W>(&self, asked: impl Into<Asked>, work: F) -> Answer<T, E>
    where
        T: Value + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(Attempt<S>) -> W + Send + 'static,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (guard, asked) = (self.clone(), asked.into());
        let running = self.spawn(async move {
            let mut held = match guard.turn(&asked).await {
                Ok(held) => held,
                Err(answer) => return answer,
            };
            let claimed = Arc::clone(held.claimed());
            // Steps that the work does not ask for are noticed at its end.
            if asked.effects == Effects::InSteps {
                let found = claimed.finished_steps().await;
                found.map_err(RunError::store(Ran::No))?;
            }
            let attempt = held.attempt();
            // The closure is called inside, so that its panics are panics of the work.
            let done = match held.run(async { work(attempt).await }).await {
                Ok(done) => done,
                Err(panic) => held.panicked(panic).await,
            };
            let left = claimed.steps_left();
            if done.is_ok() && left > 0 {
                // The finished steps stay: code that asks for them again can go on.
                held.release().await.ok();
                return Err(RunError::StepsLeft(left));
            }
            let settlement = match &done {
                Ok(value) => Settlement::Complete(value.to_outcome(), None),
                Err(error) => claimed.after(&asked, error),
            };
            // Steps of a call without protection have other keys when they run again.
            let again = claimed.token.is_some() || asked.effects != Effects::InSteps;
            let value = done.map_err(|error| {
                RunError::Failed(Failed::now(error, Ran::Yes).settled(&settlement, again))
            });
            let settled = held.settle(settlement).await;
            let value = value?;
            match settled.map_err(RunError::store(Ran::Yes))? {
                Settled::Applied | Settled::Omitted => Ok(claimed.done(value)),
                Settled::Refused(_) => Err(RunError::Superseded { ran: Ran::Yes }),
            }
        });
        join(running).await
    }

    /// Claims it, or answers. Without a key, or without the store where that may be, what runs is an
    /// attempt without a token, of which nothing is recorded.
    pub(super) async fn turn<T: Value, E>(&self, asked: &Asked) -> Result<Held<S>, Answer<T, E>> {
        let unreached = |source| Err(RunError::store(Ran::No)(source));
        Err(match self.begin(asked).await.map_err(unreached)? {
            Begin::Acquired(held) => return Ok(held),
            // Without the database there is no transaction either.
            Begin::Unprotected(source) if asked.effects == Effects::InTransaction => {
                unreached(source)
            }
            Begin::Unkeyed | Begin::Unprotected(_) => {
                let guard = self.with_policy(asked.overrides.over(self.policy));
                let claimed = Claimed::unprotected(guard, asked).map_err(unreached)?;
                return Ok(Held::new(Arc::new(claimed)));
            }
            Begin::Completed(outcome) => replay(&outcome).map(Done::Replayed),
            Begin::InFlight { retry_after } => Err(RunError::InFlight { retry_after }),
            Begin::Unknown => Err(RunError::Unknown),
            Begin::Mismatch => Err(RunError::Mismatch),
            Begin::Expired => Err(RunError::Expired),
            Begin::KeyRequired => Err(RunError::KeyRequired),
        })
    }
}

impl<S: Store> Claimed<S> {
    /// The answer of this call's work.
    pub(super) fn done<T>(&self, value: T) -> Done<T> {
        match self.token {
            Some(_) => Done::Fresh(value),
            None => Done::Unprotected(value),
        }
    }
}

/// What a task answers, for a caller who waits for it.
pub(crate) async fn join<T>(task: JoinHandle<T>) -> T {
    match task.await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is shutting down, and the caller with it.
            Err(_) => std::future::pending().await,
        },
    }
}

fn replay<T: Value, E>(outcome: &Outcome) -> Result<T, RunError<E>> {
    if let Some(value) = T::from_outcome(outcome) {
        return Ok(value);
    }
    Err(match outcome.kind() {
        OutcomeKind::Success => RunError::Decode,
        OutcomeKind::Failure => RunError::Failed(Failed {
            text: String::from_utf8_lossy(&outcome.body().unwrap_or_default()).into(),
            error: None,
            ran: Ran::No,
            is_released: false,
        }),
        OutcomeKind::Omitted => RunError::Omitted,
    })
}
