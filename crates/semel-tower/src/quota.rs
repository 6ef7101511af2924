//! Limits on what each scope uses of the process: how fast it begins attempts, how many of them run,
//! and how much of their answers is kept.

use std::convert::Infallible;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, UnitWeighter};
use semel::Scope;
use tokio::time::Instant;

/// How much of something may be used in some time: as much at once, and evenly from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    amount: u64,
    per: Duration,
}

impl Rate {
    /// So much in this time; an amount of 0 counts as 1.
    pub const fn new(amount: u64, per: Duration) -> Self {
        let amount = if amount == 0 { 1 } else { amount };
        Self { amount, per }
    }

    /// So much in a second.
    pub const fn per_second(amount: u64) -> Self {
        Self::new(amount, Duration::from_secs(1))
    }

    fn per(&self) -> u64 {
        u64::try_from(self.per.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The nanoseconds in which so much is allowed.
    fn cost(&self, of: u64) -> u64 {
        let cost = u128::from(of).saturating_mul(self.per.as_nanos()) / u128::from(self.amount);
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

/// What each scope may use, on one layer and its clones; see
/// [`with_scope_limits`](crate::IdempotencyLayer::with_scope_limits).
///
/// Usage is counted in this process only, and from zero when it starts. It is known of 65,536 scopes;
/// when there are more, those that are seen rarely are forgotten first, and begin anew. So these limits
/// bound what a known principal uses. They do not bound callers who choose their scope themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "limits do nothing until a layer has them"]
pub struct ScopeLimits {
    new_keys: Option<Rate>,
    running: Option<usize>,
    kept: Option<Rate>,
}

impl ScopeLimits {
    /// No limits.
    pub const fn new() -> Self {
        Self {
            new_keys: None,
            running: None,
            kept: None,
        }
    }

    /// How fast attempts may be begun: of new keys, and of keys that are free again after a release.
    pub const fn with_new_keys(mut self, rate: Rate) -> Self {
        self.new_keys = Some(rate);
        self
    }

    /// How many attempts may run at once, at least 1.
    pub const fn with_running(mut self, at_once: usize) -> Self {
        self.running = Some(if at_once == 0 { 1 } else { at_once });
        self
    }

    /// How many bytes of answers may be recorded. An answer is always recorded: one that goes beyond
    /// the rate delays the next attempt.
    pub const fn with_kept(mut self, bytes: Rate) -> Self {
        self.kept = Some(bytes);
        self
    }
}

/// How many scopes are known at once.
const SCOPES: usize = 1 << 16;
/// When to ask again where it is not known when an attempt ends.
const SOON: Duration = Duration::from_secs(1);

/// What every scope uses.
pub(crate) struct Quotas {
    limits: ScopeLimits,
    since: Instant,
    // By a keyed hash of the scope, which nobody can aim at another scope's.
    usages: Cache<u64, Arc<Usage>, UnitWeighter, RandomState, KeepRunning>,
    hasher: RandomState,
}

impl Quotas {
    pub(crate) fn new(limits: ScopeLimits) -> Self {
        Self::with_room_for(limits, SCOPES)
    }

    fn with_room_for(limits: ScopeLimits, scopes: usize) -> Self {
        let hasher = RandomState::new();
        let (weight, table) = (scopes as u64, hasher.clone());
        Self {
            limits,
            since: Instant::now(),
            usages: Cache::with(scopes, weight, UnitWeighter, table, KeepRunning),
            hasher,
        }
    }

    /// A share for one attempt; else when to ask again.
    pub(crate) fn share(self: &Arc<Self>, scope: &Scope) -> Result<Share, Duration> {
        let new = || Ok::<_, Infallible>(Arc::default());
        let Ok(usage) = self
            .usages
            .get_or_insert_with(&self.hasher.hash_one(scope), new);
        let now = self.now();
        // Given back, if one of them says no.
        let mut share = Share::of(Arc::clone(self), usage);
        let before = share.usage.running.fetch_add(1, Ordering::Relaxed);
        if self.limits.running.is_some_and(|most| before >= most) {
            return Err(SOON);
        }
        if let Some(rate) = self.limits.kept {
            rate.ask(&share.usage.kept, now)?;
        }
        if let Some(rate) = self.limits.new_keys {
            rate.take(&share.usage.new_keys, now)?;
            share.is_reserved = true;
        }
        Ok(share)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.limits.fmt(f)
    }
}

/// What one scope uses. Of a rate it is the moment, in nanoseconds, when all that was used is free
/// again (as in the generic cell rate algorithm).
#[derive(Debug, Default)]
struct Usage {
    new_keys: AtomicU64,
    kept: AtomicU64,
    running: AtomicUsize,
}

impl Rate {
    /// Takes one, if there is one.
    fn take(&self, used: &AtomicU64, now: u64) -> Result<(), Duration> {
        let latest = now.saturating_add(self.per());
        let taken = |until: u64| until.max(now).saturating_add(self.cost(1));
        let take = |until| Some(taken(until)).filter(|until| *until <= latest);
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map(drop)
            .map_err(|until| Duration::from_nanos(taken(until).saturating_sub(latest)))
    }

    /// Gives one back.
    fn give(&self, used: &AtomicU64) {
        used.fetch_sub(self.cost(1), Ordering::Relaxed);
    }

    /// Whether anything is left.
    fn ask(&self, used: &AtomicU64, now: u64) -> Result<(), Duration> {
        let latest = now.saturating_add(self.per());
        match used.load(Ordering::Relaxed).saturating_sub(latest) {
            0 => Ok(()),
            debt => Err(Duration::from_nanos(debt)),
        }
    }

    /// Takes so much, whether it is there or not.
    fn charge(&self, used: &AtomicU64, of: u64, now: u64) {
        let charge = |until: u64| Some(until.max(now).saturating_add(self.cost(of)));
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge)
            .ok();
    }
}

/// The part of one attempt in what its scope uses.
#[derive(Debug)]
pub(crate) struct Share {
    quotas: Arc<Quotas>,
    usage: Arc<Usage>,
    // Whether the attempt that is counted may still turn out to be none.
    is_reserved: bool,
}

impl Share {
    const fn of(quotas: Arc<Quotas>, usage: Arc<Usage>) -> Self {
        Self {
            quotas,
            usage,
            is_reserved: false,
        }
    }

    /// It was acquired: it counts from now on.
    pub(crate) const fn begun(&mut self) {
        self.is_reserved = false;
    }

    /// So many bytes of its answer were recorded.
    pub(crate) fn kept(&self, bytes: usize) {
        if let Some(rate) = self.quotas.limits.kept {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            rate.charge(&self.usage.kept, bytes, self.quotas.now());
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.usage.running.fetch_sub(1, Ordering::Relaxed);
        if let (true, Some(rate)) = (self.is_reserved, self.quotas.limits.new_keys) {
            rate.give(&self.usage.new_keys);
        }
    }
}

/// Does not forget what is used while an attempt uses it.
#[derive(Debug, Clone)]
struct KeepRunning;

impl Lifecycle<u64, Arc<Usage>> for KeepRunning {
    type RequestState = ();

    fn is_pinned(&self, _: &u64, usage: &Arc<Usage>) -> bool {
        usage.running.load(Ordering::Relaxed) > 0
    }

    fn begin_request(&self) {}
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn scope(n: usize) -> Scope {
        Scope::new([n.to_string()])
    }

    fn quotas(limits: ScopeLimits) -> Arc<Quotas> {
        Arc::new(Quotas::with_room_for(limits, 1000))
    }

    /// Begins an attempt that ends at once.
    fn begin(quotas: &Arc<Quotas>, n: usize) -> Result<(), Duration> {
        quotas.share(&scope(n)).map(|mut share| share.begun())
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_at_once_as_in_a_period_and_evenly_then() {
        let quotas = quotas(ScopeLimits::new().with_new_keys(Rate::per_second(4)));
        for _ in 0..4 {
            assert_eq!(begin(&quotas, 1), Ok(()));
        }
        assert_eq!(begin(&quotas, 1), Err(SECOND / 4));
        assert_eq!(begin(&quotas, 2), Ok(()), "another scope");
        advance(SECOND / 4).await;
        assert_eq!(begin(&quotas, 1), Ok(()));
        assert_eq!(begin(&quotas, 1), Err(SECOND / 4));
        advance(100 * SECOND).await;
        let begun = (0..10).filter(|_| begin(&quotas, 1).is_ok());
        assert_eq!(begun.count(), 4, "nothing is saved up");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_no_attempt_is_given_back() {
        let quotas = quotas(ScopeLimits::new().with_new_keys(Rate::per_second(1)));
        for _ in 0..100 {
            drop(quotas.share(&scope(1)).unwrap());
        }
        assert_eq!(begin(&quotas, 1), Ok(()));
        assert!(begin(&quotas, 1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_run_at_once() {
        let both = ScopeLimits::new()
            .with_running(2)
            .with_new_keys(Rate::per_second(3));
        let quotas = quotas(both);
        let running = [quotas.share(&scope(1)), quotas.share(&scope(1))];
        assert_eq!(begin(&quotas, 1), Err(SOON));
        assert_eq!(begin(&quotas, 2), Ok(()));
        drop(running);
        // What was refused took nothing of the rate.
        for _ in 0..3 {
            assert_eq!(begin(&quotas, 1), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_beyond_the_rate_delays_the_next() {
        let quotas = quotas(ScopeLimits::new().with_kept(Rate::per_second(1000)));
        let share = quotas.share(&scope(1)).unwrap();
        share.kept(3000);
        drop(share);
        assert_eq!(begin(&quotas, 1), Err(2 * SECOND));
        advance(2 * SECOND).await;
        assert_eq!(begin(&quotas, 1), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn scopes_that_anybody_can_make_up_take_no_more_memory_and_no_others_limit() {
        let limits = ScopeLimits::new()
            .with_running(1)
            .with_new_keys(Rate::new(1, 3600 * SECOND));
        let quotas = quotas(limits);
        let busy = quotas.share(&scope(0)).unwrap();
        for n in 1..100_000 {
            assert_eq!(begin(&quotas, n), Ok(()), "scope {n}");
        }
        assert!(quotas.usages.len() <= 1001, "{}", quotas.usages.len());
        assert_eq!(begin(&quotas, 0), Err(SOON), "it still runs");
        drop(busy);
    }

    #[test]
    fn extremes_neither_overflow_nor_divide_by_zero() {
        let used = AtomicU64::new(0);
        for rate in [
            Rate::new(0, SECOND),
            Rate::new(u64::MAX, Duration::MAX),
            Rate::new(1, Duration::MAX),
            Rate::new(u64::MAX, Duration::ZERO),
        ] {
            rate.take(&used, u64::MAX).ok();
            rate.charge(&used, u64::MAX, u64::MAX);
            rate.ask(&used, 0).ok();
        }
    }
}
