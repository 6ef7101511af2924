//! The layer around an axum application: over sockets, and in the same process.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use semel_bench_load::median;

use crate::client::{Keys, rate};
use crate::report::{Goal, Measurement, Run, progress};
use crate::server::{Application, Server};

pub(crate) fn measure(run: &Run) -> Result<()> {
    over_sockets(run)?;
    in_process(run)
}

fn over_sockets(run: &Run) -> Result<()> {
    // Fresh keys are let go soon, so that memory does not grow with the length of the run.
    let kinds = [
        ("http/unkeyed", Keys::Absent, 3600, 0.97),
        ("http/fresh", Keys::Fresh, 1, 0.80),
        ("http/replay", Keys::Repeated, 3600, 0.85),
    ];
    let time = Duration::from_millis(run.size(3000, 300) as u64);
    for (name, keys, kept_seconds, goal) in kinds {
        if !run.wants(name) {
            continue;
        }
        let layered = Server::start(Application::Layered { kept_seconds })?;
        let plain = Server::start(Application::Plain)?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for round in 1..=run.rounds() {
            progress(format_args!("{name}: round {round}"));
            with.push(rate(layered.address, keys, time)?);
            without.push(rate(plain.address, keys, time)?);
        }
        Measurement::new(name, median(with), "requests/s")
            .against(
                "the same application without the layer, same requests",
                median(without),
            )
            .goal(Goal::RatioAtLeast(goal))
            .print();
    }
    Ok(())
}

// What a published Go middleware adds to a request, measured on this kind of machine.
const GO: &str = "Go middleware with fencing tokens, in process";
const GO_UNKEYED_NS: f64 = 138.0;
const GO_REPLAY_NS: f64 = 2940.0;

fn in_process(run: &Run) -> Result<()> {
    if !run.wants("http/in-process/unkeyed http/in-process/fresh http/in-process/replay") {
        return Ok(());
    }
    progress("http/in-process: building and running the counting program");
    let requests = run.size(200_000, 5000).to_string();
    let output = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()))
        .args(["run", "--quiet", "--release"])
        .args(["--package", "semel-bench-layer", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .args(["--", &requests, &run.rounds().to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the counting program failed");
    for line in String::from_utf8(output.stdout)?.lines() {
        let mut words = line.split_whitespace();
        let kind = words.next().context("a kind of request")?;
        let numbers: Vec<f64> = words.map(str::parse).collect::<Result<_, _>>()?;
        let [ns, allocations, plain_ns, plain_allocations] = numbers[..] else {
            anyhow::bail!("the counting program said {line:?}");
        };
        let name = format!("http/in-process/{kind}/added-time");
        let mut added = Measurement::new(&name, ns - plain_ns, "ns");
        if kind == "unkeyed" {
            added = added.against(GO, GO_UNKEYED_NS);
        } else if kind == "replay" {
            added = added.against(GO, GO_REPLAY_NS);
        }
        if run.wants(&name) {
            added.print();
        }
        let name = format!("http/in-process/{kind}/added-allocations");
        if run.wants(&name) {
            Measurement::new(&name, allocations - plain_allocations, "allocations").print();
        }
    }
    Ok(())
}
