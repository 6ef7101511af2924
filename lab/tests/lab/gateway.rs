//! Gateways on several stores while all around them breaks, and gateways that are wrong.

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
        let run = ["--store", store, "--seed", seed, "--seconds", "8"];
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
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    // A few at a time: most of a run is waiting.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(bug) =
                    Bug::value_variants().get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let is_found = some_seed(|seed| {
                        let run = planted(*bug, seed);
                        !run.report["violations_by_check"][bug.caught_by()].is_null()
                    });
                    if !is_found {
                        missed.lock().unwrap().push(*bug);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "{missed:#?}");
}

fn planted(bug: Bug, seed: &str) -> Run {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keep = folder.path().to_str().expect("a plain path");
    let (store, faults, seconds) = match bug {
        // It takes two services.
        Bug::OtherService | Bug::OneService => ("sqlite", "", "2"),
        Bug::EndsBadly => ("file", "restart-gateway", "5"),
        Bug::CutsAll | Bug::Reruns => ("file", "cut-upstream", "5"),
        Bug::ReleasesTimeout => ("file", "fail-upstream", "6"),
        Bug::Silent => ("file", "", "6"),
        _ => ("file", "", "1"),
    };
    let run = ["--store", store, "--seconds", seconds, "--keep", keep];
    let short = ["--seed", seed, "--pace", "5ms", "--enough", "80"];
    let planted = [
        "--bug",
        &bug.name(),
        "--faults",
        faults,
        "--on-lost",
        "hold",
    ];
    torture(&[&run[..], &short, &planted].concat())
}
