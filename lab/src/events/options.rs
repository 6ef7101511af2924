//! What is asked for on the command line.

use std::process;
use std::time::Duration;

use clap::{Args, value_parser};
use humantime::parse_duration;
use serde::{Deserialize, Serialize};

use super::bugs::Bug;
use crate::base::Database;

/// What the consumers do with an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storm {
    /// They write tables of their own in the inbox's transaction.
    #[default]
    Events,
    /// They change a versioned record.
    Versioned,
}

/// How a run goes.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct Options {
    /// What is done: each has its command.
    #[arg(skip)]
    pub storm: Storm,
    /// On which database.
    #[arg(long = "db")]
    pub database: Database,
    /// Its URL, where that is not a server of the lab's own.
    #[arg(long = "store", value_name = "URL")]
    pub url: Option<String>,
    /// How many events there are; each is delivered 3 to 10 times.
    #[arg(long, default_value_t = 10_000)]
    pub events: u64,
    /// How often a consumer is killed.
    #[arg(long, default_value_t = 100)]
    pub kills: usize,
    /// Events, deliveries and points follow from it; by default the process's number.
    #[arg(long, default_value_t = process::id().into(), hide_default_value = true)]
    pub seed: u64,
    /// How many consumers there are at a time.
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u64).range(1..))]
    pub consumers: u64,
    /// How long an event is held.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub lease: Duration,
    /// The planted bug.
    #[arg(long)]
    pub bug: Option<Bug>,
}
