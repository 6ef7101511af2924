//! Callers that do steps for a while, and how long each of them took.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use semel::store::Claim;
use semel::{AnyStore, Fingerprint, Store as _};

use super::copies::RETENTION;
use crate::inputs::{identity, outcome, request};
use crate::stores::{claim, complete};

/// What callers do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    /// Claim new identities and complete them: two steps.
    Pairs,
    /// Claim identities of completed records, out of so many: a step.
    Replays { of: usize },
}

/// What callers did.
pub(super) struct Turn {
    pub(super) seconds: f64,
    /// Of each step, in milliseconds, the shortest first.
    times: Vec<f64>,
}

impl Turn {
    pub(super) fn new(seconds: f64, mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self { seconds, times }
    }

    pub(super) fn times(&self) -> &[f64] {
        &self.times
    }

    pub(super) fn steps(&self) -> f64 {
        self.times.len() as f64
    }

    pub(super) fn rate(&self) -> f64 {
        self.steps() / self.seconds
    }

    /// The time, in milliseconds, within which this part of the steps was done.
    pub(super) fn percentile(&self, part: f64) -> f64 {
        let place = (self.steps() * part) as usize;
        let last = self.times.len().saturating_sub(1);
        self.times.get(place.min(last)).copied().unwrap_or(f64::NAN)
    }
}

/// Lets `callers` work on a store for so long. `next` numbers what they do, from turn to turn.
pub(super) async fn turn(
    store: &AnyStore,
    work: Work,
    callers: usize,
    time: Duration,
    next: &mut usize,
) -> Result<Turn> {
    let (from, started) = (*next, Instant::now());
    let running: Vec<_> = (0..callers)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                let (mut times, mut done) = (Vec::new(), 0);
                while started.elapsed() < time {
                    let index = from + caller + done * callers;
                    match work {
                        Work::Pairs => pair(&store, index, &mut times).await?,
                        Work::Replays { of } => {
                            let asked = Instant::now();
                            // Far from the one before in a store of any size, and all have their turn.
                            replay(&store, index * 7_368_787 % of).await?;
                            times.push(since(asked));
                        }
                    }
                    done += 1;
                }
                anyhow::Ok((times, done))
            })
        })
        .collect();
    let (mut all, mut most) = (Vec::new(), 0);
    for caller in running {
        let (times, done) = caller.await??;
        all.extend(times);
        most = most.max(done);
    }
    *next = from + callers * most;
    Ok(Turn::new(started.elapsed().as_secs_f64(), all))
}

async fn pair(store: &AnyStore, index: usize, times: &mut Vec<f64>) -> Result<()> {
    let asked = Instant::now();
    let token = claim(store, index).await?;
    times.push(since(asked));
    let asked = Instant::now();
    complete(store, index, &token, RETENTION).await?;
    times.push(since(asked));
    Ok(())
}

/// A claim on a completed record, which must give its outcome.
pub(super) async fn replay(store: &AnyStore, index: usize) -> Result<()> {
    let request = request(Fingerprint::of(b"an order"));
    let Claim::Completed { outcome: kept, .. } = store.claim(&identity(index), &request).await?
    else {
        bail!("record {index} is not replayed");
    };
    // Copies have that of the first.
    let expected = outcome(index).as_bytes().len();
    ensure!(
        kept.as_bytes().len() == expected,
        "record {index} has another outcome"
    );
    Ok(())
}

fn since(instant: Instant) -> f64 {
    instant.elapsed().as_secs_f64() * 1000.0
}
