//! `lost`: attempts that are lost between their effect and their completion, without a transaction,
//! under each policy. `docs/unknown.md` says what must come of it; this kills and stops processes
//! until it shows.

mod fleet;
mod ledger;
mod report;
mod scenario;
pub mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use semel_stores::OpenOptions;
use semel_testkit::servers::{self, Kind};
use tempfile::TempDir;

use crate::bugs::Bug;
use report::Report;
use scenario::Scene;

/// How to write the command.
pub const USAGE: &str =
    "lost --store URL|NAME [--seed N] [--rounds 3] [--keys 8] [--lease 1s] [--bug NAME|no-fence]";

/// The planted bug that is not the store's: a ledger that takes every fence.
const NO_FENCE: &str = "no-fence";

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    store: String,
    seed: u64,
    rounds: u32,
    keys: u32,
    lease: Duration,
    bug: Option<String>,
}

impl Options {
    /// Reads the arguments after the subcommand.
    ///
    /// # Errors
    /// Says which argument is wrong, and what would be right.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            store: String::new(),
            seed: u64::from(std::process::id()),
            rounds: 3,
            keys: 8,
            lease: Duration::from_secs(1),
            bug: None,
        };
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{name} needs a value; usage: {USAGE}"))?;
            options
                .set(&name, value)
                .with_context(|| format!("{name} is not right; usage: {USAGE}"))?;
        }
        if options.store.is_empty() || options.rounds == 0 || options.keys == 0 {
            bail!("--store, --rounds and --keys are needed; usage: {USAGE}");
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: String) -> Result<()> {
        match name {
            "--store" => self.store = value,
            "--seed" => self.seed = value.parse()?,
            "--rounds" => self.rounds = value.parse()?,
            "--keys" => self.keys = value.parse()?,
            "--lease" => self.lease = humantime::parse_duration(&value)?,
            "--bug" if value == NO_FENCE || Bug::from_name(&value).is_some() => {
                self.bug = Some(value);
            }
            _ => bail!("{name} {value} is not an option"),
        }
        Ok(())
    }
}

/// Does it, prints the report, and says whether all went as it must.
///
/// # Errors
/// Where it could not be done.
pub async fn run(options: &Options, program: &Path) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let (url, _server) = store(&options.store, &folder)?;
    semel_stores::migrate(&url, &OpenOptions::default())
        .await
        .context("the store cannot be prepared")?;
    let scheme = url.split(':').next().unwrap_or_default().to_owned();
    if scheme == "memory" {
        bail!("memory: dies with its process");
    }
    let mut report = Report::new(&scheme, options.seed);
    let mut chance = fastrand::Rng::with_seed(options.seed);
    // Records on a server stay: no run meets those of another.
    let run = format!("{}-{}", options.seed, std::process::id());
    for round in 0..options.rounds {
        let scene = Scene {
            program,
            url: &url,
            ledger: ledger_of(&folder, round),
            options,
            // A `file:` store is open in one process at a time: while the first is stopped, no
            // second can take over.
            single: scheme == "file",
            run: format!("{run}-{round}"),
        };
        scene.all(&mut chance, &mut report).await?;
    }
    report.print()?;
    Ok(report.passed())
}

fn ledger_of(folder: &TempDir, round: u32) -> PathBuf {
    folder.path().join(format!("ledger-{round}"))
}

fn store(name: &str, folder: &TempDir) -> Result<(String, Option<Box<dyn servers::Server>>)> {
    if let Some(kind) = Kind::from_name(name) {
        let server = tokio::task::block_in_place(|| servers::start(kind))?;
        return Ok((server.url(), Some(server)));
    }
    let url = match name {
        "file" | "sqlite" => format!("{name}:{}", folder.path().join("store").display()),
        url => url.to_owned(),
    };
    Ok((url, None))
}
