//! Which of several addresses gets a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pool::Pool;

/// The addresses of a service.
#[derive(Debug)]
pub(crate) struct Upstreams {
    pools: Vec<Arc<Pool>>,
    // Where the next search begins.
    turn: AtomicUsize,
}

impl Upstreams {
    pub(crate) const fn new(pools: Vec<Arc<Pool>>) -> Self {
        let turn = AtomicUsize::new(0);
        Self { pools, turn }
    }

    /// Whether there is a choice.
    pub(crate) const fn are_several(&self) -> bool {
        self.pools.len() > 1
    }

    /// Whether one of them can be asked in HTTP/1.
    pub(crate) fn has_http1(&self) -> bool {
        self.pools.iter().any(|pool| pool.has_http1())
    }

    /// The address with the fewest requests under way, in turn where that is the same. Those that are down
    /// come last, and those that were `tried` not again. Bad answers count only while half of the addresses
    /// are up, as in Envoy: clients can cause them, and the rest would have all the requests. Then each has its turn.
    pub(crate) fn choose(
        &self,
        http1: bool,
        tried: &[Arc<Pool>],
    ) -> Option<(Arc<Pool>, Option<Busy>)> {
        if let [only] = &self.pools[..] {
            // Nothing is counted where there is no choice.
            return tried.is_empty().then(|| (Arc::clone(only), None));
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (before, after) = self.pools.split_at(turn % self.pools.len().max(1));
        let left = after.iter().chain(before).filter(|pool| {
            let is_tried = tried.iter().any(|other| Arc::ptr_eq(other, pool));
            !is_tried && (!http1 || pool.has_http1())
        });
        let busy = |pool: &&Arc<Pool>| pool.health().busy.load(Ordering::Relaxed);
        let trial = left.clone().find(|pool| pool.health().takes_trial());
        let up = self.pools.iter().filter(|pool| pool.health().is_up());
        let is_half_up = 2 * up.count() >= self.pools.len();
        let usable = match is_half_up {
            true => left
                .clone()
                .filter(|pool| pool.health().is_up())
                .min_by_key(busy),
            // In turn: what fails at once never has requests under way.
            false => left.clone().find(|pool| pool.health().is_reachable()),
        };
        let chosen = trial.or(usable);
        let chosen = chosen.or_else(|| left.min_by_key(busy))?;
        let busy = Busy::new(&chosen.health().busy);
        Some((Arc::clone(chosen), Some(busy)))
    }
}

/// A request under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
