//! The helper around any work: claim, run in a task of its own, keep the lease, settle.
//!
//! [`Guard::run`] does all of it for an async function. [`Guard::begin`] is the first half, for
//! those who settle the [`Attempt`] themselves, such as the HTTP middleware.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::guard::{Guard, Policy, Ran};
//! use semel::memory::MemoryStore;
//! use semel::{Fingerprint, Identity, Key, Scope};
//!
//! let guard = Guard::new(MemoryStore::default(), Policy::default());
//! for round in 0..2 {
//!     let key = Key::new("order-4711")?;
//!     let identity = Identity::new(Scope::new(["tenant-1"]), "place_order", key);
//!     let ran = guard
//!         .run(&identity, Fingerprint::of(b"3 apples"), |attempt| async move {
//!             // `attempt.fence` goes to services that can refuse a stale attempt.
//!             Ok::<_, std::io::Error>(format!("placed under fence {}", attempt.fence > semel::store::Fence(0)))
//!         })
//!         .await?;
//!     match ran {
//!         Ran::First(answer) => assert_eq!((round, answer.as_str()), (0, "placed under fence true")),
//!         Ran::Replayed(answer) => assert_eq!((round, answer.as_str()), (1, "placed under fence true")),
//!         Ran::Unprotected(_) => unreachable!("there is a key, and the store is up"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod attempt;
mod observer;
mod optional;
mod policy;
mod reconcile;
mod run;
mod seal;
mod steps;
mod together;
mod transact;
mod transact_step;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use crate::store::{Claim, ClaimRequest, Nonce, OnLost, Store};
use crate::{Fingerprint, Identity, Outcome, StoreError, StoreErrorKind};

pub use attempt::{Attempt, AttemptInfo, Settled};
pub use observer::{Event, Observer};
pub use policy::{InFlight, OnFailure, OnPanic, OnStoreError, Policy};
pub use reconcile::{
    Answer, Answered, Background, Case, Finding, ReconcileOptions, Reconciled, Reconciler, Tally,
};
pub use run::{Ran, RunError, Value};
pub use steps::{StepError, StepKey, Steps};
pub use transact::{Committed, Opening, TransactInfo, TransactOptions};

pub(crate) use attempt::caught;
pub(crate) use run::joined;
pub(crate) use together::{Together, Tried};

/// Makes operations on one store happen once, under one policy. Cloning shares it.
pub struct Guard<S>(Arc<Inner<S>>);

struct Inner<S> {
    // Shared by the guards of several operations: see `with_policy`.
    store: Arc<S>,
    policy: Policy,
    observer: Option<Arc<dyn Observer>>,
    reconciler: Option<Arc<dyn Reconciler>>,
    reconcile_options: ReconcileOptions,
    flights: Arc<reconcile::Flights>,
    tasks: TaskTracker,
}

/// What one claim is made with.
pub(crate) struct Choice<'a> {
    pub(crate) on_lost: OnLost,
    pub(crate) in_flight: InFlight,
    /// Says what is asked for, where a reconciler is asked: see [`Case::about`].
    pub(crate) about: &'a (dyn Fn() -> Option<Box<str>> + Sync),
}

/// What [`Guard::begin`] found.
#[derive(Debug)]
#[must_use = "an acquired attempt that is dropped blocks its identity until the lease lapses"]
pub enum Begin<S> {
    /// Run it, then settle the attempt.
    Acquired(Attempt<S>),
    /// It ran; replay this.
    Completed(Outcome),
    /// Another attempt is running.
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// An earlier attempt may have had its effect, and nobody knows (R7).
    Unknown,
    /// The key was used with another request (R3).
    Mismatch,
    /// The outcome's retention ended, and its tombstone says so.
    Expired,
    /// The store cannot be used, and the policy is to run all the same and say so (R9).
    Unprotected(StoreError),
}

/// What a duplicate is told to wait before it asks again; less where the lease ends sooner.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often a claim is sent again, under the same nonce, when the store does not answer.
const CLAIM_RETRIES: u32 = 2;
const CLAIM_BACKOFF: Duration = Duration::from_millis(20);

impl<S> Guard<S> {
    /// The store that it works on.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// The policies that it follows.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// Tells the observer, if there is one.
    pub fn observe(&self, event: Event) {
        if let Some(observer) = &self.0.observer {
            observer.on_event(event);
        }
    }
}

