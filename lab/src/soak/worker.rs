//! A worker of a soak: each of its tasks goes round its own keys, through a [`Guard`] as
//! applications use it, and the worker says twice a second how that went.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use semel::guard::{Asked, Guard, Policy, RunError};
use semel::purge::Purger;
use semel::store::{ClaimRequest, Nonce, OnLost, Retention};
use semel::{AnyStore, Fingerprint, Identity, Key, Scope, Store as _};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

use super::options::{Bug, Options};
use super::rhythm::{self, Beat};
use super::{LEASE, RETENTION};
use crate::clock::now;
use crate::process::obey;
use crate::worker::process::open;

/// How many keys a task goes round. What a killed worker left in flight is taken over when its
/// next life comes by.
const KEYS: u64 = 200;

/// What all workers are told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(super) options: Options,
    pub(super) url: String,
    pub(super) folder: PathBuf,
}

struct Worker {
    settings: Settings,
    number: u32,
    guard: Guard<AnyStore>,
    policy: Policy,
    beat: Mutex<Beat>,
    stopped: AtomicBool,
    leaked: Mutex<Vec<Vec<u8>>>,
}

/// Runs worker `number` in its `life`th life.
pub(crate) async fn run(settings: Settings, number: u32, life: u32) -> Result<()> {
    let store = open(&settings.url).await?;
    let retention = match settings.options.bug {
        Some(Bug::KeepsRecords) => Duration::from_secs(3600),
        _ => RETENTION,
    };
    let beats = rhythm::file(&settings.folder, number, life)?;
    let worker = Arc::new(Worker {
        guard: Guard::from(store.clone()),
        policy: Policy::default()
            .with_lease(LEASE)
            .with_retention(Retention::new(retention))
            .with_on_lost(OnLost::Retry),
        settings,
        number,
        beat: Mutex::default(),
        stopped: AtomicBool::default(),
        leaked: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    for task in 0..worker.settings.options.tasks {
        tasks.spawn(go_round(worker.clone(), life, task));
    }
    let purger = Purger::new(store.clone()).with_interval(LEASE);
    // A store that cannot be reached is swept later.
    let mut others = JoinSet::new();
    others.spawn(async move { purger.run(|_| ()).await });
    let of = worker.clone();
    others.spawn(async move {
        let mut tick = interval(Duration::from_millis(500));
        loop {
            tick.tick().await;
            let beat = std::mem::take(&mut *of.beat.lock());
            // What is not written down would look like an outage.
            beats.record(&(now(), &beat));
        }
    });
    let obeyed = obey(async |order| match order {
        "stop" => {
            worker.stopped.store(true, Ordering::Relaxed);
            while let Some(ended) = tasks.join_next().await {
                ended.context("a task of a worker")?;
            }
            Ok("stopped")
        }
        other => bail!("a worker does not know the order {other:?}"),
    });
    obeyed.await?;
    others.abort_all();
    // What closing says is of no use any more.
    let _ = store.close().await;
    Ok(())
}

async fn go_round(worker: Arc<Worker>, life: u32, task: u32) {
    let place = u64::from(worker.number) << 32 | u64::from(life) << 16 | u64::from(task);
    let seed = worker.settings.options.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut chance = fastrand::Rng::with_seed(seed);
    let scope = || Scope::new(["soak", &format!("{}-{task}", worker.number)]);
    // Claims that were left as a crash leaves them, to be taken over past their lease.
    let mut left: VecDeque<(Instant, u64)> = VecDeque::new();
    let mut at = chance.u64(..KEYS);
    while !worker.stopped.load(Ordering::Relaxed) {
        sleep(worker.settings.options.pace.mul_f64(chance.f64() * 2.0)).await;
        let lapsed = left.pop_front_if(|(when, _)| when.elapsed() > LEASE);
        let number = match (lapsed, chance.u8(..100)) {
            (Some((_, number)), _) => number,
            // A duplicate.
            (None, 0..15) => at,
            _ => {
                at = (at + 1) % KEYS;
                at
            }
        };
        let Ok(key) = Key::new(&format!("key-{number}")) else {
            return;
        };
        let identity = Identity::new(scope(), "soak", key);
        if chance.u8(..100) < 2 {
            worker.leave(&identity).await;
            left.push_back((Instant::now(), number));
            continue;
        }
        let long = chance.u8(..100) < 2;
        worker.ask(identity, long).await;
    }
}

impl Worker {
    fn fingerprint() -> Fingerprint {
        Fingerprint::of(b"soak")
    }

    async fn ask(&self, identity: Identity, long: bool) {
        let begun = Instant::now();
        let asked = Asked::new(identity, Self::fingerprint()).with_policy(self.policy);
        let work = move |_| async move {
            if long {
                // Renewed meanwhile.
                sleep(LEASE.mul_f64(1.5)).await;
            }
            Ok::<_, String>("done".to_owned())
        };
        let failed = matches!(
            self.guard.run(asked, work).await,
            Err(RunError::Store { .. })
        );
        if self.settings.options.bug == Some(Bug::Leaks) {
            self.leaked.lock().push(vec![1; 64 << 10]);
        }
        let took = (!long).then(|| begun.elapsed());
        self.beat.lock().add(took, failed);
    }

    /// A crash between claim and completion.
    async fn leave(&self, identity: &Identity) {
        let Ok(nonce) = Nonce::random() else {
            return;
        };
        let request =
            ClaimRequest::new(nonce, Self::fingerprint(), LEASE).with_on_lost(OnLost::Retry);
        // Whatever is answered: it is asked for again.
        let _ = self.guard.store().claim(identity, &request).await;
    }
}
