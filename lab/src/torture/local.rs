//! A run inside one process, on a store in memory: for the tests of the planted bugs, and to try
//! the lab itself.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use semel::memory::{Limits, MemoryStore};
use semel::{AnyStore, Store as _};

use super::{Options, Run};
use crate::bugs::{Bug, Buggy};
use crate::check::Trouble;
use crate::clock::{nanos, now};
use crate::nemesis::Chosen;
use crate::nemesis::flaky::Flaky;
use crate::worker::{Settings, Worker};

/// How a run in this process goes.
#[derive(Debug, Clone)]
pub struct Local {
    /// What the workers are told.
    pub settings: Settings,
    /// The network is bad only in spells, in which the store sends half of what got no answer again by
    /// itself.
    pub in_spells: bool,
}

/// What a run left behind, besides the files.
#[derive(Debug, Clone)]
pub struct Ran {
    /// When the keys began to be settled.
    pub settling: u64,
    /// When the network was bad, if that was in spells.
    pub troubles: Vec<Trouble>,
}

impl Local {
    /// A run that is over within seconds: 4 workers of 12 tasks on 60 keys.
    pub fn quick(directory: &Path, seed: u64, bug: Option<Bug>) -> Self {
        Self {
            settings: Settings {
                options: Options {
                    run: Run {
                        store: "memory:".into(),
                        seed,
                        faults: Chosen::These(Vec::new()),
                        lease: Duration::from_millis(150),
                        pace: Duration::from_millis(4),
                        keep: None,
                    },
                    length: Duration::from_millis(1500),
                    processes: 4,
                    tasks: 12,
                    keys: 60,
                    bug,
                    floor: None,
                    tolerance: Duration::ZERO,
                },
                name: "local".into(),
                directory: directory.into(),
                url: String::new(),
            },
            in_spells: false,
        }
    }

    /// Runs it on a store in memory.
    ///
    /// # Errors
    /// Where the files cannot be written.
    pub async fn on_memory(&self) -> Result<Ran> {
        let store = AnyStore::new(MemoryStore::new(Limits::default()));
        let options = &self.settings.options;
        let flaky = Flaky::new(store.clone(), options.run.seed);
        let flaky = match self.in_spells {
            true => flaky.in_spells(),
            false => flaky,
        };
        let buggy = options
            .bug
            .map(|bug| Buggy::new(AnyStore::new(flaky.clone()), bug));
        let handle = |number| match &buggy {
            Some(buggy) => AnyStore::new(buggy.for_caller(number)),
            None => AnyStore::new(flaky.clone()),
        };
        let workers = (0..options.processes)
            .map(|number| Worker::new(self.settings.clone(), handle(number), number, 0))
            .collect::<std::io::Result<Vec<_>>>()?;
        let mut running: Vec<_> = workers.iter().map(|worker| worker.start(0)).collect();
        tokio::time::sleep(options.length).await;
        for worker in &workers {
            worker.stop();
        }
        for tasks in &mut running {
            while let Some(ended) = tasks.join_next().await {
                ended?;
            }
        }
        let settling = now();
        let mut settled = tokio::task::JoinSet::new();
        for worker in workers {
            settled.spawn(async move { worker.settle().await });
        }
        while settled.join_next().await.is_some() {}
        store.close().await?;
        Ok(Ran {
            settling,
            troubles: flaky.troubles(),
        })
    }

    /// What the checker must know of such a run.
    pub fn options(&self, ran: &Ran) -> crate::check::Options {
        let lease = nanos(self.settings.options.run.lease);
        crate::check::Options {
            troubles: ran.troubles.clone(),
            settling: Some(ran.settling),
            settle_within: lease + 2_000_000_000,
            keys: self.settings.options.keys,
            ..crate::check::Options::default()
        }
    }
}
