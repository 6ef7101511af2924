//! `lost`: attempts that are lost between their effect and their completion, without a transaction,
//! under each policy. `docs/unknown.md` says what must come of it; this kills and stops processes
//! until it shows.

mod ledger;
mod report;
mod scenario;
pub(crate) mod worker;

use std::process;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use humantime::parse_duration;
use serde::{Deserialize, Serialize};

use crate::torture::Target;
use report::Report;
use scenario::Scene;

/// What is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bug {
    /// The ledger takes every fence.
    NoFence,
    /// The store lets attempts be taken over that are to be held.
    HoldReruns,
}

/// What the command line says.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct Options {
    /// A URL, or the name of a kind of store to start: `file`, `sqlite`, `postgres`, `redis`, …
    #[arg(long)]
    store: String,
    /// What chance comes from; by default the process's number.
    #[arg(long, default_value_t = process::id().into(), hide_default_value = true)]
    seed: u64,
    /// How often each policy is tried.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many attempts are lost in a round, under each policy.
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..))]
    keys: u32,
    /// How long claims are held.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    lease: Duration,
    /// The planted bug.
    #[arg(long)]
    bug: Option<Bug>,
}

/// Does it, prints the report, and says whether all went as it must.
///
/// # Errors
/// Where it could not be done.
pub async fn run(options: &Options) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let target = Target::start(&options.store, &[], folder.path()).await?;
    let mut report = Report::new(target.name(), options.seed);
    let mut chance = fastrand::Rng::with_seed(options.seed);
    // Records on a server stay: no run meets those of another.
    let run = format!("{}-{}", options.seed, process::id());
    for round in 0..options.rounds {
        let scene = Scene {
            target: &target,
            ledger: folder.path().join(format!("ledger-{round}")),
            options,
            run: format!("{run}-{round}"),
        };
        scene.all(&mut chance, &mut report).await?;
    }
    report.tell()
}
