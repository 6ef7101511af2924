//! How long one call tries, and what its failure means.

use std::time::Duration;

use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep};

/// One call's time, and whether a write of it may have been stored unheard.
pub(super) struct Effort {
    began: Instant,
    pub(super) until: Instant,
    /// What the last write without an answer failed with.
    unheard: Option<StoreError>,
    met_others: bool,
    pauses: u32,
}

impl Effort {
    pub(super) fn new(total: Duration) -> Self {
        let began = Instant::now();
        Self {
            began,
            until: began + total,
            unheard: None,
            met_others: false,
            pauses: 0,
        }
    }

    /// Whether there is time left.
    pub(super) fn lasts(&self) -> bool {
        Instant::now() < self.until
    }

    /// How long to wait for one answer: a tenth of the call's time, later as long as the call has
    /// lasted. A request that got lost costs little then, and a slow server is not asked without end.
    pub(super) fn patience(&self) -> Duration {
        let first = ((self.until - self.began) / 10).max(Duration::from_millis(20));
        let left = self.until.saturating_duration_since(Instant::now());
        self.began.elapsed().max(first).min(left)
    }

    /// A write of it was not answered.
    pub(super) fn unheard(&mut self, e: StoreError) {
        self.unheard = Some(e);
    }

    /// Whether a write of it may have been stored unheard.
    pub(super) const fn in_doubt(&self) -> bool {
        self.unheard.is_some()
    }

    /// The call failed: not applied, unless a write of it was not answered.
    pub(super) fn failed(&mut self, last: StoreError) -> StoreError {
        self.met_others |= last.met_others();
        let failed = match self.unheard.take() {
            Some(e) => StoreError::new(StoreErrorKind::Unknown, e.to_string()).with_source(e),
            None => last.known_not_applied(),
        };
        match self.met_others {
            true => failed.having_met_others(),
            false => failed,
        }
    }

    /// Waits a little longer each time. Fails where the call's time is over, or would be before
    /// another answer: its silence would stand in place of what the server said.
    pub(super) async fn pause(&mut self, why: StoreError) -> Result<()> {
        self.met_others |= why.met_others();
        let pause = Duration::from_millis(1 << self.pauses.min(7));
        if self.until.saturating_duration_since(Instant::now()) < 2 * pause {
            return Err(self.failed(why));
        }
        self.pauses += 1;
        sleep(pause).await;
        Ok(())
    }
}

/// Others came in between each time.
pub(super) fn contended() -> StoreError {
    let what = "others changed the record whenever it was to be changed";
    StoreError::new(StoreErrorKind::Contended, what)
}

/// Reads go back behind what is known.
pub(super) fn unsettled() -> StoreError {
    let what = "the bucket shows an older record again and again: it has no settled leader";
    StoreError::new(StoreErrorKind::NotApplied, what)
}
