//! Deterministic simulation: whole runs in virtual time, each of which follows from its seed.
//!
//! Every seed is a runtime of its own, on one thread, with tokio's time paused: it advances when all
//! tasks wait. What differs between two runs of a program is taken away: nonces and jitter come from the
//! seed ([`semel::simulation`]), the store's clock is virtual, and no order is left to a hash map.
//! `docs/lab.md` says what the models do and what they check.

mod broker;
mod fleet;
mod guard;
mod layer;
mod options;
#[cfg(test)]
mod tests;
mod wire;
mod world;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::timeout;

pub use options::Options;
pub use world::Seen;

use crate::reasons::line;
use world::World;

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// Guards, inboxes, reconcilers and purgers in several processes over one store.
    Guard,
    /// The tower layer in several processes, with clients that retry.
    Layer,
    /// Brokers and their consumers.
    Broker,
}

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Bug {
    /// Completing compares no token.
    CompletesUnfenced,
    /// Renewals are not sent.
    RenewalsStop,
    /// An attempt of unknown outcome is released.
    ReleasesUnknown,
    /// A lapsed lease is taken over although the policy is to hold.
    HoldReruns,
    /// A completion without an answer is not sent again.
    ForgetsSettlement,
    /// Fences begin anew with the second attempt.
    FenceRepeats,
    /// The reconciler says "did not happen" and does not close the fence downstream.
    LeavesOpen,
    /// Identities are made without the principal.
    NoPrincipal,
    /// A completion is acknowledged before it is recorded.
    EarlyAcknowledgement,
    /// Replays lack their first byte.
    ReplayCut,
    /// A message buffered before a revocation brings its partition back.
    CommitsRevoked,
    /// An event that failed is acknowledged.
    AcknowledgesFailed,
    /// Events are acknowledged before they are handled.
    AcknowledgesFirst,
    /// While the store is away, events are given back at once.
    GivesBack,
    /// Messages without an id are named by their place alone.
    NamedByPlace,
}

impl Bug {
    /// The model that has it.
    pub const fn model(self) -> Model {
        match self {
            Self::NoPrincipal | Self::EarlyAcknowledgement | Self::ReplayCut => Model::Layer,
            Self::CommitsRevoked
            | Self::AcknowledgesFailed
            | Self::AcknowledgesFirst
            | Self::GivesBack
            | Self::NamedByPlace => Model::Broker,
            _ => Model::Guard,
        }
    }
}

/// No seed needs so much virtual time.
const HORIZON: Duration = Duration::from_hours(6);

/// Runs one seed.
///
/// # Errors
/// Where the system gives no runtime.
pub fn run_seed(model: Model, seed: u64, bug: Option<Bug>, traced: bool) -> Result<Seen> {
    semel::simulation::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .context("a runtime for a seed")?;
    let world = Mutex::new(None);
    let running = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let here = World::new(seed, traced);
            *world.lock() = Some(here.clone());
            let run = async {
                match model {
                    Model::Guard => guard::run(&here, bug).await,
                    Model::Layer => layer::run(&here, bug).await,
                    Model::Broker => broker::run(&here, bug).await,
                }
            };
            if timeout(HORIZON, run).await.is_err() {
                here.wrong("it hangs: some task waits for what never comes");
            }
            here.seen()
        })
    }));
    Ok(running.unwrap_or_else(|panic| {
        let mut seen = Seen::default();
        seen.wrong
            .push(format!("it panicked: {}", text_of(&*panic)));
        seen
    }))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no text").to_owned()
}

/// What came of many seeds of a model: a line of JSON.
#[derive(Debug, Serialize)]
pub struct Report {
    of: Model,
    seeds: u64,
    from: u64,
    #[serde(flatten)]
    found: Found,
    seconds: f64,
    seeds_per_minute: u64,
    virtual_hours: u64,
}

/// What they found.
#[derive(Debug, Default, Serialize)]
struct Found {
    /// How many seeds found something wrong.
    failed: u64,
    /// The lowest seeds that did, each with the first thing that is wrong.
    failures: BTreeMap<u64, String>,
    /// How often what happened.
    counts: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    passed: Duration,
}

/// The most failures that a report names.
const MOST_NAMED: usize = 10;

/// Runs `seeds` seeds of a model on all processors.
///
/// # Errors
/// Where the system gives no runtime.
pub fn run_model(model: Model, from: u64, seeds: u64, bug: Option<Bug>) -> Result<Report> {
    let begun = Instant::now();
    let next = AtomicU64::new(from);
    let end = from.saturating_add(seeds);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found = Mutex::new(Found::default());
    let work = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return Ok(());
            }
            let seen = run_seed(model, seed, bug, false)?;
            let mut total = found.lock();
            for (what, count) in seen.counts {
                *total.counts.entry(what).or_default() += count;
            }
            if let Some(first) = seen.wrong.into_iter().next() {
                total.failed += 1;
                total.failures.insert(seed, first);
                if total.failures.len() > MOST_NAMED {
                    total.failures.pop_last();
                }
            }
            total.passed += seen.passed;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let ended = worker.join();
            ended.unwrap_or_else(|_| anyhow::bail!("a thread of the simulation panicked"))
        })
    })?;
    let (found, took) = (found.into_inner(), begun.elapsed());
    Ok(Report {
        of: model,
        seeds,
        from,
        seconds: took.as_secs_f64(),
        seeds_per_minute: seeds * 60_000 / u64::try_from(took.as_millis().max(1))?,
        virtual_hours: found.passed.as_secs() / 3600,
        found,
    })
}

/// Runs what was asked for, prints a line of JSON for each model, and says whether nothing is wrong.
/// One seed alone prints its trace where it fails.
///
/// # Errors
/// Where it cannot be run.
pub fn run(options: &Options) -> Result<bool> {
    let mut passed = true;
    for model in options.models()? {
        if options.seeds == 1 {
            let seen = run_seed(model, options.from, options.bug, true)?;
            if options.trace || !seen.wrong.is_empty() {
                eprint!("{}", seen.trace);
            }
        }
        let report = run_model(model, options.from, options.seeds, options.bug)?;
        line(&report)?;
        passed &= report.found.failed == 0;
    }
    Ok(passed)
}
