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

mod asked;
mod attempt;
mod engine;
mod lease;
mod observer;
mod policy;
mod reconcile;
mod run;
mod settle;
mod steps;
mod transact;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::store::{Claim, ClaimRequest, Nonce, OnLost, Store};
use crate::{Identity, Outcome, Record, StoreError, StoreErrorKind};

pub use asked::Asked;
pub use attempt::{Attempt, AttemptInfo, Held, Settled, catch_panic};
pub use engine::{Opening, TransactOptions, Transacted};
pub use observer::{Observer, Signal};
pub use policy::{InFlight, OnError, OnPanic, OnStoreError, Policy};
pub use reconcile::{
    Answer, Answered, Background, Case, Finding, ReconcileOptions, Reconciled, Reconciler, Tally,
};
pub use run::{Done, Failed, Ran, RunError};
pub use steps::{StepError, StepKey};

pub(crate) use asked::{Effects, Overrides};
pub(crate) use engine::{Records, Transaction};
pub(crate) use run::join;

use attempt::Claimed;
use lease::later;
use settle::{InDoubt, PATIENCE, may_pass};

/// Makes operations on one store happen once. Cloning shares it.
///
/// `Guard::from(store)` follows [`Policy::default`]; a [builder](Self::builder) sets the rest.
pub struct Guard<S> {
    shared: Arc<Shared<S>>,
    policy: Policy,
}

struct Shared<S> {
    store: S,
    plugged: Plugged,
    flights: reconcile::Flights,
    tasks: TaskTracker,
    /// How many tasks tell the store what is known.
    pursuits: AtomicUsize,
    /// Until when these may go on, once the process drains.
    draining: watch::Sender<Option<Instant>>,
}

/// What a [`Guard`] is made with.
#[must_use]
pub struct GuardBuilder<S> {
    store: S,
    policy: Policy,
    plugged: Plugged,
}

#[derive(Default)]
struct Plugged {
    observer: Option<Arc<dyn Observer>>,
    reconciler: Option<Arc<dyn Reconciler>>,
    reconcile_options: ReconcileOptions,
}

impl<S: Store> GuardBuilder<S> {
    /// The policy of calls that bring none of their own. [`Policy::default`] unless set.
    pub const fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Gets every [`Signal`].
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.plugged.observer = Some(observer);
        self
    }

    /// Is asked about unknown outcomes: by callers in line under [`OnLost::Reconcile`], and by a
    /// [`Background`].
    pub fn reconciler(mut self, reconciler: Arc<dyn Reconciler>) -> Self {
        self.plugged.reconciler = Some(reconciler);
        self
    }

    /// How often the reconciler is asked in line, and how long it has for an answer.
    /// [`ReconcileOptions::in_line`] unless set.
    pub fn reconcile_options(mut self, options: ReconcileOptions) -> Self {
        self.plugged.reconcile_options = options;
        self
    }

    /// The guard.
    pub fn build(self) -> Guard<S> {
        Guard {
            shared: Arc::new(Shared {
                store: self.store,
                plugged: self.plugged,
                flights: reconcile::Flights::default(),
                tasks: TaskTracker::new(),
                pursuits: AtomicUsize::new(0),
                draining: watch::Sender::new(None),
            }),
            policy: self.policy,
        }
    }
}

impl<S: Store> From<S> for Guard<S> {
    fn from(store: S) -> Self {
        Self::builder(store).build()
    }
}

/// What [`Guard::begin`] found.
#[must_use = "an acquired attempt that is dropped settles itself"]
pub enum Begin<S: Store> {
    /// Run it, then settle the attempt.
    Acquired(Held<S>),
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
    /// There is no key: run it plainly (R13).
    Unkeyed,
    /// There is no key, and the policy requires one.
    KeyRequired,
    /// The store cannot be reached, and the policy is to run all the same and say so (R9).
    Unprotected(StoreError),
}

/// What a duplicate is told to wait before it asks again; less where the lease ends sooner.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often a claim is sent again, under the same nonce, when the store does not answer.
const CLAIM_RETRIES: u32 = 2;

