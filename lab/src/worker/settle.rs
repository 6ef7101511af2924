//! After the faults: every key is driven to an end, as an operator and a patient client would.

use std::sync::Arc;
use std::time::Duration;

use semel::store::{Claim, Fenced, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Worker;
use super::attempt::outcome;
use crate::history::KeyIndex;

/// Longer than any key may take: a key that is not settled by then never is.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn all(worker: &Arc<Worker>) {
    let of = &worker.settings.options;
    // A few at a time: what is measured is how long a key takes, not how long a queue is.
    let lanes = (32 / of.processes).clamp(1, of.tasks.max(1));
    let (number, processes) = (worker.number, of.processes);
    let mut tasks = JoinSet::new();
    for lane in 0..lanes {
        let worker = worker.clone();
        tasks.spawn(async move {
            let keys = 0..worker.settings.options.keys;
            let own = |key: &KeyIndex| key % processes == number && key / processes % lanes == lane;
            for key in keys.filter(own) {
                settle(&worker, key).await;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

async fn settle(worker: &Worker, key: KeyIndex) {
    let end = Instant::now() + PATIENCE + worker.settings.options.run.lease;
    let mut other = false;
    while Instant::now() < end {
        match turn(worker, key, &mut other).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Whether the key is settled.
async fn turn(worker: &Worker, key: KeyIndex, other: &mut bool) -> Result<bool> {
    let request = worker.request(key, *other)?;
    match worker.claim(key, &request).await? {
        Claim::Completed { .. } | Claim::Expired => return Ok(true),
        Claim::Acquired(acquired) => {
            worker.effect(key, &acquired);
            let outcome = outcome(&mut fastrand::Rng::with_seed(1), &acquired.token);
            let done = worker.complete(key, &acquired.token, &outcome).await?;
            return Ok(done == Fenced::Applied);
        }
        Claim::InFlight { fence, remaining } => {
            let lapse = remaining + Duration::from_millis(1);
            worker.wait(key, fence, lapse).await;
        }
        Claim::Unknown { fence } => {
            let _ = worker.resolve(key, fence, None).await?;
        }
        // Somebody asked for something else under this key: ask for that.
        Claim::Mismatch => {
            *other = !*other;
            sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(false)
}
