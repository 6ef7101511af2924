//! Short runs of the program itself on every store, each with two kinds of fault. Each starts a
//! server of its own; one that is not installed is a failure.

use std::process::Command;

use serde_json::Value;

fn lab(arguments: &[&str]) -> (bool, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_semel-lab"))
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

/// A run that is to fail, on the file store: what it leaves is not for keeping.
fn failing(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keep = folder.path().to_str().expect("a plain path");
    let store = ["torture", "--store", "file", "--keep", keep];
    let (passed, report) = lab(&[&store, arguments].concat());
    assert!(!passed, "{report}");
    report
}

/// 12 s of work of 8 processes with 25 tasks each on 1,000 keys.
fn torture(store: &str, faults: &str) {
    torture_with(store, faults, &[]);
}

fn torture_with(store: &str, faults: &str, more: &[&str]) {
    let run = [
        "torture",
        "--store",
        store,
        "--seed",
        "7",
        "--seconds",
        "12",
        "--faults",
        faults,
    ];
    let (passed, report) = lab(&[&run[..], more].concat());
    assert!(passed, "{report}");
    assert_eq!(report["violations"], 0);
    assert_eq!(
        (&report["lost"], &report["double_effects"]),
        (&0.into(), &0.into())
    );
    for fault in faults.split(',') {
        assert!(
            report["faults_by_kind"][fault].as_u64() > Some(0),
            "{report}"
        );
    }
}

#[test]
fn file() {
    torture("file", "kill-worker,pause-worker");
}

#[test]
fn sqlite() {
    torture("sqlite", "kill-worker,pause-worker");
}

#[test]
fn postgres() {
    torture("postgres", "restart-server,drop-answers");
}

#[test]
fn mariadb() {
    torture("mariadb", "kill-server,cut");
}

#[cfg(feature = "redis")]
#[test]
fn redis() {
    torture("redis", "pause-server,halve-answers");
}

#[cfg(feature = "redis")]
#[test]
fn redis_cluster() {
    // No failover: without `wait_replicas` it loses acknowledged steps, as `docs/stores.md` says.
    torture("redis-cluster", "kill-worker,pause-worker");
}

#[cfg(feature = "nats")]
#[test]
fn nats() {
    torture("nats", "kill-server,drop-answers");
}

#[cfg(feature = "nats")]
#[test]
fn nats_cluster() {
    torture("nats-cluster", "kill-server,pause-worker");
}

#[cfg(feature = "dynamodb")]
#[test]
fn dynamodb() {
    // The emulator does some 200 requests a second: more than these would wait for nothing else.
    let few = ["--tasks", "4", "--keys", "100", "--floor", "2"];
    torture_with("dynamodb", "kill-worker,drop-answers", &few);
}

/// Nothing is excused by it.
#[test]
fn the_wall_clocks_of_workers_do_not_matter() {
    torture_with("sqlite", "clock-step,clock-drift", &["--seconds", "6"]);
}

#[test]
fn a_store_whose_clock_steps_has_one_owner_and_fences_that_grow() {
    torture_with("postgres", "server-clock-step", &["--seconds", "8"]);
}

#[test]
fn a_store_that_goes_by_the_callers_clock_is_caught_by_one_that_is_wrong() {
    let short = ["--seconds", "4", "--keys", "100", "--lease", "500ms"];
    let bug = ["--bug", "callers-clock", "--faults", "clock-step"];
    let report = failing(&[&short[..], &bug].concat());
    assert!(
        report["violations_by_property"]["P1"].as_u64() > Some(0),
        "{report}"
    );
}

/// Loss that is there is found.
#[cfg(feature = "redis")]
#[test]
fn controls_show_their_loss() {
    let (passed, last) = lab(&["controls"]);
    assert!(passed, "{last}");
}

#[test]
fn a_planted_bug_fails_a_run_across_processes() {
    for bug in ["dropped-field", "hold-reruns", "early-ack"] {
        let short = ["--seconds", "3", "--keys", "100", "--lease", "300ms"];
        let report = failing(&[&short[..], &["--bug", bug]].concat());
        assert_ne!(report["violations"], 0, "{report}");
    }
}

#[test]
fn what_does_not_apply_is_said() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_semel-lab"))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = run(&["torture", "--store", "file", "--faults", "cut"]);
    assert!(said.contains("needs a server"), "{said}");
    let said = run(&["torture", "--store", "redis-cluster", "--faults", "cut"]);
    assert!(said.contains("needs one address"), "{said}");
    let said = run(&["torture", "--store", "file", "--faults", "floods"]);
    assert!(said.contains("there is no fault"), "{said}");
    let said = run(&["torture", "--store", "memory:"]);
    assert!(said.contains("one process"), "{said}");
}

#[test]
fn too_little_success_and_faults_that_never_fired_fail_a_run() {
    let report = failing(&["--seconds", "2", "--keys", "50", "--floor", "1000000"]);
    let why = report["failed_because"].to_string();
    assert!(why.contains("floor"), "{why}");

    let short = ["--seconds", "1", "--floor", "0"];
    let report = failing(&[&short[..], &["--faults", "pause-worker"]].concat());
    let why = report["failed_because"].to_string();
    assert!(why.contains("never fired"), "{why}");
}
