//! Asking what became of an attempt that nobody recorded (R7, `reconcile`). `docs/unknown.md` says
//! when to, and what an answer must mean.

mod ask;
mod background;
mod case;
mod flight;
mod options;

use std::error::Error as StdError;
use std::pin::Pin;

use crate::store::Refusal;
use crate::{Outcome, StoreError};

pub use background::{Background, Tally};
pub use case::Case;
pub(super) use flight::Flights;
pub use options::ReconcileOptions;

/// What a reconciler found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The attempt had its effect, with this outcome: it is recorded and replayed.
    Happened(Outcome),
    /// The attempt had no effect, and will have none: the next caller runs it. A paused
    /// attempt may continue, so the service that has the effect must refuse its fence from now on.
    DidNotHappen,
    /// Nobody can say yet: the outcome stays unknown.
    StillUnknown,
}

impl Finding {
    /// The finding with the reconciler's own words, for the record's audit entry: up to 500
    /// characters are kept. Put no key into them (R12).
    pub fn because(self, reason: impl Into<Box<str>>) -> Answer {
        Answer {
            finding: self,
            reason: Some(reason.into()),
        }
    }
}

/// A finding, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    finding: Finding,
    reason: Option<Box<str>>,
}

impl From<Finding> for Answer {
    fn from(finding: Finding) -> Self {
        Self {
            finding,
            reason: None,
        }
    }
}

/// What [`Reconciler::reconcile`] returns. An error means "still unknown", and is passed to the
/// [`Observer`](super::Observer).
pub type Answered<'a> =
    Pin<Box<dyn Future<Output = Result<Answer, Box<dyn StdError + Send + Sync>>> + Send + 'a>>;

/// Finds out what became of an attempt: asks the payment provider, looks into the ledger.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use semel::guard::{Answered, Asked, Begin, Case, Done, Finding, Guard, Policy, Reconciler};
/// use semel::memory::MemoryStore;
/// use semel::store::OnLost;
/// use semel::{Fingerprint, Identity, Key, Outcome, Scope};
///
/// struct AskTheBank;
///
/// impl Reconciler for AskTheBank {
///     fn reconcile<'a>(&'a self, case: &'a Case<'_>) -> Answered<'a> {
///         Box::pin(async move {
///             // The key that `attempt.step("charge", …)` gave to the bank.
///             let key = case.step_key("charge").to_string();
///             # let charge_with_key = |key: String| async move { Ok::<_, std::io::Error>(Some(key.len())) };
///             Ok(match charge_with_key(key).await? {
///                 Some(charge) => Finding::Happened(Outcome::success(b"paid"))
///                     .because(format!("charge number {charge}")),
///                 None => Finding::StillUnknown.into(),
///             })
///         })
///     }
/// }
///
/// let guard = Guard::builder(MemoryStore::default())
///     .policy(Policy::default().with_on_lost(OnLost::Reconcile))
///     .reconciler(Arc::new(AskTheBank))
///     .build();
/// let identity = Identity::new(Scope::new(["tenant-1"]), "pay", Key::new("order-4711")?);
/// let asked = Asked::new(identity, Fingerprint::of(b"7 EUR"));
/// // An attempt that nobody settles: its process died.
/// if let Begin::Acquired(attempt) = guard.begin(&asked).await? {
///     attempt.let_lapse();
/// }
/// tokio::time::sleep(Duration::from_secs(30)).await;
/// let again = guard.run(asked, |_| async { Ok::<_, std::io::Error>(String::new()) }).await?;
/// assert_eq!(again, Done::Replayed("paid".to_owned()));
/// # Ok(())
/// # }
/// ```
pub trait Reconciler: Send + Sync + 'static {
    /// What became of the attempt? May be asked about several cases at once, and about one case by
    /// several processes; each answer is checked against the record before it counts. Bound to
    /// the [time-out](ReconcileOptions::with_timeout) of a question: the future is dropped then.
    fn reconcile<'a>(&'a self, case: &'a Case<'_>) -> Answered<'a>;
}

/// What a question led to, for logs: see [`Observer::on_reconcile`](super::Observer::on_reconcile).
#[derive(Debug)]
#[non_exhaustive]
pub enum Reconciled<'a> {
    /// It happened, and the record says so now.
    Happened,
    /// It did not happen, and the next claim runs.
    DidNotHappen,
    /// There was an answer, but the record had moved on meanwhile, or the attempt runs as far as the
    /// store knows: nothing was changed.
    Refused(Refusal),
    /// The reconciler does not know.
    StillUnknown,
    /// The reconciler failed.
    Failed(&'a (dyn StdError + Send + Sync + 'static)),
    /// The reconciler panicked.
    Panicked,
    /// The reconciler did not answer in time.
    TimedOut,
    /// The store could not be told the answer.
    Store(&'a StoreError),
    /// It was asked as often as it may be in the background: an operator has to look.
    GaveUp,
}

impl Reconciled<'_> {
    /// Its name in metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Happened => "happened",
            Self::DidNotHappen => "did_not_happen",
            Self::Refused(_) => "refused",
            Self::StillUnknown => "still_unknown",
            Self::Failed(_) => "failed",
            Self::Panicked => "panicked",
            Self::TimedOut => "timed_out",
            Self::Store(_) => "store_error",
            Self::GaveUp => "gave_up",
        }
    }
}