impl<S> Guard<S> {
    /// The store that it works on.
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// The policy of calls that bring none of their own.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The same guard with another policy: store, observer, reconciler and tasks are shared.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            policy,
        }
    }

    /// Tells the observer, if there is one.
    pub fn signal(&self, signal: Signal) {
        if let Some(observer) = &self.shared.plugged.observer {
            observer.on_signal(signal);
        }
    }

    /// How many outcomes, releases and claims the store could not be told of, or did not answer,
    /// and is asked about in the background (R14).
    pub fn unsettled(&self) -> usize {
        self.shared
            .pursuits
            .load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl<S: Store> Guard<S> {
    /// A guard over `store` with this policy.
    pub fn new(store: S, policy: Policy) -> Self {
        Self::builder(store).policy(policy).build()
    }

    /// Sets what a guard over `store` needs beside it.
    pub fn builder(store: S) -> GuardBuilder<S> {
        GuardBuilder {
            store,
            policy: Policy::default(),
            plugged: Plugged::default(),
        }
    }

    /// Claims what is asked for, waiting for an attempt in flight as the policy says. An acquired
    /// attempt is renewed from now on.
    ///
    /// Dropped before it answers, or answered with an error, it leaves no claim behind: one that
    /// the store may have made is given back in the background (R14).
    ///
    /// # Errors
    /// The store's, where the policy is to refuse; and where the store fails while this waits for an
    /// attempt in flight, whatever the policy. Nothing ran.
    pub async fn begin(&self, asked: &Asked) -> Result<Begin<S>, StoreError> {
        let guard = self.with_policy(asked.overrides.over(self.policy));
        let Some(identity) = asked.identity() else {
            if guard.policy.key_required {
                return Ok(Begin::KeyRequired);
            }
            self.signal(Signal::Unkeyed);
            return Ok(Begin::Unkeyed);
        };
        let policy = guard.policy;
        let mut claim = InDoubt {
            guard: &guard,
            asked,
            request: ClaimRequest {
                nonce: Nonce::random()?,
                fingerprint: asked.fingerprint,
                lease: policy.lease,
                on_lost: policy.on_lost.unwrap_or(asked.effects.on_lost()),
            },
            is_doubtful: false,
        };
        let mut deadline = None;
        let mut asked_about = None;
        loop {
            let sent = Instant::now();
            let answer = match claim.send(identity).await {
                Ok(answer) => answer,
                Err(error)
                    if policy.on_store_error == OnStoreError::FailOpen && is_down(&error) =>
                {
                    self.signal(Signal::Unprotected);
                    return Ok(Begin::Unprotected(error));
                }
                Err(error) => return Err(error),
            };
            let (signal, begin) = match answer {
                Claim::Acquired(acquired) => {
                    let (acquired, digest) = (Some(acquired), *identity.digest());
                    let claimed = Claimed::new(guard.clone(), asked, digest, acquired, sent);
                    let held = Held::new(Arc::new(claimed));
                    self.signal(match held.number() {
                        1 => Signal::New,
                        _ => Signal::Again,
                    });
                    held.claimed().keep_renewed().await;
                    return Ok(Begin::Acquired(held));
                }
                Claim::InFlight { fence, remaining } => {
                    if let InFlight::Wait(at_most) = policy.in_flight {
                        let deadline = *deadline.get_or_insert_with(|| later(sent, at_most));
                        let left = deadline.saturating_duration_since(Instant::now());
                        if !left.is_zero() {
                            // A lapse is no change in the store: ask again when it is due.
                            let turn = left.min(remaining.max(Duration::from_millis(1)));
                            self.store().wait(identity.digest(), fence, turn).await?;
                            continue;
                        }
                    }
                    let retry_after = remaining.min(RETRY_AFTER);
                    (Signal::InFlight, Begin::InFlight { retry_after })
                }
                Claim::Unknown { fence } => {
                    // Each attempt is looked into once: the answer may be that nobody knows.
                    if asked_about.replace(fence) != Some(fence)
                        && guard
                            .look_into(asked, identity, fence, &mut claim.request)
                            .await?
                    {
                        continue;
                    }
                    (Signal::Unknown, Begin::Unknown)
                }
                Claim::Completed { outcome, .. } => (Signal::Replayed, Begin::Completed(outcome)),
                Claim::Mismatch => (Signal::Mismatch, Begin::Mismatch),
                Claim::Expired => (Signal::Expired, Begin::Expired),
            };
            self.signal(signal);
            return Ok(begin);
        }
    }

    /// Whether another claim is worth it after an attempt of unknown outcome.
    async fn look_into(
        &self,
        asked: &Asked,
        identity: &Identity,
        fence: crate::store::Fence,
        request: &mut ClaimRequest,
    ) -> Result<bool, StoreError> {
        if request.on_lost == OnLost::Reconcile {
            return Ok(self.reconcile(asked, identity, fence).await);
        }
        if self.policy.on_lost.is_some() || asked.effects != Effects::Offered {
            return Ok(false);
        }
        // The mark was kept before the transaction was begun. What was said to be unknown, and not
        // found so after its lease, is unknown for all that.
        let record = self
            .store()
            .get(identity.digest())
            .await?
            .map(|entry| entry.record);
        let lost = |record: Record| {
            record.progress.is_in_transaction() && record.settled_at >= Some(record.lease_until)
        };
        if record.is_some_and(lost) {
            request.on_lost = OnLost::Retry;
        }
        Ok(request.on_lost == OnLost::Retry)
    }

    /// Asks a store that fails again, for as long as a caller has patience.
    async fn insist<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        call: impl Fn() -> F,
    ) -> Result<T, StoreError> {
        let until = later(Instant::now(), PATIENCE.min(self.policy.lease));
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        loop {
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            self.signal(Signal::StoreError);
            let pause = backoff.pause();
            if !may_pass(&error) || Instant::now() + pause > until {
                return Err(error);
            }
            sleep(pause).await;
        }
    }

    /// Runs `work` in a task of its own, which goes on when the caller goes away (R11) and which
    /// [`drain`](Self::drain) waits for.
    pub fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.shared.tasks.spawn(work)
    }

    /// How many tasks of [`spawn`](Self::spawn) are running.
    pub fn running(&self) -> usize {
        self.shared.tasks.len()
    }

    /// Returns once no task of [`spawn`](Self::spawn) is running, on this guard or on one that shares
    /// its store. What the store could not be told (R14) is tried for 5 s at least. Call it when no
    /// more calls come.
    pub async fn drain(&self) {
        let _draining = Draining(&self.shared.draining);
        let until = later(Instant::now(), PATIENCE);
        self.shared.draining.send_replace(Some(until));
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

struct Draining<'a>(&'a watch::Sender<Option<Instant>>);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

