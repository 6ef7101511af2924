//! What is asked for on the command line.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::bugs::Bug;
use crate::base::Database;

/// The usage of both commands.
pub const USAGE: &str = "events|versioned --db postgres|sqlite|mysql [--store URL] [--events N] \
     [--kills N] [--seed S] [--consumers N] [--lease DURATION] [--bug NAME]";

/// What the consumers do with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storm {
    /// They write tables of their own in the inbox's transaction.
    Events,
    /// They change a versioned record.
    Versioned,
}

/// How a run goes.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is done.
    pub storm: Storm,
    /// On which database.
    pub database: Database,
    /// Where it is, where that is not a server of the lab's own.
    pub url: Option<String>,
    /// How many events there are; each is delivered 3 to 10 times.
    pub events: u64,
    /// How often a consumer is killed.
    pub kills: usize,
    /// Events, deliveries and points follow from it.
    pub seed: u64,
    /// How many consumers there are at a time.
    pub consumers: usize,
    /// How long an event is held.
    pub lease: Duration,
    /// The planted bug.
    pub bug: Option<Bug>,
}

impl Options {
    /// Reads a command line.
    ///
    /// # Errors
    /// Says what is not understood.
    pub fn parse(storm: Storm, mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut database = None;
        let mut options = Self {
            storm,
            database: Database::Sqlite,
            url: None,
            events: 10_000,
            kills: 100,
            seed: std::process::id().into(),
            consumers: 8,
            lease: Duration::from_millis(500),
            bug: None,
        };
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{name} needs a value; usage: {USAGE}"))?;
            match name.as_str() {
                "--db" => database = Some(Database::from_name(&value)?),
                "--store" => options.url = Some(value),
                "--events" => options.events = value.parse()?,
                "--kills" => options.kills = value.parse()?,
                "--seed" => options.seed = value.parse()?,
                "--consumers" => options.consumers = value.parse::<usize>()?.max(1),
                "--lease" => options.lease = humantime::parse_duration(&value)?,
                "--bug" => options.bug = Some(bug(&value)?),
                _ => bail!("{name} is not an option; usage: {USAGE}"),
            }
        }
        options.database = database.with_context(|| format!("which database? usage: {USAGE}"))?;
        Ok(options)
    }
}

fn bug(name: &str) -> Result<Bug> {
    Bug::from_name(name).with_context(|| {
        let names: Vec<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        format!(
            "there is no bug of that name; there are {}",
            names.join(", ")
        )
    })
}
