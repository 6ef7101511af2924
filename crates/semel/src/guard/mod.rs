//! Runs work at most once: claims the identity, runs the work in a task of its own, renews the lease
//! and records the result.
//!
//! [`Guard::run`] does all of it for an async function, [`Guard::transact`] with the effects in one
//! transaction of the store's database. [`Guard::begin`] is the first half, for those who settle the
//! attempt themselves, such as the HTTP middleware.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::guard::{Asked, Done, Guard};
//! use semel::memory::MemoryStore;
//! use semel::{Fingerprint, Identity, Key, Scope};
//!
//! let guard = Guard::from(MemoryStore::default());
//! let identity = Identity::new(Scope::new(["tenant-1"]), "place_order", Key::new("order-4711")?);
//! let asked = Asked::new(identity, Fingerprint::of(b"3 apples"));
//! // `attempt.id` and `attempt.fence` go to services that the work calls.
//! let place = |attempt: semel::guard::Attempt<_>| async move {
//!     Ok::<_, std::io::Error>(format!("placed by attempt {}", attempt.number))
//! };
//! assert_eq!(guard.run(asked.clone(), place).await?, Done::Fresh("placed by attempt 1".into()));
//! assert_eq!(guard.run(asked, place).await?, Done::Replayed("placed by attempt 1".into()));
//! # Ok(())
//! # }
//! ```

mod again;
mod asked;
mod attempt;
mod attended;
mod claim;
mod engine;
mod lease;
mod named;
mod observer;
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub mod observers;
mod owed;
mod policy;
mod purging;
mod reconcile;
mod renewals;
mod run;
mod settle;
mod steps;
mod transact;

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::StoreError;
use crate::store::Store;
use crate::sync::Watched;

pub use again::{Again, Lead};
pub use asked::Asked;
pub use attempt::{Attempt, AttemptInfo, Held, Settled, catch_panic};
pub use attended::{Attended, Begun, Caller};
pub use claim::Begin;
pub use engine::{Opening, TransactOptions, Transacted};
pub use named::name_of;
pub use observer::{Observer, Seen, Signal};
pub use policy::{OnError, OnPanic, OnStoreError, Policy};
pub use reconcile::{
    Answer, Answered, Background, Case, Finding, ReconcileOptions, Reconciled, Reconciler, Tally,
};
pub use run::{Done, Failed, Ran, RunError};
pub use settle::Settlement;
pub use steps::{StepError, StepKey};

pub(crate) use asked::{Effects, Overrides};
pub(crate) use engine::{Records, Transaction};
pub(crate) use run::join;

/// Makes operations on one store happen once. Cloning shares it.
///
/// `Guard::from(store)` follows [`Policy::default`]; a [builder](Self::builder) sets the rest.
pub struct Guard<S> {
    shared: Arc<Shared<S>>,
    policy: Policy,
    /// In place of the shared one.
    observer: Option<Arc<dyn Observer>>,
}

struct Shared<S> {
    store: S,
    observer: Option<Arc<dyn Observer>>,
    reconciler: Option<Arc<dyn Reconciler>>,
    reconcile_options: ReconcileOptions,
    flights: reconcile::Flights,
    turns: again::Turns,
    tasks: TaskTracker,
    /// Those among them that tell the store what is known.
    pursuits: TaskTracker,
    owings: owed::Owings,
    purgers: TaskTracker,
    /// Whether the process drains.
    draining: Arc<Watched<bool>>,
}

/// What a [`Guard`] is made with.
#[must_use]
pub struct GuardBuilder<S> {
    shared: Shared<S>,
    policy: Policy,
}

impl<S: Store> GuardBuilder<S> {
    /// The policy of calls that bring none of their own. [`Policy::default`] unless set.
    pub const fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Gets every event.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.shared.observer = Some(observer);
        self
    }

    /// Is asked about unknown outcomes: by callers in line under
    /// [`OnLost::Reconcile`](crate::store::OnLost::Reconcile), and by a [`Background`].
    pub fn reconciler(mut self, reconciler: Arc<dyn Reconciler>) -> Self {
        self.shared.reconciler = Some(reconciler);
        self
    }

    /// How often the reconciler is asked in line, and how long it has for an answer.
    /// [`ReconcileOptions::in_line`] unless set.
    pub fn reconcile_options(mut self, options: ReconcileOptions) -> Self {
        self.shared.reconcile_options = options;
        self
    }

    /// The guard.
    pub fn build(self) -> Guard<S> {
        Guard {
            shared: Arc::new(self.shared),
            policy: self.policy,
            observer: None,
        }
    }
}

