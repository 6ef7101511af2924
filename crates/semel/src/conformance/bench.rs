//! What a case works with: a store, a way to let time pass, and identities that nobody else has.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::expect::{acquired, applied};
use super::{Failure, LONG};
use crate::store::{
    Acquired, Claim, ClaimRequest, Entry, Nonce, OnLost, Retention, Store, StoreExt as _, Token,
};
use crate::{
    AnyStore, Fingerprint, Identity, IdentityDigest, Key, ManualClock, Outcome, Scope, Timestamp,
};

/// One case's store and surroundings, made by a [`Factory`](super::Factory).
pub struct Bench {
    store: AnyStore,
    other: AnyStore,
    clock: Option<Advance>,
    short: Duration,
    margin: Duration,
    patience: Duration,
    rounds: usize,
    exclusive: bool,
    sharded: bool,
    scope: String,
    // Dropped after the stores: a directory, a server process.
    keep: Vec<Box<dyn Any + Send + Sync>>,
}

type Advance = Box<dyn Fn(Duration) + Send + Sync>;

impl Bench {
    /// A bench with this store, which has a clock of its own: the suite really waits.
    pub fn new(store: impl Store) -> Self {
        let store = AnyStore::new(store);
        Self {
            other: store.clone(),
            store,
            clock: None,
            short: Duration::from_millis(40),
            margin: Duration::from_millis(10),
            patience: Duration::from_secs(10),
            rounds: 20,
            exclusive: false,
            sharded: false,
            scope: "conformance".into(),
            keep: Vec::new(),
        }
    }

    /// Adds a second handle on the same records: another connection, better another process.
    #[must_use]
    pub fn with_other(mut self, other: impl Store) -> Self {
        self.other = AnyStore::new(other);
        self
    }

    /// The store's time is this clock's: the suite advances it instead of waiting, and checks
    /// bounds to the microsecond.
    #[must_use]
    pub fn with_clock(self, clock: Arc<ManualClock>) -> Self {
        self.with_advance(move |by| clock.advance(by))
    }

    /// The same for a clock of another kind.
    #[must_use]
    pub fn with_advance(mut self, advance: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        self.clock = Some(Box::new(advance));
        self
    }

    /// How long a lease is that the suite waits out. 40 ms unless set; more for a store that is
    /// far away.
    #[must_use]
    pub const fn with_short(mut self, short: Duration) -> Self {
        self.short = short;
        self
    }

