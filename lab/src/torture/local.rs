//! A run inside one process, on a store in memory: for the tests of the planted bugs, and to try
//! the lab itself.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use semel::memory::{Limits, MemoryStore};
use semel::{AnyStore, Store};

use crate::bugs::{Bug, Buggy};
use crate::check::Trouble;
use crate::clock::{nanos, now};
use crate::nemesis::flaky::{Flaky, Odds};
use crate::worker::{Settings, Worker};

/// How a run in this process goes.
#[derive(Debug, Clone)]
pub struct Local {
    /// What the workers are told.
    pub settings: Settings,
    /// How long they work.
    pub time: Duration,
    /// How bad the network is.
    pub odds: Odds,
    /// Only in spells, in which the store sends half of what got no answer again by itself.
    pub in_spells: bool,
}

/// What a run left behind, besides the files.
#[derive(Debug, Clone)]
pub struct Ran {
    /// When the keys began to be settled.
    pub settling: u64,
    /// How many faults there were.
    pub faults: usize,
    /// When.
    pub troubles: Vec<Trouble>,
}

impl Local {
    /// A run that is over within seconds: 4 workers of 12 tasks on 60 keys.
    pub fn quick(directory: &Path, seed: u64, bug: Option<Bug>) -> Self {
        Self {
            settings: Settings {
                run: "local".into(),
                seed,
                keys: 60,
                processes: 4,
                tasks: 12,
                lease: Duration::from_millis(150),
                pace: Duration::from_millis(4),
                directory: directory.into(),
                url: String::new(),
                bug: bug.map(|bug| bug.name().into()),
            },
            time: Duration::from_millis(1500),
            odds: Odds {
                answers_dropped: 10,
                refused: 5,
                delayed: 20,
            },
            in_spells: false,
        }
    }

    /// Runs it on a store in memory.
    ///
    /// # Errors
    /// Where the files cannot be written.
    pub async fn on_memory(&self) -> Result<Ran> {
        let store = MemoryStore::new(Limits::default());
        self.on(AnyStore::new(store)).await
    }

    /// Runs it on this store.
    ///
    /// # Errors
    /// Where the files cannot be written.
    pub async fn on(&self, store: AnyStore) -> Result<Ran> {
        let bug = self.settings.bug.as_deref().and_then(Bug::from_name);
        let flaky = Flaky::new(store.clone(), self.odds, self.settings.seed);
        let flaky = match self.in_spells {
            true => flaky.in_spells(),
            false => flaky,
        };
        let buggy = bug.map(|bug| Buggy::new(AnyStore::new(flaky.clone()), bug));
        let handle = |number| match &buggy {
            Some(buggy) => AnyStore::new(buggy.for_caller(number)),
            None => AnyStore::new(flaky.clone()),
        };
        let workers = (0..self.settings.processes)
            .map(|number| Worker::new(self.settings.clone(), handle(number), number, 0))
            .collect::<std::io::Result<Vec<_>>>()?;
        let mut running: Vec<_> = workers.iter().map(|worker| worker.start(0)).collect();
        tokio::time::sleep(self.time).await;
        for worker in &workers {
            worker.stop();
        }
        for tasks in &mut running {
            while let Some(ended) = tasks.join_next().await {
                ended?;
            }
        }
        let faults = flaky.faults();
        let settling = now();
        let mut settled = tokio::task::JoinSet::new();
        for worker in workers {
            settled.spawn(async move { worker.settle().await });
        }
        while settled.join_next().await.is_some() {}
        store.close().await?;
        Ok(Ran {
            settling,
            faults,
            troubles: flaky.troubles(),
        })
    }

    /// What the checker must know of such a run.
    pub fn options(&self, ran: &Ran) -> crate::check::Options {
        let lease = nanos(self.settings.lease);
        crate::check::Options {
            troubles: ran.troubles.clone(),
            settling: Some(ran.settling),
            settle_within: lease + 2_000_000_000,
            keys: self.settings.keys,
            ..crate::check::Options::default()
        }
    }
}
