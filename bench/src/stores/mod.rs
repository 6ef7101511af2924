//! Stores on a server and on disk, each beside what its server does without us, in the same run:
//! the same number of callers, the same durability, rows of about the same size.
//!
//! A step is one durable write, as is a row inserted in a transaction of its own or a `SET`.

mod mariadb;
mod postgres;
mod purge;
mod redis;
mod sqlite;
mod wake;

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use semel::store::{Claim, Fenced, Retention};
use semel::{AnyStore, Fingerprint, Store as _};
use semel_bench_load::median;
use semel_stores::{OpenOptions, Schema};

use crate::inputs::{identity, outcome, request};
use crate::report::{Goal, Measurement, Run, progress};

const CALLERS: [(&str, usize); 2] = [("1-caller", 1), ("64-callers", 64)];
const STEPS_PER_PAIR: f64 = 2.0;
/// About what a completed record takes, key and names and times included.
const ROW_BYTES: usize = 400;

pub(crate) fn measure(run: &Run) -> Result<()> {
    redis::measure(run)?;
    postgres::measure(run)?;
    sqlite::measure(run)?;
    mariadb::measure(run)?;
    wake::measure(run)?;
    purge::measure(run)
}

/// Opens a store, and makes its tables.
async fn open(url: &str) -> Result<AnyStore> {
    let mut options = OpenOptions::default();
    options.schema = Schema::Create;
    Ok(semel_stores::open(url, &options).await?)
}

/// Claims a new identity and completes it.
async fn pair(store: &AnyStore, index: usize, retention: Retention) -> Result<()> {
    let identity = identity(index);
    let request = request(Fingerprint::of(b"an order"));
    let Claim::Acquired(acquired) = store.claim(&identity, &request).await? else {
        bail!("the key of pair {index} is not free");
    };
    let (token, outcome) = (&acquired.token, outcome(index));
    let done = store.complete(identity.digest(), token, &outcome, retention);
    ensure!(
        done.await? == Fenced::Applied,
        "pair {index} is not completed"
    );
    Ok(())
}

/// Steps a second of so many callers that claim and complete; `next` numbers the identities.
async fn steps(store: &AnyStore, callers: usize, time: Duration, next: &mut usize) -> Result<f64> {
    let (from, started) = (*next, Instant::now());
    let running: Vec<_> = (0..callers)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut pairs = 0;
                while started.elapsed() < time {
                    let index = from + caller + pairs * callers;
                    pair(&store, index, Retention::ORDER).await?;
                    pairs += 1;
                }
                anyhow::Ok(pairs)
            })
        })
        .collect();
    let mut counts = Vec::new();
    for caller in running {
        counts.push(caller.await??);
    }
    let pairs: usize = counts.iter().sum();
    *next = from + callers * counts.iter().max().copied().unwrap_or_default();
    Ok(pairs as f64 * STEPS_PER_PAIR / started.elapsed().as_secs_f64())
}

/// A store, and what its server does alone.
struct Comparison<'a> {
    name: &'a str,
    url: &'a str,
    reference: &'a str,
    goals: [Option<f64>; 2],
}

impl Comparison<'_> {
    /// Measures both in turn, with one caller and with many. `alone` gives writes a second.
    fn measure(
        &self,
        run: &Run,
        mut alone: impl FnMut(usize, Duration) -> Result<f64>,
    ) -> Result<()> {
        let runtime = semel_bench_load::workers();
        let store = runtime.block_on(open(self.url))?;
        let time = Duration::from_millis(run.size(5000, 500) as u64);
        let mut next = 0;
        for ((callers_name, callers), goal) in CALLERS.into_iter().zip(self.goals) {
            let name = format!("stores/{}/steps/{callers_name}", self.name);
            if !run.wants(&name) {
                continue;
            }
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for round in 1..=run.size(5, 2) {
                progress(format_args!("{name}: round {round}"));
                theirs.push(alone(callers, time)?);
                ours.push(runtime.block_on(steps(&store, callers, time, &mut next))?);
            }
            Measurement::new(&name, median(ours), "steps/s")
                .against(self.reference, median(theirs))
                .goal(goal.map(Goal::RatioAtLeast))
                .print();
        }
        runtime.block_on(store.close())?;
        Ok(())
    }
}

/// A number that follows `label` in what a program printed.
fn number_after(printed: &str, label: &str) -> Option<f64> {
    let (_, rest) = printed.split_once(label)?;
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let rest = rest.trim_start_matches(|c| !digits(c));
    rest[..rest.find(|c| !digits(c)).unwrap_or(rest.len())]
        .parse()
        .ok()
}
