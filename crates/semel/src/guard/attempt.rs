//! An attempt: what its work can see and do, and how it is settled.

use std::any::Any;
use std::fmt::{self, Display};
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use tokio::time::Instant;

#[cfg(feature = "tracing")]
use super::Observer;
use super::asked::Effects;
use super::lease::{Lease, Leased};
use super::settle::in_runtime;
use super::steps::Taken;
use super::{Asked, Guard, OnError, OnPanic, Seen, Settlement, Signal};
use crate::store::{Acquired, Fence, Nonce, Refusal, Store, Token};
use crate::sync::Mutex;
use crate::{FinishedStep, Identity, IdentityDigest, Outcome, OutcomeKind, StoreError, Timestamp};

/// What the work may know of the attempt that it runs in.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttemptInfo {
    /// The name of the operation for others: the same in every attempt, another one for another
    /// scope, operation or key. No key can be read from it. Over HTTP `Idempotency-Id`.
    pub id: IdentityDigest,
    /// Grows with every claim on the identity: pass it to services that can refuse a stale one.
    pub fence: Fence,
    /// Which attempt this is, from 1.
    pub number: u32,
    /// How often the work was run and rolled back in this attempt, because its transaction was in
    /// conflict with others. What it does outside the transaction happens as often.
    pub retry: u32,
    lease: Option<Arc<dyn Leased>>,
}

impl AttemptInfo {
    /// Whether the lease is held by this process's own clock: no other attempt can have begun.
    /// Always so for a call without protection.
    pub fn still_held(&self) -> bool {
        self.lease
            .as_ref()
            .is_none_or(|leased| leased.lease().is_held())
    }

    /// Returns when the lease is lost: the store refused to renew it, or did not in time. Another
    /// attempt may run from then on. Work that can stop should.
    pub async fn lost(&self) {
        match &self.lease {
            Some(leased) => leased.lease().lost().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn again(&self, retry: u32) -> Self {
        Self {
            retry,
            ..self.clone()
        }
    }
}

/// An attempt in the hands of the work: what there is to know of it ([`AttemptInfo`]), and its
/// [steps](Self::step).
pub struct Attempt<S> {
    pub(super) claimed: Arc<Claimed<S>>,
    pub(super) info: AttemptInfo,
}

impl<S> Deref for Attempt<S> {
    type Target = AttemptInfo;

    fn deref(&self) -> &AttemptInfo {
        &self.info
    }
}

/// What everybody shares who acts for one attempt.
pub(crate) struct Claimed<S> {
    pub(super) guard: Guard<S>,
    pub(super) effects: Effects,
    pub(super) identity: IdentityDigest,
    /// What that is the digest of; none without a key.
    of: Option<Identity>,
    /// None for a call without protection, of which nothing is kept.
    pub(super) token: Option<Token>,
    pub(super) number: u32,
    /// When this life of the identity began.
    pub(super) since: Timestamp,
    /// When the claim was sent.
    pub(super) sent: Instant,
    pub(super) lease: Lease,
    pub(super) steps: Mutex<Taken>,
    /// Its end is known, and it had no effect.
    pub(super) had_no_effect: AtomicBool,
    /// What the store took of its end.
    pub(super) told: OnceLock<Settled>,
    #[cfg(feature = "tracing")]
    pub(super) span: tracing::Span,
}

impl<S: Store> Claimed<S> {
    pub(super) fn new(
        guard: Guard<S>,
        asked: &Asked,
        identity: IdentityDigest,
        acquired: Option<Acquired>,
        sent: Instant,
    ) -> Self {
        #[cfg_attr(
            not(feature = "tracing"),
            expect(unused_mut, reason = "it has no span")
        )]
        let mut claimed = Self {
            effects: asked.effects,
            identity,
            of: asked.identity.clone(),
            token: acquired.map(|acquired| acquired.token),
            number: acquired.map_or(1, |acquired| acquired.attempt),
            since: acquired.map_or(Timestamp::default(), |acquired| acquired.since),
            sent,
            lease: Lease::new(guard.policy.lease, sent),
            steps: Mutex::new(Taken {
                leaves: asked.unbegun.clone(),
                ..Taken::default()
            }),
            had_no_effect: AtomicBool::new(false),
            told: OnceLock::new(),
            #[cfg(feature = "tracing")]
            span: tracing::Span::none(),
            guard,
        };
        #[cfg(feature = "tracing")]
        {
            let span = |observer: &dyn Observer| observer.span(&claimed.seen(Signal::New));
            let span = claimed.guard.observed(span);
            claimed.span = span.unwrap_or_else(tracing::Span::none);
        }
        claimed
    }

