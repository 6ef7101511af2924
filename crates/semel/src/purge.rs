//! Removes expired records, slowly enough not to delay claims.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), semel::StoreError> {
//! use std::sync::Arc;
//! use semel::{memory::MemoryStore, purge::Purger};
//!
//! let store = Arc::new(MemoryStore::default());
//! let purger = Purger::new(store.clone());
//! assert_eq!(purger.once().await?, 0);
//! // At once, and then every minute, for as long as the program runs:
//! let task = tokio::spawn(purger.run(|purged| if let Err(error) = purged { eprintln!("{error}") }));
//! # task.abort();
//! # Ok(())
//! # }
//! ```

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::StoreError;
use crate::store::{Purged, Store};

/// Purges one store, slice by slice, with a pause after each that is as long as the slice took, a
/// few times over: what waits behind a purge, such as a commit behind the purge's own log, waits
/// rarely and briefly.
#[derive(Debug, Clone)]
pub struct Purger<S> {
    store: S,
    pace: Pace,
}

/// How fast it goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    slice: usize,
    pub(crate) interval: Duration,
}

/// How many times as long as a slice took the pause after it is.
const PAUSES: u32 = 3;

impl Pace {
    const USUAL: Self = Self {
        slice: 200,
        interval: Duration::from_secs(60),
    };

    /// One step of the store, and the pause after it where there is more to do.
    pub(crate) async fn step(&self, store: &impl Store) -> Result<Purged, StoreError> {
        let started = Instant::now();
        let purged = store.purge(self.slice).await?;
        if purged.more {
            sleep(PAUSES * started.elapsed()).await;
        }
        Ok(purged)
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::USUAL
    }
}

impl<S: Store> Purger<S> {
    /// Of `store`: slices of 200 records, a pause of three times what each took, and a look every
    /// minute.
    pub const fn new(store: S) -> Self {
        Self {
            store,
            pace: Pace::USUAL,
        }
    }

    /// How many records one step of the store removes; at least 1.
    #[must_use]
    pub fn with_slice(mut self, records: usize) -> Self {
        self.pace.slice = records.max(1);
        self
    }

    /// How often it is looked for more, once all is removed.
    #[must_use]
    pub const fn with_interval(mut self, interval: Duration) -> Self {
        self.pace.interval = interval;
        self
    }

    /// Removes all that is past its retention now, and says how many records that were.
    ///
    /// # Errors
    /// The store's. What was removed before stays removed.
    pub async fn once(&self) -> Result<usize, StoreError> {
        let mut removed = 0;
        loop {
            let purged = self.pace.step(&self.store).await?;
            removed += purged.removed;
            if !purged.more {
                return Ok(removed);
            }
        }
    }

    /// Purges at once, and then at every interval, for ever; `report` is told of each slice: how
    /// many records it removed. What failed is tried again at the next interval.
    pub async fn run(self, mut report: impl FnMut(Result<usize, StoreError>)) -> Infallible {
        loop {
            let purged = self.pace.step(&self.store).await;
            let more = purged.as_ref().is_ok_and(|purged| purged.more);
            report(purged.map(|purged| purged.removed));
            if !more {
                sleep(self.pace.interval).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::guard::{Guard, Policy};
    use crate::memory::{Limits, MemoryStore};
    use crate::store::Retention;
    use crate::{Fingerprint, Identity, Key, ManualClock, Scope, Timestamp};

    #[tokio::test(start_paused = true)]
    async fn all_that_is_past_its_retention_goes_slice_by_slice() {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1)));
        let store = Arc::new(MemoryStore::with_clock(Limits::default(), clock.clone()));
        let policy = Policy::default().with_retention(Retention::EMAIL);
        let guard = Guard::new(store.clone(), policy);
        for n in 0..10 {
            let key = Key::new(&n.to_string()).unwrap();
            let identity = Identity::new(Scope::anonymous(), "send", key);
            let sent = |_| async { Ok::<_, std::io::Error>(()) };
            guard
                .run((&identity, Fingerprint::of(b"")), sent)
                .await
                .unwrap();
        }
        let purger = Purger::new(store).with_slice(3);
        assert_eq!(purger.once().await.unwrap(), 0);
        clock.advance(Duration::from_secs(3600));
        let mut slices = Vec::new();
        let run = purger.run(|removed| slices.push(removed.unwrap()));
        tokio::time::timeout(Duration::from_secs(90), run)
            .await
            .unwrap_err();
        assert_eq!(slices.iter().sum::<usize>(), 10);
        assert!(slices.iter().all(|&removed| removed <= 3), "{slices:?}");
    }
}
