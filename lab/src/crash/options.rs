//! What is asked for on the command line.

use std::process;
use std::time::Duration;

use clap::{Args, value_parser};
use humantime::parse_duration;
use serde::{Deserialize, Serialize};

use super::bugs::Bug;
use super::point::{Point, Work};
use crate::base::Database;

/// How a run goes.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct Options {
    /// On which database.
    #[arg(long = "db")]
    pub database: Database,
    /// Its URL, where that is not a server of the lab's own.
    #[arg(long = "store", value_name = "URL")]
    pub url: Option<String>,
    /// What the work is; a planted bug has its own.
    #[arg(long, default_value = "transaction")]
    work: Work,
    /// How often a worker is killed.
    #[arg(long, default_value_t = 1000)]
    pub kills: usize,
    /// These points only.
    #[arg(long, value_delimiter = ',')]
    pub points: Vec<Point>,
    /// Plans and choices follow from it; by default the process's number.
    #[arg(long, default_value_t = process::id().into(), hide_default_value = true)]
    pub seed: u64,
    /// How many workers there are at a time.
    #[arg(long, default_value_t = 6, value_parser = value_parser!(u64).range(1..))]
    pub processes: u64,
    /// Of every claim: so long a killed worker's key waits.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub lease: Duration,
    /// The planted bug.
    #[arg(long)]
    pub bug: Option<Bug>,
}

impl Options {
    /// What the work is.
    pub fn work(&self) -> Work {
        self.bug.map_or(self.work, Bug::work)
    }
}
