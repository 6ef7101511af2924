//! What a worker does: claims shared keys, has effects, settles or forgets, and does what it should
//! not: comes late, forges tokens, asks for something else under a used key, repeats itself.
//!
//! A worker is a set of tasks over one store handle. It is a process of its own in a torture run
//! ([`process`]), and one of several sets of tasks in a process for the tests of the planted bugs.

mod attempt;
pub mod process;
mod settle;
mod task;
mod traits;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use semel::guard::Guard;
use semel::{AnyStore, Store};
use serde::{Deserialize, Serialize};

use crate::history::{Log, Names, Recorder};
use crate::ledger::Ledger;
use crate::torture::Options;
pub use traits::Traits;

/// What all workers of a run are told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// What the run is told.
    pub options: Options,
    /// What tells this run's keys from those of others in the same store.
    pub name: String,
    /// Where histories and the ledger are written.
    pub directory: PathBuf,
    /// How to reach the store; nothing where it is in this process.
    pub url: String,
}

impl Settings {
    /// Where the ledger is.
    pub fn ledger(&self) -> PathBuf {
        self.directory.join("ledger")
    }
}

/// One worker: its tasks share this.
#[derive(Debug)]
pub struct Worker {
    settings: Settings,
    names: Arc<Names>,
    store: Recorder,
    guard: Guard<Recorder>,
    ledger: Ledger,
    number: u32,
    stopped: AtomicBool,
}

impl Worker {
    /// Worker `number` over `store`; `life` counts how often it was started.
    ///
    /// # Errors
    /// Where its files cannot be made.
    pub fn new(
        settings: Settings,
        store: AnyStore,
        number: u32,
        life: u32,
    ) -> std::io::Result<Arc<Self>> {
        let names = Arc::new(Names::new(&settings.name, settings.options.keys));
        let log = Arc::new(Log::create(&history(&settings.directory, number, life))?);
        let store = Recorder::new(store, names.clone(), log);
        Ok(Arc::new(Self {
            guard: Guard::from(store.clone()),
            store,
            ledger: Ledger::open(&settings.ledger())?,
            settings,
            names,
            number,
            stopped: AtomicBool::new(false),
        }))
    }

    /// Starts its tasks. They go on until [`stop`](Self::stop).
    pub fn start(self: &Arc<Self>, life: u32) -> tokio::task::JoinSet<()> {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..self.settings.options.tasks {
            let place = u64::from(self.number) << 32 | u64::from(life) << 16 | u64::from(task);
            let seed = self.settings.options.run.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            tasks.spawn(task::run(self.clone(), fastrand::Rng::with_seed(seed)));
        }
        if self.number == 0 {
            tasks.spawn(purge(self.clone()));
        }
        tasks
    }

    /// Lets the tasks end after what they do.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Drives this worker's share of the keys to an end.
    pub async fn settle(self: &Arc<Self>) {
        settle::all(self).await;
    }
}

/// The file of a worker's history.
pub fn history(directory: &Path, number: u32, life: u32) -> PathBuf {
    directory.join(format!("{number:03}-{life:03}.history"))
}

// One worker sweeps, so that keys begin anew with no trace of their past.
async fn purge(worker: Arc<Worker>) {
    while !worker.is_stopped() {
        tokio::time::sleep(worker.settings.options.run.lease / 4).await;
        // A store that cannot be reached is swept later.
        let _ = worker.store.purge(100).await;
    }
}