impl<S: Store> InDoubt<'_, S> {
    /// Sends the claim, and again under the same nonce while the store does not answer: if the first
    /// one arrived, the second is told that it won.
    async fn send(&mut self, identity: &Identity) -> Result<Claim, StoreError> {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(60));
        for tries in 0.. {
            let was_doubtful = std::mem::replace(&mut self.is_doubtful, true);
            let error = match self.guard.store().claim(identity, &self.request).await {
                Ok(claim) => {
                    self.is_doubtful = false;
                    return Ok(claim);
                }
                Err(error) => error,
            };
            self.is_doubtful = was_doubtful || error.kind() == StoreErrorKind::Unknown;
            self.guard.signal(match error.kind() {
                StoreErrorKind::Capacity => Signal::Capacity,
                _ => Signal::StoreError,
            });
            if !is_down(&error) || tries == CLAIM_RETRIES {
                return Err(error);
            }
            sleep(backoff.pause()).await;
        }
        unreachable!("tries end with an answer or an error")
    }
}

/// Whether the store did not answer, or not in time. One that is full, damaged or closed did.
fn is_down(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::NotApplied | StoreErrorKind::Unknown
    )
}

impl<S: Store> fmt::Debug for Begin<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquired(_) => "Acquired",
            Self::Completed(_) => "Completed",
            Self::InFlight { .. } => "InFlight",
            Self::Unknown => "Unknown",
            Self::Mismatch => "Mismatch",
            Self::Expired => "Expired",
            Self::Unkeyed => "Unkeyed",
            Self::KeyRequired => "KeyRequired",
            Self::Unprotected(_) => "Unprotected",
        })
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