    /// A call without protection. Without a key it has an identity that no other call has: two
    /// calls are two, also for the services that their steps call.
    pub(super) fn unprotected(guard: Guard<S>, asked: &Asked) -> Result<Self, StoreError> {
        let identity = match asked.identity() {
            Some(identity) => *identity.digest(),
            None => {
                let (one, other) = (Nonce::random()?, Nonce::random()?);
                let mut digest = [0; 32];
                digest[..16].copy_from_slice(one.as_bytes());
                digest[16..].copy_from_slice(other.as_bytes());
                IdentityDigest::from_bytes(digest)
            }
        };
        Ok(Self::new(guard, asked, identity, None, Instant::now()))
    }

    pub(super) fn store(&self) -> &S {
        self.guard.store()
    }

    /// Tells the observer of something that happened to this attempt.
    pub(super) fn signal(&self, signal: Signal) {
        #[cfg(feature = "tracing")]
        let _entered = self.span.enter();
        #[cfg(feature = "tracing")]
        if signal.ends_attempt() {
            self.span.record("ended", signal.as_str());
        }
        self.guard.observe(|| Seen {
            ran_for: Some(self.sent.elapsed()),
            ..self.seen(signal)
        });
    }

    /// What can be said of this attempt, but for the time.
    pub(super) fn seen(&self, signal: Signal) -> Seen<'_> {
        let seen = match &self.of {
            Some(identity) => Seen::of(identity, signal),
            None => Seen::new(signal),
        };
        Seen {
            id: Some(&self.identity),
            attempt: Some(self.number),
            fence: self.token.map(|token| token.fence),
            ..seen
        }
    }

    pub(super) fn info(self: &Arc<Self>) -> AttemptInfo {
        AttemptInfo {
            id: self.identity,
            fence: self.token.map_or(Fence(0), |token| token.fence),
            number: self.number,
            retry: 0,
            lease: self.token.is_some().then(|| Arc::clone(self) as _),
        }
    }

    /// What an error of the work means.
    pub(super) fn after<E: Display + 'static>(&self, asked: &Asked, error: &E) -> Settlement {
        let classifier = asked.classifier.as_ref();
        let said = classifier.and_then(|classify| classify(error));
        match said.or(self.guard.policy.on_error) {
            Some(OnError::Keep) => {
                let text = error.to_string();
                let failure = Outcome::builder(OutcomeKind::Failure).code(Outcome::TEXT);
                Settlement::Complete(failure.body(text.as_bytes()), None)
            }
            Some(OnError::Release) => Settlement::Release,
            Some(OnError::Unknown) => Settlement::Unknown,
            None => self.unless_said(),
        }
    }

    /// What a panic means.
    fn after_panic(&self) -> Settlement {
        match self.guard.policy.on_panic {
            Some(OnPanic::Release) => Settlement::Release,
            Some(OnPanic::Unknown) => Settlement::Unknown,
            None => self.unless_said(),
        }
    }

    /// What the work did is undone, or done again under the same keys; elsewhere nobody knows.
    fn unless_said(&self) -> Settlement {
        match self.effects {
            Effects::InSteps | Effects::InTransaction => Settlement::Release,
            Effects::Offered if self.steps.lock().took_transaction => Settlement::Release,
            Effects::Offered | Effects::Anywhere => Settlement::Unknown,
        }
    }
}

/// How an attempt was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a refused settlement recorded nothing (protocol rule R4)"]
pub enum Settled {
    /// Recorded, as durable as the store promises.
    Applied,
    /// Recorded as done, but without its answer: it was too large for the store.
    Omitted,
    /// Nothing was changed.
    Refused(Refusal),
}

/// A claim that was acquired, and whose lease is renewed until it is settled. [`run`](Self::run) the
/// work, then [`settle`](Self::settle) it.
///
/// Dropped without that it settles itself in the background: released where the work was not begun,
/// unknown otherwise.
///
/// Settling asks a store that fails again. After 5 s the caller gets the error, and the store is
/// asked in the background until it takes or refuses what is known, or the process
/// [drains](Guard::drain) (R14).
pub struct Held<S: Store> {
    claimed: Arc<Claimed<S>>,
    /// What happens when this is dropped. None: it is settled.
    pub(super) otherwise: Option<Settlement>,
}

impl<S: Store> Held<S> {
    pub(super) fn new(claimed: Arc<Claimed<S>>) -> Self {
        Self {
            claimed,
            otherwise: Some(Settlement::Release),
        }
    }

    pub(crate) const fn claimed(&self) -> &Arc<Claimed<S>> {
        &self.claimed
    }

    /// Which attempt this is, from 1.
    pub fn number(&self) -> u32 {
        self.claimed.number
    }

    /// The name of its record.
    pub fn id(&self) -> &IdentityDigest {
        &self.claimed.identity
    }

    /// What the work may know. From now on it counts as begun.
    pub fn info(&mut self) -> AttemptInfo {
        self.begin_work();
        self.claimed.info()
    }

