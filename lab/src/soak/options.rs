//! What the command line of `soak` says.

use std::path::PathBuf;
use std::process;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use humantime::parse_duration;
use serde::{Deserialize, Serialize};

use crate::nemesis::{Chosen, Fault};
use crate::torture;

/// A run to be done.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct Options {
    /// A URL, or the name of a kind of store to start: `file`, `sqlite`, `postgres`, `redis`, …
    #[arg(long)]
    pub store: String,
    /// How long it takes: `30m`.
    #[arg(long = "for", value_parser = parse_duration, required_unless_present = "hours")]
    length: Option<Duration>,
    /// The same in hours.
    #[arg(long, conflicts_with = "length", value_parser = hours)]
    hours: Option<Duration>,
    /// How often something goes wrong, on average.
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub every: Duration,
    /// What goes wrong: kinds of fault by comma, `none`, or `any`: all that apply to the store.
    #[arg(long, default_value = "any")]
    faults: Chosen,
    /// The order of faults and calls follows from it; by default the process's number.
    #[arg(long, default_value_t = process::id().into(), hide_default_value = true)]
    pub seed: u64,
    /// How many workers.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..))]
    pub processes: u32,
    /// How many tasks in each.
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..))]
    pub tasks: u32,
    /// How long a task rests between calls, on average.
    #[arg(long, default_value = "100ms", value_parser = parse_duration)]
    pub pace: Duration,
    /// Where the page and the numbers are put.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// The planted bug.
    #[arg(long)]
    pub bug: Option<Bug>,
}

/// What is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bug {
    /// Workers keep a page of memory for each call.
    Leaks,
    /// Records are kept for an hour.
    KeepsRecords,
}

impl Options {
    /// How long it takes.
    pub fn length(&self) -> Duration {
        self.length.or(self.hours).unwrap_or_default()
    }

    /// What goes wrong.
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.or(|| torture::faults_of(&self.store))
    }

    /// Not so often that hours of it do not fit into a page.
    pub(super) fn sample_every(&self) -> Duration {
        (self.length() / 1200).clamp(Duration::from_millis(500), Duration::from_secs(30))
    }
}

fn hours(text: &str) -> anyhow::Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse::<f64>()? * 3600.0)?)
}
