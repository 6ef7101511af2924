//! What is asked for on the command line.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::bugs::Bug;
use super::point::{Point, Work};
use crate::base::Database;

/// The command's usage.
pub const USAGE: &str = "crash-matrix --db postgres|sqlite|mysql [--store URL] \
     [--work transaction|steps|mixed] [--kills N] [--seed S] [--points NAME,…] [--processes N] \
     [--lease DURATION] [--bug NAME]";

/// How a run goes.
#[derive(Debug, Clone)]
pub struct Options {
    /// On which database.
    pub database: Database,
    /// Where it is, where that is not a server of the lab's own.
    pub url: Option<String>,
    /// What the work is.
    pub work: Work,
    /// How often a worker is killed.
    pub kills: usize,
    /// These points only.
    pub points: Option<Vec<Point>>,
    /// Plans and choices follow from it.
    pub seed: u64,
    /// How many workers there are at a time.
    pub processes: usize,
    /// Of every claim: so long a killed worker's key waits.
    pub lease: Duration,
    /// The planted bug.
    pub bug: Option<Bug>,
}

impl Options {
    /// Reads a command line.
    ///
    /// # Errors
    /// Says what is not understood.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut database = None;
        let mut options = Self {
            database: Database::Sqlite,
            url: None,
            work: Work::Transaction,
            kills: 1000,
            points: None,
            seed: std::process::id().into(),
            processes: 6,
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
                "--work" => options.work = work(&value)?,
                "--kills" => options.kills = value.parse()?,
                "--points" => {
                    let points = value.split(',').map(Point::from_name);
                    options.points = Some(points.collect::<Result<_>>()?);
                }
                "--seed" => options.seed = value.parse()?,
                "--processes" => options.processes = value.parse::<usize>()?.max(1),
                "--lease" => options.lease = humantime::parse_duration(&value)?,
                "--bug" => options.bug = Some(bug(&value)?),
                _ => bail!("{name} is not an option; usage: {USAGE}"),
            }
        }
        options.database = database.with_context(|| format!("which database? usage: {USAGE}"))?;
        if let Some(bug) = options.bug {
            options.work = bug.work();
        }
        Ok(options)
    }
}

fn work(name: &str) -> Result<Work> {
    match name {
        "transaction" => Ok(Work::Transaction),
        "steps" => Ok(Work::Steps),
        "mixed" => Ok(Work::Mixed),
        _ => bail!("--work is transaction, steps or mixed, not {name:?}"),
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
