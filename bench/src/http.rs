//! The layer around an axum application: over sockets, and in the same process.

use std::process::{Command, Stdio};

use anyhow::{Result, bail, ensure};
use semel_bench_report::{Goal, Measurement};

use crate::client::{Keys, Target, rate};
use crate::run::{Run, progress};
use crate::server::{Application, Server};

pub(crate) fn measure(run: &Run) -> Result<()> {
    over_sockets(run)?;
    in_process(run)
}

fn over_sockets(run: &Run) -> Result<()> {
    // Fresh keys are let go soon, so that memory does not grow with the length of the run.
    let kinds = [
        ("http/unkeyed", Keys::Absent, 3600, 0.98),
        ("http/fresh", Keys::Fresh, 1, 0.75),
        ("http/replay", Keys::Repeated, 3600, 0.85),
    ];
    for (name, keys, kept_seconds, goal) in kinds {
        if !run.wants(name) {
            continue;
        }
        let layered = Server::start(Application::Layered { kept_seconds })?;
        let plain = Server::start(Application::Plain)?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for round in 1..=run.rounds() {
            progress(format_args!("{name}: round {round}"));
            with.push(rate(&Target::plain(layered.address), keys, run.turn())?);
            without.push(rate(&Target::plain(plain.address), keys, run.turn())?);
        }
        Measurement::new(name, "requests/s", with)
            .against("without the layer", &without)
            .goal(Goal::RatioAtLeast(goal))
            .print();
    }
    Ok(())
}

fn in_process(run: &Run) -> Result<()> {
    const KINDS: [&str; 3] = ["unkeyed", "fresh", "replay"];
    let time = |kind: &str| format!("http/in-process/{kind}/added-time");
    let allocations = |kind: &str| format!("http/in-process/{kind}/added-allocations");
    if !KINDS
        .iter()
        .any(|kind| run.wants(&time(kind)) || run.wants(&allocations(kind)))
    {
        return Ok(());
    }
    progress("http/in-process: building and running the counting program");
    let requests = run.size(100_000, 5000).to_string();
    let output = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()))
        .args(["run", "--quiet", "--release"])
        .args(["--package", "semel-bench-layer", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .args(["--", &requests, &run.rounds().to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the counting program failed");
    // A line for each round of each kind.
    let printed = String::from_utf8(output.stdout)?;
    for kind in KINDS {
        let (mut added_ns, mut added_allocations) = (Vec::new(), Vec::new());
        for line in printed.lines().filter_map(|line| line.strip_prefix(kind)) {
            let words = line.split_whitespace().map(str::parse);
            let numbers: Vec<f64> = words.collect::<Result<_, _>>()?;
            let [ns, allocations, plain_ns, plain_allocations] = numbers[..] else {
                bail!("the counting program said {line:?} of {kind}");
            };
            added_ns.push(ns - plain_ns);
            added_allocations.push(allocations - plain_allocations);
        }
        ensure!(
            !added_ns.is_empty(),
            "the counting program said nothing of {kind}"
        );
        for (name, unit, added) in [
            (time(kind), "ns", added_ns),
            (allocations(kind), "allocations", added_allocations),
        ] {
            if run.wants(&name) {
                Measurement::new(&name, unit, added).print();
            }
        }
    }
    Ok(())
}
