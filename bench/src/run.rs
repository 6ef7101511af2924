//! What was asked for, and on what machine it runs.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use semel_bench_report::{Begin, End, Line, Machine, Moment, Spread};

use crate::disk;

/// What the command line asked for.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Small sizes: shows that everything works, not how fast.
    pub(crate) quick: bool,
    /// Only measurements whose name has this in it.
    pub(crate) only: Option<String>,
}

impl Run {
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only))
    }

    /// `full`, or `quick` where small sizes were asked for.
    pub(crate) fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// How often measured thing and reference take turns.
    pub(crate) fn rounds(&self) -> usize {
        self.size(5, 3)
    }

    /// Where a round takes long.
    pub(crate) fn few_rounds(&self) -> usize {
        self.size(3, 2)
    }

    /// How long each of them works in its turn.
    pub(crate) fn turn(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.size(1000, 300) as u64)
    }
}

/// Measures `topics` between the first and the last line of a run.
pub(crate) fn recorded(arguments: String, topics: impl FnOnce() -> Result<()>) -> Result<()> {
    let begin = Begin {
        arguments,
        commit: commit()?,
        rustc: output("rustc", &["--version"])?,
        machine: machine()?,
        moment: moment()?,
    };
    Line::Begin(begin).print();
    let started = Instant::now();
    topics()?;
    let seconds = started.elapsed().as_secs();
    let moment = moment()?;
    Line::End(End { seconds, moment }).print();
    Ok(())
}

/// The commit that is measured, and whether anything that runs was changed since.
fn commit() -> Result<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut commit = output("git", &["-C", root, "rev-parse", "--short=10", "HEAD"])?;
    let code = ["--", "crates", "bench/*.rs", "*.toml", "*.lock"];
    let changed = [&["-C", root, "status", "--porcelain"][..], &code].concat();
    if !output("git", &changed)?.is_empty() {
        commit.push_str(" with changes");
    }
    Ok(commit)
}

fn machine() -> Result<Machine> {
    let processors = std::fs::read_to_string("/proc/cpuinfo")?;
    let processor = after(&processors, "model name").unwrap_or("unknown processor");
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let kib = after(&memory, "MemTotal").and_then(|text| text.split_whitespace().next());
    let kib: usize = kib.context("the size of the memory")?.parse()?;
    let directory = disk::directory()?;
    let directory = directory.path().display().to_string();
    let disk = output("findmnt", &["-no", "FSTYPE,SOURCE", "-T", &directory])?;
    Ok(Machine {
        processor: processor.to_owned(),
        cores: std::thread::available_parallelism()?.get(),
        memory_gib: kib >> 20,
        kernel: output("uname", &["-r"])?,
        disk: disk.split_whitespace().collect::<Vec<_>>().join(" on "),
    })
}

/// What follows `label` and a colon.
fn after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    Some(line.split_once(':')?.1.trim())
}

fn moment() -> Result<Moment> {
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split_whitespace().next().context("a load average")?;
    Ok(Moment {
        date: output("date", &["-u", "+%Y-%m-%d %H:%M"])?,
        load: load.parse()?,
        sync_ms: sync_ms()?,
    })
}

/// How long the disk takes for what every durable store waits for.
fn sync_ms() -> Result<f64> {
    let directory = disk::directory()?;
    let mut file = File::create(directory.path().join("synced"))?;
    let mut times = Vec::new();
    for _ in 0..200 {
        let started = Instant::now();
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(Spread::of(&times).median)
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("{program} {arguments:?}"))?;
    ensure!(output.status.success(), "{program} {arguments:?} failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Says what is going on.
pub(crate) fn progress(what: impl fmt::Display) {
    eprintln!("# {what}");
}
