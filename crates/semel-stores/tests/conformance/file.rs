//! The embedded store, on the machine's clock and on one that stands still.

use std::sync::Arc;

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel::{ManualClock, Timestamp};
use semel_stores::FileOptions;

use super::trials;

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("file/system", File::System);
    all.extend(trials("file/manual", File::Manual));
    all
}

#[derive(Clone, Copy)]
enum File {
    System,
    Manual,
}

impl Factory for File {
    async fn open(&self) -> Result<Bench, Failure> {
        let directory = tempfile::tempdir().map_err(|e| Failure::new(e.to_string()))?;
        let options = FileOptions::new().for_tests();
        let bench = match self {
            Self::System => {
                let store = Arc::new(options.open(directory.path())?);
                Bench::new(store.clone()).with_other(store)
            }
            Self::Manual => {
                let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
                let store = Arc::new(options.clock(clock.clone()).open(directory.path())?);
                Bench::new(store.clone())
                    .with_other(store)
                    .with_clock(clock)
            }
        };
        Ok(bench.exclusive().keeping(directory))
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}
