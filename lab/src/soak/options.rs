//! What the command line of `soak` says.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::nemesis::Fault;
use crate::torture;

/// How to write the command.
pub const USAGE: &str = "soak --store URL|NAME (--hours H | --for 30m) [--every 30s] [--faults a,b|none] \
    [--seed N] [--processes 4] [--tasks 8] [--pace 100ms] [--out FOLDER] [--bug leaks|keeps-records]";

/// A run to be done.
#[derive(Debug, Clone)]
pub struct Options {
    /// A URL, or the name of a kind of store to start.
    pub store: String,
    /// How long it takes.
    pub length: Duration,
    /// How often something goes wrong, on average.
    pub every: Duration,
    /// What goes wrong: by default all that applies to the store.
    pub faults: Vec<Fault>,
    /// The order of faults and calls follows from it.
    pub seed: u64,
    /// How many workers.
    pub processes: u32,
    /// How many tasks in each.
    pub tasks: u32,
    /// How long a task rests between calls, on average.
    pub pace: Duration,
    /// Where the page and the numbers are put.
    pub out: Option<PathBuf>,
    /// The planted bug.
    pub bug: Option<Bug>,
}

/// What is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Workers keep a page of memory for each call.
    Leaks,
    /// Records are kept for an hour.
    KeepsRecords,
}

impl Bug {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Leaks => "leaks",
            Self::KeepsRecords => "keeps-records",
        }
    }
}

impl Options {
    /// Reads the arguments after the subcommand.
    ///
    /// # Errors
    /// Says which argument is wrong, and what would be right.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            store: String::new(),
            length: Duration::ZERO,
            every: Duration::from_secs(30),
            faults: Vec::new(),
            seed: u64::from(std::process::id()),
            processes: 4,
            tasks: 8,
            pace: Duration::from_millis(100),
            out: None,
            bug: None,
        };
        let mut faults = None;
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{name} needs a value; usage: {USAGE}"))?;
            match name.as_str() {
                "--store" => options.store = value,
                "--hours" => {
                    options.length = Duration::try_from_secs_f64(value.parse::<f64>()? * 3600.0)?;
                }
                "--for" => options.length = humantime::parse_duration(&value)?,
                "--every" => options.every = humantime::parse_duration(&value)?,
                "--faults" => faults = Some(value),
                "--seed" => options.seed = value.parse()?,
                "--processes" => options.processes = value.parse::<u32>()?.max(1),
                "--tasks" => options.tasks = value.parse::<u32>()?.max(1),
                "--pace" => options.pace = humantime::parse_duration(&value)?,
                "--out" => options.out = Some(value.into()),
                "--bug" => {
                    let bugs = [Bug::Leaks, Bug::KeepsRecords];
                    let found = bugs.into_iter().find(|bug| bug.name() == value);
                    options.bug = Some(found.with_context(|| format!("no bug {value:?}"))?);
                }
                _ => bail!("{name} is not an option; usage: {USAGE}"),
            }
        }
        if options.store.is_empty() || options.length.is_zero() {
            bail!("which store, and how long? usage: {USAGE}");
        }
        options.faults = match faults.as_deref() {
            Some("none") => Vec::new(),
            Some(names) => torture::faults(names)?,
            None => torture::faults_of(&options.store),
        };
        Ok(options)
    }

    /// The same as a run of `torture` has it: its servers and proxies are used.
    pub(super) fn target(&self) -> Result<torture::Options> {
        let words = ["--store", &self.store].map(String::from);
        let mut target = torture::Options::parse(words)?;
        target.faults.clone_from(&self.faults);
        Ok(target)
    }

    /// Not so often that hours of it do not fit into a page.
    pub(super) fn sample_every(&self) -> Duration {
        (self.length / 1200).clamp(Duration::from_millis(500), Duration::from_secs(30))
    }
}
