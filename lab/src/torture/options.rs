//! What the command line of `torture` says.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::bugs::Bug;
use crate::nemesis::Fault;

/// How to write the command.
pub const USAGE: &str = "torture --store URL|NAME [--seconds 20] [--seed N] [--faults a,b|any] \
    [--processes 8] [--tasks 25] [--keys 1000] [--lease 1s] [--pace 20ms] [--bug NAME] \
    [--floor N] [--keep FOLDER] [--tolerance 20ms] [--through gateway [--on-lost hold|retry|reconcile] [--enough 400]]";

/// A run to be done.
#[derive(Debug, Clone)]
pub struct Options {
    /// A URL, or the name of a kind of store to start.
    pub store: String,
    /// How long the workers work; settling comes after it.
    pub length: Duration,
    /// What everything random comes from.
    pub seed: u64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// The seed chooses two kinds of fault.
    pub any_faults: bool,
    /// How many workers.
    pub processes: u32,
    /// How many tasks in each.
    pub tasks: u32,
    /// How many keys they share.
    pub keys: u32,
    /// How long claims are held.
    pub lease: Duration,
    /// How long a task rests between operations, on average.
    pub pace: Duration,
    /// The planted bug.
    pub bug: Option<Bug>,
    /// The run fails where fewer completions were acknowledged; by default 10 a second.
    pub floor: Option<usize>,
    /// Where to leave histories and ledger, whatever comes out.
    pub keep: Option<PathBuf>,
    /// How far the store's clock may be off over the run.
    pub tolerance: Duration,
}

impl Options {
    /// Reads the arguments after the subcommand.
    ///
    /// # Errors
    /// Says which argument is wrong, and what would be right.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            store: String::new(),
            length: Duration::from_secs(20),
            seed: u64::from(std::process::id()),
            faults: Vec::new(),
            any_faults: false,
            processes: 8,
            tasks: 25,
            keys: 1_000,
            lease: Duration::from_secs(1),
            pace: Duration::from_millis(20),
            bug: None,
            floor: None,
            keep: None,
            tolerance: Duration::from_millis(20),
        };
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{name} needs a value; usage: {USAGE}"))?;
            options
                .set(&name, &value)
                .with_context(|| format!("{name} {value}"))?;
        }
        if options.store.is_empty() {
            bail!("--store is missing; usage: {USAGE}");
        }
        if options.processes == 0 || options.tasks == 0 || options.keys == 0 {
            bail!("--processes, --tasks and --keys are 1 at least");
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "--store" => self.store = value.into(),
            "--seconds" => self.length = Duration::try_from_secs_f64(value.parse()?)?,
            "--seed" => self.seed = value.parse()?,
            "--faults" if value == "any" => self.any_faults = true,
            "--faults" => self.faults = faults(value)?,
            "--processes" => self.processes = value.parse()?,
            "--tasks" => self.tasks = value.parse()?,
            "--keys" => self.keys = value.parse()?,
            "--lease" => self.lease = humantime::parse_duration(value)?,
            "--pace" => self.pace = humantime::parse_duration(value)?,
            "--bug" => self.bug = Some(bug(value)?),
            "--floor" => self.floor = Some(value.parse()?),
            "--keep" => self.keep = Some(value.into()),
            "--tolerance" => self.tolerance = humantime::parse_duration(value)?,
            _ => bail!("not an option; usage: {USAGE}"),
        }
        Ok(())
    }

    /// How many completions there must be.
    pub fn floor(&self) -> usize {
        let by_time = usize::try_from(self.length.as_secs()).unwrap_or(usize::MAX) * 10;
        self.floor.unwrap_or(by_time)
    }
}

pub(crate) fn faults(names: &str) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let fault = Fault::from_name(name)
            .with_context(|| format!("there is no fault {name:?}; there are {}", Fault::names()))?;
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    Ok(faults)
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