impl<S: Store> From<S> for Guard<S> {
    fn from(store: S) -> Self {
        Self::builder(store).build()
    }
}

impl<S> Guard<S> {
    /// The store that it works on.
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// The policy of calls that bring none of their own.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn has_reconciler(&self) -> bool {
        self.shared.reconciler.is_some()
    }

    /// The same guard with another policy: store, observer, reconciler and tasks are shared.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            policy,
            observer: self.observer.clone(),
        }
    }

    /// The same guard that tells another observer: store, policy, reconciler and tasks are shared.
    #[must_use]
    pub fn with_observer(&self, observer: Arc<dyn Observer>) -> Self {
        Self {
            observer: Some(observer),
            ..self.clone()
        }
    }

    /// Tells the observer, if there is one.
    pub fn tell(&self, seen: &Seen<'_>) {
        self.observe(|| *seen);
    }

    fn observe<'a>(&self, seen: impl FnOnce() -> Seen<'a>) {
        self.observed(|observer| observer.on_event(&seen()));
    }

    /// What the observer says, if there is one. Its panic is none of the attempt's.
    fn observed<T>(&self, tell: impl FnOnce(&dyn Observer) -> T) -> Option<T> {
        let own = self.observer.as_deref();
        let observer = own.or(self.shared.observer.as_deref())?;
        catch_unwind(AssertUnwindSafe(|| tell(observer))).ok()
    }

    /// How many outcomes, releases and claims the store did not take or did not answer,
    /// and is asked about in the background (R14).
    pub fn unsettled(&self) -> usize {
        self.shared.pursuits.len()
    }
}

impl<S: Store> Guard<S> {
    /// A guard over `store` with this policy.
    pub fn new(store: S, policy: Policy) -> Self {
        Self::builder(store).policy(policy).build()
    }

    /// Sets what a guard over `store` needs besides.
    pub fn builder(store: S) -> GuardBuilder<S> {
        GuardBuilder {
            shared: Shared {
                store,
                observer: None,
                reconciler: None,
                reconcile_options: ReconcileOptions::default(),
                flights: reconcile::Flights::default(),
                turns: again::Turns::default(),
                tasks: TaskTracker::new(),
                pursuits: TaskTracker::new(),
                owings: owed::Owings::default(),
                purgers: TaskTracker::new(),
                draining: Arc::new(Watched::new(false)),
            },
            policy: Policy::default(),
        }
    }

    /// Runs `work` in a task of its own, which continues when the caller goes away (R11) and which
    /// [`drain`](Self::drain) waits for.
    pub fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        // A runtime moves what it is given about ten times: of a large one, only its address.
        const LARGE: usize = 1 << 10;
        #[cfg(feature = "tracing")]
        let work = tracing::Instrument::in_current_span(work);
        if size_of::<F>() > LARGE {
            self.shared.tasks.spawn(Box::pin(work))
        } else {
            self.shared.tasks.spawn(work)
        }
    }

    /// How many tasks of [`spawn`](Self::spawn) and works of [`attend`](Self::attend) are running.
    pub fn running(&self) -> usize {
        self.shared.tasks.len()
    }

    /// Returns once none of these is running, on this guard or on one that shares its store. What the
    /// store did not take yet (R14) is tried for 5 s at least. Ends the
    /// [purger](Self::spawn_purger). Call it when no more calls come.
    pub async fn drain(&self) {
        let _draining = Draining(&self.shared.draining);
        self.shared.draining.set(true);
        for tasks in [&self.shared.tasks, &self.shared.purgers] {
            tasks.close();
            tasks.wait().await;
        }
    }

    /// [Drains](Self::drain), then closes the store: the end of a program.
    ///
    /// # Errors
    /// The store's.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.drain().await;
        self.store().close().await
    }
}

struct Draining<'a>(&'a Watched<bool>);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<S> Clone for Guard<S> {
    fn clone(&self) -> Self {
        self.with_policy(self.policy)
    }
}

impl<S> fmt::Debug for Guard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