impl<S: Store> Guard<S> {
    /// A guard over `store` with these policies.
    pub fn new(store: S, policy: Policy) -> Self {
        Self(Arc::new(Inner {
            store: Arc::new(store),
            policy,
            observer: None,
            reconciler: None,
            reconcile_options: ReconcileOptions::in_line(),
            flights: Arc::default(),
            tasks: TaskTracker::new(),
        }))
    }

    /// A guard with another policy over the same store, with the same observer, reconciler and tasks:
    /// one for each kind of operation. [`drain`](Self::drain) of either waits for both.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        let Inner {
            store,
            policy: _,
            observer,
            reconciler,
            reconcile_options,
            flights,
            tasks,
        } = &*self.0;
        Self(Arc::new(Inner {
            store: Arc::clone(store),
            policy,
            observer: observer.clone(),
            reconciler: reconciler.clone(),
            reconcile_options: reconcile_options.clone(),
            flights: Arc::clone(flights),
            tasks: tasks.clone(),
        }))
    }

    /// The same with somebody who is told of every [`Event`]. Set it before cloning the guard.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        self.rebuild(|inner| inner.observer = Some(observer))
    }

    /// The same with somebody who is asked about unknown outcomes: by callers in line under
    /// [`OnLost::Reconcile`], and by a [`Background`]. Set it before cloning the guard.
    #[must_use]
    pub fn with_reconciler(self, reconciler: Arc<dyn Reconciler>) -> Self {
        self.rebuild(|inner| inner.reconciler = Some(reconciler))
    }

    /// How often the reconciler is asked in line, and how long it has for an answer.
    /// [`ReconcileOptions::in_line`] unless set. Set it before cloning the guard.
    #[must_use]
    pub fn with_reconcile_options(self, options: ReconcileOptions) -> Self {
        self.rebuild(|inner| inner.reconcile_options = options)
    }

    // Setters come before sharing; a guard that is shared already stays as it is.
    fn rebuild(mut self, set: impl FnOnce(&mut Inner<S>)) -> Self {
        debug_assert!(
            Arc::get_mut(&mut self.0).is_some(),
            "set before the guard is cloned"
        );
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            set(inner);
        }
        self
    }

    /// Claims `identity`, waiting for an attempt in flight as the policy says.
    ///
    /// Not cancel-safe: a future dropped while it claims may leave a claim that nobody runs, until
    /// its lease lapses. Call it in a task of its own, as [`run`](Self::run) and the middleware do.
    ///
    /// # Errors
    /// The store's error, where the policy is to refuse; and where the store fails while this
    /// waits for an attempt in flight, whatever the policy. Of kind
    /// [`Unknown`](StoreErrorKind::Unknown): the claim may stand until its lease lapses.
    pub async fn begin(
        &self,
        identity: &Identity,
        fingerprint: Fingerprint,
    ) -> Result<Begin<S>, StoreError> {
        self.begin_about(identity, fingerprint, &|| None).await
    }

    /// [`begin`](Self::begin) for callers who can say more of what is asked for than the identity
    /// does: see [`Case::about`]. `about` is called only where a reconciler is asked.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    pub async fn begin_about(
        &self,
        identity: &Identity,
        fingerprint: Fingerprint,
        about: &(dyn Fn() -> Option<Box<str>> + Sync),
    ) -> Result<Begin<S>, StoreError> {
        let policy = &self.0.policy;
        let choice = Choice {
            on_lost: policy.on_lost,
            in_flight: policy.in_flight,
            about,
        };
        self.begin_with(identity, fingerprint, choice).await
    }

    /// [`begin`](Self::begin) with a choice for this claim in the place of the policy's.
    pub(crate) async fn begin_with(
        &self,
        identity: &Identity,
        fingerprint: Fingerprint,
        choice: Choice<'_>,
    ) -> Result<Begin<S>, StoreError> {
        let policy = &self.0.policy;
        let Choice {
            on_lost,
            in_flight,
            about,
        } = choice;
        let request = ClaimRequest {
            nonce: Nonce::random()?,
            fingerprint,
            lease: policy.lease,
            on_lost,
        };
        let mut deadline = None;
        let mut asked_about = None;
        loop {
            let sent = Instant::now();
            let claim = match self.claim(identity, &request).await {
                Ok(claim) => claim,
                Err(error) if policy.on_store_error == OnStoreError::FailOpen => {
                    self.observe(Event::Unprotected);
                    return Ok(Begin::Unprotected(error));
                }
                Err(error) => return Err(error),
            };
            let (event, begin) = match claim {
                Claim::Acquired(acquired) => {
                    self.observe(if acquired.attempt == 1 {
                        Event::New
                    } else {
                        Event::Again
                    });
                    let attempt = Attempt::new(self.clone(), *identity.digest(), acquired, sent);
                    return Ok(Begin::Acquired(attempt));
                }
                Claim::InFlight { fence, remaining } => {
                    if let InFlight::Wait(at_most) = in_flight {
                        let deadline = *deadline.get_or_insert(sent + at_most);
                        let left = deadline.saturating_duration_since(Instant::now());
                        if !left.is_zero() {
                            // A lapse is no change in the store: ask again when it is due.
                            let turn = left.min(remaining.max(Duration::from_millis(1)));
                            self.store().wait(identity.digest(), fence, turn).await?;
                            continue;
                        }
                    }
                    let retry_after = remaining.min(RETRY_AFTER);
                    (Event::InFlight, Begin::InFlight { retry_after })
                }
                Claim::Unknown { fence } => {
                    // Each attempt is asked about once: the answer may be that nobody knows.
                    if on_lost == OnLost::Reconcile
                        && asked_about.replace(fence) != Some(fence)
                        && self.reconcile(identity, fence, about).await
                    {
                        continue;
                    }
                    (Event::Unknown, Begin::Unknown)
                }
                Claim::Completed { outcome, .. } => (Event::Replayed, Begin::Completed(outcome)),
                Claim::Mismatch => (Event::Mismatch, Begin::Mismatch),
                Claim::Expired => (Event::Expired, Begin::Expired),
            };
            self.observe(event);
            return Ok(begin);
        }
    }

    /// [`begin`](Self::begin) for callers who may go away: what they no longer wait for is given back.
    async fn begin_detached(
        &self,
        identity: &Identity,
        fingerprint: Fingerprint,
    ) -> Result<Begin<S>, StoreError> {
        let (caller, begun) = oneshot::channel();
        let (guard, identity) = (self.clone(), identity.clone());
        self.spawn(async move {
            let begun = guard.begin(&identity, fingerprint).await;
            if let Err(Ok(Begin::Acquired(attempt))) = caller.send(begun) {
                // If the store cannot be told either, the lease lapses.
                attempt.abandon().await.ok();
            }
        });
        match begun.await {
            Ok(begun) => begun,
            // The runtime is shutting down, and the caller with it.
            Err(_) => std::future::pending().await,
        }
    }

    // Sends the claim again under the same nonce while the store does not answer: if the first one
    // arrived, the second is told that it won.
    async fn claim(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let mut tries = 0;
        loop {
            let error = match self.store().claim(identity, request).await {
                Ok(claim) => return Ok(claim),
                Err(error) => error,
            };
            let may_pass = match error.kind() {
                StoreErrorKind::Capacity => {
                    self.observe(Event::Capacity);
                    false
                }
                kind => {
                    self.observe(Event::StoreError);
                    matches!(kind, StoreErrorKind::NotApplied | StoreErrorKind::Unknown)
                }
            };
            if !may_pass || tries == CLAIM_RETRIES {
                return Err(error);
            }
            sleep(CLAIM_BACKOFF * 3_u32.pow(tries)).await;
            tries += 1;
        }
    }

    /// Runs `work` in a task of its own, which goes on when the caller goes away (R11) and which
    /// [`drain`](Self::drain) waits for.
    pub fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.tasks.spawn(work)
    }

    /// How many tasks of [`spawn`](Self::spawn) are running.
    pub fn running(&self) -> usize {
        self.0.tasks.len()
    }

    /// Returns once no task of [`spawn`](Self::spawn) is running. Call it when no more come.
    pub async fn drain(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl<S> Clone for Guard<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Guard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("policy", &self.0.policy)
            .finish_non_exhaustive()
    }
}
