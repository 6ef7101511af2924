//! Short runs of the program itself on every store, each with two kinds of fault. Each starts a
//! server of its own; one that is not installed is a failure.

use crate::{Run, lab, refusal, some_seed};

/// A run on the file store that is to fail: what it leaves is not for keeping.
fn failing(arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keep = folder.path().to_str().expect("a plain path");
    let store = ["torture", "--store", "file", "--keep", keep];
    lab(&[&store, arguments].concat())
}

/// 6 s of work of 8 processes with 25 tasks each on 1,000 keys.
fn torture(store: &str, faults: &str) {
    torture_with(store, faults, &[]);
}

fn torture_with(store: &str, faults: &str, more: &[&str]) {
    let proves = |seed| {
        let run = ["torture", "--store", store, "--seconds", "6"];
        let broken = ["--seed", seed, "--faults", faults];
        let run = lab(&[&run[..], &broken, more].concat());
        run.nothing_is_wrong();
        run.passed
    };
    assert!(some_seed(proves), "no run comes to enough");
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
    // Not killed: without a binary log it shows commits before they are on disk, as `docs/lab.md` says.
    torture("mariadb", "restart-server,cut");
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
    // The emulator does some 200 requests a second, on a busy machine 20: whoever waits for more than five seconds asks
    // again, and what it had asked before is done all the same, so that more callers than these get no answers at all.
    let few = [
        ["--processes", "4"],
        ["--tasks", "2"],
        ["--keys", "12"],
        ["--floor", "2"],
    ];
    torture_with("dynamodb", "kill-worker,drop-answers", few.as_flattened());
}

/// Nothing is excused by it.
#[test]
fn the_wall_clocks_of_workers_do_not_matter() {
    torture("sqlite", "clock-step,clock-drift");
}

#[test]
fn a_store_whose_clock_steps_has_one_owner_and_fences_that_grow() {
    torture_with("postgres", "server-clock-step", &["--seconds", "8"]);
}

#[test]
fn a_store_that_goes_by_the_callers_clock_is_caught_by_one_that_is_wrong() {
    let short = ["--seconds", "4", "--keys", "100", "--lease", "500ms"];
    let bug = ["--bug", "callers-clock", "--faults", "clock-step"];
    is_caught(&[&short[..], &bug].concat(), "P1");
}

fn is_caught(arguments: &[&str], by: &str) {
    let finds = |seed| {
        let run = failing(&[&["--seed", seed], arguments].concat());
        !run.passed && run.report["violations_by_property"][by].as_u64() > Some(0)
    };
    assert!(some_seed(finds), "no run finds {by}: {arguments:?}");
}

/// Loss that is there is found.
#[cfg(feature = "redis")]
#[test]
fn controls_show_their_loss() {
    assert!(some_seed(|_| lab(&["controls"]).passed));
}

#[test]
fn a_planted_bug_fails_a_run_across_processes() {
    for (bug, by) in [
        ("dropped-field", "P4"),
        ("hold-reruns", "P1"),
        ("early-ack", "P2"),
    ] {
        let short = ["--seconds", "3", "--keys", "100", "--lease", "300ms"];
        is_caught(&[&short[..], &["--bug", bug]].concat(), by);
    }
}

#[test]
fn what_does_not_apply_is_said() {
    let said = refusal(&["torture", "--store", "file", "--faults", "cut"]);
    assert!(said.contains("needs a server"), "{said}");
    let said = refusal(&["torture", "--store", "redis-cluster", "--faults", "cut"]);
    assert!(said.contains("needs one address"), "{said}");
    let said = refusal(&["torture", "--store", "file", "--faults", "floods"]);
    assert!(said.contains("there is no fault"), "{said}");
    let said = refusal(&["torture", "--store", "memory:"]);
    assert!(said.contains("one process"), "{said}");
}

#[test]
fn too_little_success_and_faults_that_never_fired_fail_a_run() {
    let too_little = |arguments: &[&str]| {
        let run = failing(arguments);
        assert!(!run.passed);
        run.nothing_is_wrong();
        run.report["too_little"].to_string()
    };
    let why = too_little(&["--seconds", "2", "--keys", "50", "--floor", "1000000"]);
    assert!(why.contains("floor"), "{why}");

    let short = ["--seconds", "1", "--floor", "0"];
    let why = too_little(&[&short[..], &["--faults", "pause-worker"]].concat());
    assert!(why.contains("never fired"), "{why}");
}
