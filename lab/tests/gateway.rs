//! Gateways on several stores while all around them breaks, and gateways that are wrong.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use semel_lab::gateway::Bug;
use serde_json::Value;

fn torture(arguments: &[&str]) -> (bool, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_semel-lab"))
        .args(["torture", "--through", "gateway"])
        .args(arguments)
        .output()
        .expect("the lab runs");
    let out = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{out}\n{errors}");
    let last = out.lines().last().expect("the report is the last line");
    let report = serde_json::from_str(last).expect("the report is JSON");
    (output.status.success(), report)
}

fn holds(store: &str, on_lost: &str, faults: &str) {
    let run = ["--store", store, "--seed", "7", "--seconds", "8"];
    let broken = ["--on-lost", on_lost, "--faults", faults];
    let (passed, report) = torture(&[&run[..], &broken].concat());
    assert!(passed, "{report}");
    assert_eq!(report["violations"], 0);
    assert!(
        report["answered_percent"].as_f64() >= Some(95.0),
        "{report}"
    );
    // There is something to judge.
    for some in ["answered", "replayed", "in-flight", "mismatch", "left"] {
        assert!(report["said"][some].as_u64() > Some(0), "{some}: {report}");
    }
    for fault in faults.split(',') {
        let struck = report["faults_by_kind"][fault].as_u64();
        assert!(struck > Some(0), "{report}");
    }
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
                while let Some(bug) = Bug::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // What a run meets depends on the machine.
                    let is_found = ["7", "8", "9"].into_iter().any(|seed| {
                        let report = planted(*bug, seed);
                        !report["violations_by_check"][bug.caught_by()].is_null()
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

fn planted(bug: Bug, seed: &str) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keep = folder.path().to_str().expect("a plain path");
    let (store, faults, seconds) = match bug {
        // It takes two services.
        Bug::OtherService | Bug::OneService => ("sqlite", "", "2"),
        Bug::EndsBadly => ("file", "restart-gateway", "5"),
        Bug::CutsAll | Bug::Reruns => ("file", "cut-upstream", "5"),
        Bug::Releases504 => ("file", "fail-upstream", "6"),
        Bug::Silent => ("file", "", "6"),
        _ => ("file", "", "1"),
    };
    let run = ["--store", store, "--seconds", seconds, "--keep", keep];
    let short = ["--seed", seed, "--pace", "5ms", "--enough", "80"];
    let planted = ["--bug", bug.name(), "--faults", faults, "--on-lost", "hold"];
    let (passed, report) = torture(&[&run[..], &short, &planted].concat());
    println!("{}: {passed}", bug.name());
    report
}
