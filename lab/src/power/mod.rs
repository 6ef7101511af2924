//! Loss of power: which acknowledged completions a store still has when its machine comes back.
//!
//! A store's data is on a file system in a file. The power is cut by taking that file as it is while
//! all who write stand still: what was only in the system's memory is not in it. Each set-up runs in
//! a process of its own, with a name space of mounts of its own: when it ends, however it ends, its
//! disk is unmounted.

pub mod callers;
mod disk;
mod measure;
mod setup;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

pub use measure::Measured;
use setup::{Expected, Setup};

/// How to write the command.
pub const USAGE: &str = "power-loss [--store NAME…] [--seconds 10]";

/// The hidden subcommand: one set-up.
pub const COMMAND: &str = "power-loss-setup";

// A control whose loss is a matter of the moment has so many tries to show it.
const TRIES: u32 = 3;

/// What is to be measured.
#[derive(Debug)]
struct Options {
    stores: Vec<String>,
    seconds: u64,
}

impl Options {
    fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            stores: Vec::new(),
            seconds: 10,
        };
        let mut arguments = arguments.into_iter();
        let mut option = String::new();
        while let Some(word) = arguments.next() {
            let value = match &*word {
                "--store" | "--seconds" => {
                    option = word;
                    let value = arguments.next();
                    value.with_context(|| format!("{option} needs a value; usage: {USAGE}"))?
                }
                _ if option == "--store" && !word.starts_with('-') => word,
                _ => bail!("{word:?} is not understood; usage: {USAGE}"),
            };
            if option == "--seconds" {
                options.seconds = value.parse().context("--seconds")?;
                option.clear();
                continue;
            }
            if !setup::ALL.iter().any(|setup| setup.store == value) {
                let mut names: Vec<&str> = setup::ALL.iter().map(|setup| setup.store).collect();
                names.dedup();
                bail!("--store {value}: there are {}", names.join(", "));
            }
            options.stores.push(value);
        }
        Ok(options)
    }

    fn wants(&self, setup: &Setup) -> bool {
        self.stores.is_empty() || self.stores.iter().any(|store| store == setup.store)
    }
}

/// The line of one set-up.
#[derive(Debug, Serialize)]
struct Line {
    store: &'static str,
    setting: &'static str,
    #[serde(flatten)]
    measured: Measured,
    runs: u32,
    expected: &'static str,
    ok: bool,
}

impl Line {
    fn measure(setup: &'static Setup, options: &Options, program: &Path) -> Result<Self> {
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
            line.measured += once(setup, options, program)?;
            line.ok = setup.expected.is_met(&line.measured);
            let control = setup.expected != Expected::Kept;
            let nothing = line.measured.lost == 0;
            if !(control && nothing) || line.runs == TRIES {
                return Ok(line);
            }
        }
    }
}

/// Measures what the arguments ask for, and prints it. Whether every set-up that is durable kept all,
/// and every control lost something.
///
/// # Errors
/// Where one could not be measured, for instance because images cannot be mounted.
pub fn run(arguments: impl IntoIterator<Item = String>, program: &Path) -> Result<bool> {
    let options = Options::parse(arguments)?;
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
    for setup in setup::ALL.iter().filter(|setup| options.wants(setup)) {
        let line = Line::measure(setup, &options, program)
            .with_context(|| format!("{} with {}", setup.store, setup.setting))?;
        println!("{}", serde_json::to_string(&line)?);
        setups += 1;
        if !line.ok {
            wrong.push(format!("{} {}", line.store, line.setting));
        }
    }
    let ok = wrong.is_empty();
    println!(
        "{}",
        serde_json::json!({ "setups": setups, "wrong": wrong, "ok": ok })
    );
    Ok(ok)
}

/// Measures a set-up once, in a process of its own.
fn once(setup: &Setup, options: &Options, program: &Path) -> Result<Measured> {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::Builder::new().prefix("semel-power-").tempdir()?;
    // PostgreSQL runs as another user.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(program)
        .args([COMMAND, setup.store, setup.setting])
        .arg(folder.path())
        .arg(options.seconds.to_string())
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

fn place(folder: &Path) -> std::path::PathBuf {
    folder.join("disk")
}

/// One set-up, in this process: prints what was measured.
///
/// # Errors
/// Where it could not be measured.
pub fn set_up(store: &str, setting: &str, folder: &Path, seconds: u64) -> Result<()> {
    let setup = Setup::find(store, setting).context("there is no such set-up")?;
    let length = std::time::Duration::from_secs(seconds);
    let measured = measure::measure(setup, folder, &place(folder), length)?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Options;

    fn parse(words: &str) -> anyhow::Result<Options> {
        Options::parse(words.split_whitespace().map(String::from))
    }

    #[test]
    fn several_stores_follow_one_option() {
        let options = parse("--store file redis --seconds 3 --store nats").unwrap();
        assert_eq!(options.stores, ["file", "redis", "nats"]);
        assert_eq!(options.seconds, 3);
        assert_eq!(parse("").unwrap().seconds, 10);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (words, wanted) in [
            ("--store dynamodb", "nats-cluster"),
            ("--store", "needs a value"),
            ("--seconds soon", "--seconds"),
            ("file", "usage"),
            ("--seconds 3 file", "usage"),
        ] {
            let error = parse(words).unwrap_err().to_string();
            assert!(error.contains(wanted), "{words}: {error}");
        }
    }
}
