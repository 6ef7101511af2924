//! The fences that this process gives out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use semel::store::Fence;
use semel::{Record, Timestamp};

/// The highest one by the machine's clock. All handles of the process share it: two that claim in the
/// same microsecond give out two numbers, and a clock set back repeats none.
static BY_WALL_CLOCK: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);

pub(super) struct Fences(Arc<AtomicU64>);

impl Fences {
    /// A handle with a clock of its own has fences of its own.
    pub(super) fn new(own: bool) -> Self {
        Self(if own {
            Arc::default()
        } else {
            BY_WALL_CLOCK.clone()
        })
    }

    /// The fence below one that nobody else in this process gets: it is above the record's, and not
    /// below the clock's microseconds.
    pub(super) fn floor(&self, record: Option<&Record>, now: Timestamp) -> Fence {
        let Fence(before) = record.map_or_else(Fence::default, |record| record.token.fence);
        let least = before.saturating_add(1).max(now.as_micros());
        let floor = |highest: u64| highest.max(least - 1);
        let highest = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |highest| {
                Some(floor(highest).saturating_add(1))
            });
        Fence(floor(highest.unwrap_or_else(|highest| highest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_out_twice() {
        let fences = Fences::new(true);
        let at = |micros| fences.floor(None, Timestamp::from_micros(micros)).0;
        assert_eq!([at(100), at(100), at(50), at(200)], [99, 100, 101, 199]);
    }
}
