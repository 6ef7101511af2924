//! Attempts that are lost without a transaction: under every policy, on a store of each kind.

use std::process::Command;

use serde_json::Value;

fn lost(arguments: &[&str]) -> (bool, Value, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_semel-lab"))
        .arg("lost")
        .args(arguments)
        .output()
        .expect("the lab runs");
    let out = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{out}\n{errors}");
    let last = out.lines().last().expect("the report is the last line");
    let report = serde_json::from_str(last).expect("the report is JSON");
    (output.status.success(), report, errors)
}

const KEYS: u64 = 6;

fn number(report: &Value, path: &str) -> u64 {
    report
        .pointer(path)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("{path} of {report}"))
}

/// Two rounds: all of it happens, and nothing twice.
fn holds(store: &str, stopped: u64) {
    let keys = KEYS.to_string();
    let run = ["--store", store, "--seed", "7", "--rounds", "2"];
    let (passed, report, _) = lost(&[&run[..], &["--keys", &keys]].concat());
    assert!(passed, "{report}");
    for none in ["/violations", "/double_effects", "/lost_effects"] {
        assert_eq!(number(&report, none), 0, "{report}");
    }
    assert_eq!(number(&report, "/kills"), 4);
    let all = 2 * KEYS;
    for policy in ["hold", "reconcile"] {
        let killed = |when| number(&report, &format!("/{policy}/killed_{when}_effect"));
        assert!(killed("before") > 0 && killed("after") > 0, "{report}");
        assert_eq!(killed("before") + killed("after"), all);
    }
    assert_eq!(number(&report, "/hold/unknown"), 2 * all);
    assert_eq!(number(&report, "/reconcile/resolved_by_themselves"), all);
    let answered = number(&report, "/reconcile/replayed") + number(&report, "/reconcile/ran");
    assert_eq!(answered, all);
    if stopped == 0 {
        assert!(report["retry"].is_null(), "{report}");
        return;
    }
    for what in [
        "stopped",
        "taken_over",
        "stale_effects_refused",
        "superseded",
        "replayed",
    ] {
        assert_eq!(number(&report, &format!("/retry/{what}")), stopped);
    }
}

#[test]
fn file() {
    // One process has it open at a time: none can take over while another stands still.
    holds("file", 0);
}

#[test]
fn sqlite() {
    holds("sqlite", 2 * KEYS);
}

#[test]
fn postgres() {
    holds("postgres", 2 * KEYS);
}

/// A store without a clock of its own.
#[cfg(feature = "nats")]
#[test]
fn nats() {
    holds("nats", 2 * KEYS);
}

/// What the run would miss if it looked at nothing.
#[test]
fn planted_bugs_are_caught() {
    for (bug, violation) in [
        ("no-fence", "retry: the effects on"),
        ("hold-reruns", "hold: a retry of"),
    ] {
        let run = ["--store", "sqlite", "--rounds", "1", "--keys", "3"];
        let (passed, report, errors) = lost(&[&run[..], &["--bug", bug]].concat());
        assert!(!passed, "{bug}: {report}");
        assert!(number(&report, "/violations") > 0, "{bug}: {report}");
        assert!(errors.contains(violation), "{bug}: {errors}");
    }
}

#[test]
fn what_does_not_apply_is_said() {
    for (arguments, message) in [
        (&["--store", "memory:"][..], "dies with its process"),
        (&["--store", "file", "--bug", "none"], "is not an option"),
        (&["--seed", "1"], "are needed"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_semel-lab"))
            .arg("lost")
            .args(arguments)
            .output()
            .expect("the lab runs");
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(message), "{said}");
    }
}
