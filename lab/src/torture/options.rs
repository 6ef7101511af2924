//! What the command line of `torture` says.

use std::path::PathBuf;
use std::process;
use std::time::Duration;

use clap::{Args, Parser, value_parser};
use humantime::parse_duration;
use serde::{Deserialize, Serialize};

use super::target::faults_within;
use crate::bugs::Bug;
use crate::named::Named as _;
use crate::nemesis::{Chosen, Fault};

/// What runs with and without gateways have.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct Run {
    /// A URL, or the name of a kind of store to start: `file`, `sqlite`, `postgres`, `redis`, …
    #[arg(long)]
    pub store: String,
    /// What everything random comes from; by default the process's number.
    #[arg(long, default_value_t = process::id().into(), hide_default_value = true)]
    pub seed: u64,
    /// What goes wrong: kinds of fault by comma, or `any`: the seed chooses some.
    #[arg(long, default_value = "none")]
    pub faults: Chosen,
    /// How long claims are held.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    pub lease: Duration,
    /// How long a task rests between operations, on average.
    #[arg(long, default_value = "20ms", value_parser = parse_duration)]
    pub pace: Duration,
    /// Where to leave histories and ledger, whatever comes out.
    #[arg(long)]
    pub keep: Option<PathBuf>,
}

impl Run {
    /// Says what the seed chose.
    pub(crate) fn announce(&self, faults: &[Fault]) {
        if self.faults == Chosen::Any {
            let names = Fault::names(faults).replace(", ", ",");
            eprintln!("seed {}: --faults {names}", self.seed);
        }
    }
}

/// A run to be done.
#[derive(Debug, Clone, Parser, Serialize, Deserialize)]
pub struct Options {
    /// What it has in common with one through gateways.
    #[command(flatten)]
    pub run: Run,
    /// How long the workers work; settling comes after it.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "20", value_parser = seconds)]
    pub length: Duration,
    /// How many workers.
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..))]
    pub processes: u32,
    /// How many tasks in each.
    #[arg(long, default_value_t = 25, value_parser = value_parser!(u32).range(1..))]
    pub tasks: u32,
    /// How many keys they share.
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u32).range(1..))]
    pub keys: u32,
    /// The planted bug.
    #[arg(long)]
    pub bug: Option<Bug>,
    /// The run fails where fewer completions were acknowledged; by default 10 a second.
    #[arg(long)]
    pub floor: Option<usize>,
    /// How far the store's clock may be off over the run.
    #[arg(long, default_value = "20ms", value_parser = parse_duration)]
    pub tolerance: Duration,
}

impl Options {
    /// What goes wrong; `any` are two that the seed chooses.
    pub fn faults(&self) -> Vec<Fault> {
        self.run.faults.or(|| {
            let mut faults = faults_within(&self.run.store, self.length);
            fastrand::Rng::with_seed(self.run.seed).shuffle(&mut faults);
            faults.truncate(2);
            faults
        })
    }

    /// How many completions there must be.
    pub fn floor(&self) -> usize {
        let by_time = usize::try_from(self.length.as_secs()).unwrap_or(usize::MAX) * 10;
        self.floor.unwrap_or(by_time)
    }
}

/// A number of them, with a fraction or without.
pub(crate) fn seconds(text: &str) -> anyhow::Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}