    /// How much longer than asked the suite waits, so that the store's clock has certainly got there. 10 ms
    /// unless set; more for a store whose handles may take its time to be earlier.
    #[must_use]
    pub const fn with_margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// How long a waiter may take to learn of a change. 10 s unless set.
    #[must_use]
    pub const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How often each race is run. 20 times unless set.
    #[must_use]
    pub const fn with_rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds;
        self
    }

    /// Nobody else uses these records: the suite counts what a purge removes.
    #[must_use]
    pub const fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// The records lie on several servers, and each gives out fences by itself: two identities may get
    /// the same one. The suite does not ask for more then.
    #[must_use]
    pub const fn sharded(mut self) -> Self {
        self.sharded = true;
        self
    }

    /// Keeps `guard` until the bench is dropped: a temporary directory, a server's process.
    #[must_use]
    pub fn keeping(mut self, guard: impl Any + Send + Sync) -> Self {
        self.keep.push(Box::new(guard));
        self
    }

    /// The store under test.
    pub const fn store(&self) -> &AnyStore {
        &self.store
    }

    pub(super) const fn other(&self) -> &AnyStore {
        &self.other
    }

    pub(super) const fn short(&self) -> Duration {
        self.short
    }

    pub(super) const fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) const fn rounds(&self) -> usize {
        self.rounds
    }

    pub(super) const fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    pub(super) const fn is_sharded(&self) -> bool {
        self.sharded
    }

    // The longest that a case may take.
    pub(super) fn limit(&self) -> Duration {
        self.patience.saturating_mul(12)
    }

    /// Whether time stands still until it is advanced.
    pub(super) const fn is_manual(&self) -> bool {
        self.clock.is_some()
    }

    /// Lets exactly this much time pass, or certainly as much where the clock is the store's.
    pub(super) async fn pass(&self, time: Duration) {
        match &self.clock {
            Some(advance) => advance(time),
            None => tokio::time::sleep(time + self.margin).await,
        }
    }

    /// An identity that nobody else has, with this key.
    pub(super) fn identity(&self, key: &str) -> Result<Identity, Failure> {
        let scope = Scope::new([&*self.scope, &unique()?]);
        let key = Key::new(key).map_err(|e| Failure::new(e.to_string()))?;
        Ok(Identity::new(scope, "conformance", key))
    }

    /// The record as it is stored.
    pub(super) async fn entry(&self, identity: &IdentityDigest) -> Result<Entry, Failure> {
        let entry = self.store.get(identity).await?;
        entry.ok_or_else(|| Failure::new("the record is not there"))
    }

    /// A fresh identity, claimed for a long time.
    pub(super) async fn attempt(&self) -> Result<Attempt, Failure> {
        self.attempt_for(LONG).await
    }

    /// A fresh identity, claimed for `lease`.
    pub(super) async fn attempt_for(&self, lease: Duration) -> Result<Attempt, Failure> {
        let identity = self.identity("a-key-of-some-length")?;
        let request = ClaimRequest {
            lease,
            ..request()?
        };
        let Acquired {
            token,
            attempt,
            since,
            is_repeated,
        } = acquired(self.store.claim(&identity, &request).await?)?;
        ensure_first(attempt)?;
        super::ensure_eq!(is_repeated, false, "whether a first claim is repeated");
        Ok(Attempt {
            identity,
            request,
            token,
            since,
        })
    }

    /// A fresh identity whose claim has lapsed.
    pub(super) async fn lapsed(&self) -> Result<Attempt, Failure> {
        let mut attempts = self.all_lapsed(1).await?;
        let attempt = attempts.pop();
        attempt.ok_or_else(|| Failure::new("no attempt was made"))
    }

    /// As many fresh identities whose claims have lapsed, for one wait.
    pub(super) async fn all_lapsed(&self, count: usize) -> Result<Vec<Attempt>, Failure> {
        let mut attempts = Vec::with_capacity(count);
        for _ in 0..count {
            let attempt = self.attempt_for(self.short).await?;
            // A store without a clock judges a lease by watching it: both handles have seen it.
            self.other.get(attempt.digest()).await?;
            attempts.push(attempt);
        }
        self.pass(self.short).await;
        Ok(attempts)
    }

    /// A fresh identity, claimed and completed with this outcome.
    pub(super) async fn completed(
        &self,
        outcome: &Outcome,
        retention: Retention,
    ) -> Result<Attempt, Failure> {
        let attempt = self.attempt().await?;
        applied(
            self.store
                .complete(attempt.digest(), &attempt.token, outcome, retention)
                .await?,
        )?;
        Ok(attempt)
    }

    /// A fresh identity, completed and past its retention; swept too if `purge`.
    pub(super) async fn past_retention(&self, purge: bool) -> Result<Attempt, Failure> {
        let brief = Retention::new(self.short());
        let attempt = self.completed(&Outcome::void(), brief).await?;
        self.pass(self.short()).await;
        if purge {
            while self.store.purge(1_000).await?.more {}
        }
        Ok(attempt)
    }

    /// A fresh identity, marked as unknown.
    pub(super) async fn unknown(&self) -> Result<Attempt, Failure> {
        let attempt = self.attempt().await?;
        let marked = self.store.mark_unknown(attempt.digest(), &attempt.token);
        applied(marked.await?)?;
        Ok(attempt)
    }

    /// Completes an attempt, under its own token or a later one, with nothing as its outcome.
    pub(super) async fn complete(
        &self,
        attempt: &Attempt,
        token: &Token,
        retention: Retention,
    ) -> Result<(), Failure> {
        let outcome = Outcome::void();
        let done = self
            .store
            .complete(attempt.digest(), token, &outcome, retention);
        applied(done.await?)
    }

    /// Claims an attempt's identity once more, under a new nonce.
    pub(super) async fn rival(&self, attempt: &Attempt, on_lost: OnLost) -> Result<Claim, Failure> {
        let request = ClaimRequest {
            on_lost,
            ..request()?
        };
        Ok(self.store.claim(&attempt.identity, &request).await?)
    }

    /// Starts `tasks` tasks at the same moment, every other one on the second handle, and returns
    /// what they return, in order.
    pub(super) async fn together<T, F>(
        &self,
        tasks: usize,
        task: impl Fn(usize, AnyStore) -> F,
    ) -> Result<Vec<T>, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let start = Arc::new(Barrier::new(tasks));
        let mut running = JoinSet::new();
        for number in 0..tasks {
            let handle = if number % 2 == 0 {
                &self.store
            } else {
                &self.other
            };
            let (start, work) = (start.clone(), task(number, handle.clone()));
            running.spawn(async move {
                start.wait().await;
                (number, work.await)
            });
        }
        let mut done = Vec::with_capacity(tasks);
        while let Some(joined) = running.join_next().await {
            let (number, result) =
                joined.map_err(|e| Failure::new(format!("a task of the store panicked: {e}")))?;
            done.push((number, result?));
        }
        done.sort_by_key(|(number, _)| *number);
        Ok(done.into_iter().map(|(_, result)| result).collect())
    }
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench")
            .field("manual", &self.is_manual())
            .field("short", &self.short)
            .finish_non_exhaustive()
    }
}

/// A claim that was acquired, and what it was asked with.
#[derive(Clone)]
pub(super) struct Attempt {
    pub(super) identity: Identity,
    pub(super) request: ClaimRequest,
    pub(super) token: Token,
    pub(super) since: Timestamp,
}

impl Attempt {
    pub(super) fn digest(&self) -> &IdentityDigest {
        self.identity.digest()
    }
}

/// A claim under a new nonce, for a long time.
pub(super) fn request() -> Result<ClaimRequest, Failure> {
    Ok(ClaimRequest::new(
        Nonce::random()?,
        Fingerprint::of(b"the request"),
        LONG,
    ))
}

/// A name that nobody else has.
pub(super) fn unique() -> Result<String, Failure> {
    let nonce = Nonce::random()?;
    Ok(hex::encode(nonce.as_bytes()))
}

#[track_caller]
fn ensure_first(attempt: u32) -> Result<(), Failure> {
    super::ensure_eq!(attempt, 1, "the number of the first attempt");
    Ok(())
}
