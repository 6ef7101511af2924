//! Gateways on several stores while all around them breaks, and gateways that are wrong.

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::ValueEnum as _;
use semel_lab::gateway::Bug;
use semel_lab::named::Named as _;

use crate::{Run, lab, some_seed};

fn torture(arguments: &[&str]) -> Run {
    lab(&[&["torture", "--through", "gateway"], arguments].concat())
}

fn holds(store: &str, on_lost: &str, faults: &str) {
    let proves = |seed| {
        let run = ["--store", store, "--seed", seed, "--seconds", "10"];
        let broken = ["--on-lost", on_lost, "--faults", faults];
        let run = torture(&[&run[..], &broken].concat());
        run.nothing_is_wrong();
        let report = &run.report;
        // There is something to judge.
        let kinds = ["answered", "replayed", "in-flight", "mismatch", "left"];
        let said = |kind| report["said"][kind].as_u64() > Some(0);
        let answered = report["answered_percent"].as_f64() >= Some(95.0);
        run.passed && answered && kinds.into_iter().all(said)
    };
    assert!(some_seed(proves), "no run comes to enough");
}

#[test]
fn postgres() {
    holds(
        "postgres",
        "retry",
        "restart-server,drop-answers,kill-gateway,cut-upstream",
    );
}

#[test]
fn sqlite() {
    holds("sqlite", "hold", "restart-gateway,fail-upstream");
}

#[test]
fn file() {
    holds("file", "reconcile", "kill-gateway,kill-upstream");
}

/// Each by its own check.
#[test]
fn planted_bugs_are_caught() {
    are_caught(Bug::value_variants(), |bug| match bug {
        // It takes two services.
        Bug::OtherService | Bug::OneService => ("sqlite", "", "2"),
        Bug::EndsBadly => ("file", "restart-gateway", "5"),
        Bug::CutsAll | Bug::Reruns => ("file", "cut-upstream", "5"),
        Bug::ReleasesTimeout => ("file", "fail-upstream", "6"),
        Bug::Silent => ("file", "", "6"),
        _ => ("file", "", "1"),
    });
}

/// The same where all around breaks, which excuses much. All of them nightly.
#[cfg(feature = "redis")]
#[test]
fn planted_bugs_are_caught_behind_faults() {
    let some = [
        Bug::OneByte,
        Bug::RunsAgain,
        Bug::FalseInFlight,
        Bug::FalseUnknown,
        Bug::FalseUnavailable,
        Bug::ConstantFence,
    ];
    let nightly = env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "nightly");
    let all = Bug::value_variants();
    are_caught(if nightly { all } else { &some }, |bug| match bug {
        // What an upstream that is broken as well would excuse.
        Bug::EndsBadly => ("redis", "drop-answers,restart-gateway", "10"),
        Bug::ReleasesTimeout => ("redis", "drop-answers,kill-gateway,fail-upstream", "12"),
        // Two seconds without any fault must be left.
        Bug::Silent => ("redis", "drop-answers,kill-gateway,cut-upstream", "12"),
        _ => ("redis", "drop-answers,kill-gateway,cut-upstream", "5"),
    });
}

/// With store, faults and seconds.
fn are_caught(bugs: &[Bug], how: fn(Bug) -> (&'static str, &'static str, &'static str)) {
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    // A few at a time: most of a run is waiting.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let is_found = some_seed(|seed| {
                        let run = planted(*bug, how(*bug), seed);
                        !run.report["violations_by_check"][bug.caught_by()].is_null()
                    });
                    if !is_found {
                        missed.lock().expect("no run panics").push(*bug);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("no run panics");
    assert!(missed.is_empty(), "{missed:#?}");
}

fn planted(bug: Bug, (store, faults, seconds): (&str, &str, &str), seed: &str) -> Run {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keep = folder.path().to_str().expect("a plain path");
    let run = ["--store", store, "--seconds", seconds, "--keep", keep];
    let short = ["--seed", seed, "--pace", "5ms", "--enough", "80"];
    let (bug, held) = (bug.name(), ["--on-lost", "hold"]);
    let planted = ["--bug", &bug, "--faults", faults];
    torture(&[&run[..], &short, &planted, &held].concat())
}