    /// The attempt for the work. From now on it counts as begun.
    pub fn attempt(&mut self) -> Attempt<S> {
        Attempt {
            info: self.info(),
            claimed: Arc::clone(&self.claimed),
        }
    }

    fn begin_work(&mut self) {
        if self.otherwise.is_some() {
            self.otherwise = Some(Settlement::Unknown);
            self.claimed.steps.lock().leaves = None;
        }
    }

    /// Runs `work`, with a panic of it as a value. From now on it counts as begun.
    ///
    /// # Errors
    /// The panic's payload, for [`std::panic::resume_unwind`].
    pub fn run<F: Future>(
        &mut self,
        work: F,
    ) -> impl Future<Output = Result<F::Output, Box<dyn Any + Send>>> + use<F, S> {
        self.begin_work();
        #[cfg(feature = "tracing")]
        let work = tracing::Instrument::instrument(work, self.claimed.span.clone());
        catch_panic(work)
    }

    /// Records the outcome for the policy's retention. An outcome too large for the store is
    /// recorded as omitted.
    ///
    /// # Errors
    /// The store's: the outcome is not recorded yet, see [`Held`].
    pub async fn complete(self, outcome: &Outcome) -> Result<Settled, StoreError> {
        self.settle(Settlement::Complete(outcome.clone(), None))
            .await
    }

    /// Gives the identity back: the work had no effect, and may run again.
    ///
    /// # Errors
    /// The store's: the identity is not released yet, see [`Held`].
    pub async fn release(self) -> Result<Settled, StoreError> {
        self.settle(Settlement::Release).await
    }

    /// Gives the identity back, and leaves a step under its record: not the one without the other.
    pub(crate) async fn release_leaving(
        self,
        step: Option<FinishedStep>,
    ) -> Result<Settled, StoreError> {
        self.claimed.steps.lock().leaves = step;
        self.release().await
    }

    /// Says that the work may have had its effect, and that nobody knows.
    ///
    /// # Errors
    /// The store's: it is not recorded yet, see [`Held`].
    pub async fn mark_unknown(self) -> Result<Settled, StoreError> {
        self.settle(Settlement::Unknown).await
    }

    /// Settles it as the policy says of a panic, which goes on: whatever the store says, it is what
    /// the caller must see.
    pub async fn panicked(self, panic: Box<dyn Any + Send>) -> ! {
        let settlement = self.claimed.after_panic();
        self.settle(settlement).await.ok();
        resume_unwind(panic)
    }

    /// Gives the identity back after [`Transacted::Unknown`](super::Transacted::Unknown). Whether nothing
    /// of the transaction is committed, nor will be: what is still on its way to the database is refused
    /// then.
    pub async fn give_up(self) -> bool {
        let claimed = Arc::clone(self.claimed());
        let policy = &claimed.guard.policy;
        match self.release().await {
            Ok(Settled::Applied) => claimed.token.is_some(),
            // The database died, and forgot the claim: a record of what was committed would be there still.
            Ok(Settled::Refused(Refusal::Missing)) => {
                claimed.effects.may_be_forgotten(policy)
                    && claimed.sent.elapsed() < policy.retention.replay
            }
            _ => false,
        }
    }

    /// Gives the identity back in the background, and leaves a step under its record.
    pub(crate) fn release_later_leaving(mut self, step: Option<FinishedStep>) {
        self.claimed.steps.lock().leaves = step;
        self.otherwise = Some(Settlement::Release);
    }

    /// The identity lapses, as that of a process that dies: it is neither renewed nor settled. For
    /// tests of what happens then.
    pub fn let_lapse(mut self) {
        self.forget();
    }

    /// Nothing is to be told to the store any more.
    pub(super) fn forget(&mut self) {
        self.otherwise = None;
        self.claimed.stop_renewing();
    }

    /// Stops renewing the lease, as a paused process would. For tests of what happens then.
    pub fn stop_renewing(&self) {
        self.claimed.stop_renewing();
    }
}

impl<S: Store> Drop for Held<S> {
    fn drop(&mut self) {
        match self.otherwise.take() {
            Some(settlement) if in_runtime() => {
                self.claimed.settle_in_background(settlement);
            }
            // It lapses.
            Some(_) => self.claimed.stop_renewing(),
            None => {}
        }
    }
}

/// Work with its panic as a value. It is not polled again after one, so nobody sees what it broke.
///
/// # Errors
/// The panic's payload, for [`std::panic::resume_unwind`].
pub fn catch_panic<F: Future>(
    work: F,
) -> impl Future<Output = Result<F::Output, Box<dyn Any + Send>>> {
    // Not an async function: it would hold the work twice.
    AssertUnwindSafe(work).catch_unwind()
}

impl<S: Store> fmt::Debug for Held<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.claimed.info()).finish()
    }
}

impl<S> fmt::Debug for Attempt<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attempt").field(&self.info).finish()
    }
}
