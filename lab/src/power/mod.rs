//! Loss of power: which acknowledged completions a store still has when its machine comes back.
//!
//! A store's data is on a file system in a file. The power is cut by taking that file as it is while
//! all who write stand still: what was only in the system's memory is not in it. Each set-up runs in
//! a process of its own, with a name space of mounts of its own: when it ends, however it ends, its
//! disk is unmounted.

pub(crate) mod callers;
mod disk;
mod measure;
mod setup;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

pub use measure::Measured;
pub use setup::Store;
use setup::{Expected, Setup};

use crate::named::Named as _;
use crate::part::{self, Part};
use crate::reasons::line;

// A control whose loss is a matter of the moment has so many tries to show it.
const TRIES: u32 = 3;

/// What is to be measured.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// These stores only.
    #[arg(long = "store", value_name = "STORE", num_args = 1..)]
    pub stores: Vec<Store>,
    /// How long the callers work.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
}

/// What a set-up's process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    store: Store,
    setting: String,
    folder: PathBuf,
    seconds: u64,
}

/// The line of one set-up.
#[derive(Debug, Serialize)]
struct Line {
    store: Store,
    setting: &'static str,
    #[serde(flatten)]
    measured: Measured,
    runs: u32,
    expected: &'static str,
    ok: bool,
}

impl Line {
    fn measure(setup: &'static Setup, options: &Options) -> Result<Self> {
        let mut line = Self {
            store: setup.store,
            setting: setup.setting,
            measured: Measured::default(),
            runs: 0,
            expected: setup.expected.loss(),
            ok: false,
        };
        loop {
            line.runs += 1;
            line.measured += once(setup, options)?;
            line.ok = setup.expected.is_met(&line.measured);
            let control = setup.expected != Expected::Kept;
            let nothing = line.measured.lost == 0;
            if !(control && nothing) || line.runs == TRIES {
                return Ok(line);
            }
        }
    }
}

/// Measures what is asked for, and prints it. Whether every set-up that is durable kept all,
/// and every control lost something.
///
/// # Errors
/// Where one could not be measured, for instance because images cannot be mounted.
pub fn run(options: &Options) -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        bail!("power-loss needs root: it puts the stores' data on images that it mounts");
    }
    let tried = Command::new("unshare").args(["--mount", "true"]).output();
    let tried = tried.context("cannot run unshare")?;
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr);
        bail!(
            "power-loss must be allowed to mount images: {}",
            said.trim()
        );
    }
    let (mut setups, mut wrong) = (0, Vec::new());
    let wanted =
        |setup: &&Setup| options.stores.is_empty() || options.stores.contains(&setup.store);
    for setup in setup::ALL.iter().filter(wanted) {
        let measured = Line::measure(setup, options)
            .with_context(|| format!("{} with {}", setup.store.name(), setup.setting))?;
        line(&measured)?;
        setups += 1;
        if !measured.ok {
            wrong.push(format!("{} {}", setup.store.name(), setup.setting));
        }
    }
    let ok = wrong.is_empty();
    line(&serde_json::json!({ "setups": setups, "wrong": wrong, "ok": ok }))?;
    Ok(ok)
}

/// Measures a set-up once, in a process of its own.
fn once(setup: &Setup, options: &Options) -> Result<Measured> {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::Builder::new().prefix("semel-power-").tempdir()?;
    // PostgreSQL runs as another user.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    let part = Part::PowerLossSetup(Settings {
        store: setup.store,
        setting: setup.setting.into(),
        folder: folder.path().into(),
        seconds: options.seconds,
    });
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe()?)
        .args([part::COMMAND, &serde_json::to_string(&part)?])
        // Servers put their data there.
        .env("TMPDIR", place(folder.path()))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run unshare")?;
    if !output.status.success() {
        bail!("it was not measured; the reason is above");
    }
    serde_json::from_slice(&output.stdout).context("what a set-up said")
}

fn place(folder: &Path) -> PathBuf {
    folder.join("disk")
}

/// One set-up, in this process: prints what was measured.
pub(crate) async fn set_up(settings: Settings) -> Result<()> {
    let setup = Setup::find(settings.store, &settings.setting);
    let setup = setup.context("there is no such set-up")?;
    let length = Duration::from_secs(settings.seconds);
    let place = place(&settings.folder);
    line(&measure::measure(setup, &settings.folder, &place, length).await?)
}
