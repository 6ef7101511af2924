//! Attempts that are lost without a transaction: under every policy, on a store of each kind.

use serde_json::Value;

use crate::{lab, refusal, some_seed};

const KEYS: u64 = 6;

fn number(report: &Value, path: &str) -> u64 {
    report
        .pointer(path)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("{path} of {report}"))
}

fn holds(store: &str, stopped: u64) {
    let both = |seed| all_happens_once(store, stopped, seed);
    assert!(some_seed(both), "never killed before and after an effect");
}

/// Two rounds: all of it happens, and nothing twice. Whether attempts were killed both before and after
/// their effects.
fn all_happens_once(store: &str, stopped: u64, seed: &str) -> bool {
    let keys = KEYS.to_string();
    let run = ["lost", "--store", store, "--seed", seed, "--rounds", "2"];
    let run = lab(&[&run[..], &["--keys", &keys]].concat());
    let report = &run.report;
    assert!(run.passed, "{report}");
    for none in ["/violations", "/double_effects", "/lost_effects"] {
        assert_eq!(number(report, none), 0, "{report}");
    }
    assert_eq!(number(report, "/kills"), 4);
    let all = 2 * KEYS;
    let both = ["hold", "reconcile"].into_iter().all(|policy| {
        let killed = |when| number(report, &format!("/{policy}/killed_{when}_effect"));
        assert_eq!(killed("before") + killed("after"), all);
        killed("before") > 0 && killed("after") > 0
    });
    assert_eq!(number(report, "/hold/unknown"), 2 * all);
    assert_eq!(number(report, "/reconcile/resolved_by_themselves"), all);
    let answered = number(report, "/reconcile/replayed") + number(report, "/reconcile/ran");
    assert_eq!(answered, all);
    if stopped == 0 {
        assert!(report["retry"].is_null(), "{report}");
        return both;
    }
    for what in [
        "stopped",
        "taken_over",
        "stale_effects_refused",
        "superseded",
        "replayed",
    ] {
        assert_eq!(number(report, &format!("/retry/{what}")), stopped);
    }
    both
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
        let run = ["lost", "--store", "sqlite", "--rounds", "1", "--keys", "3"];
        let run = lab(&[&run[..], &["--bug", bug]].concat());
        assert!(!run.passed, "{bug}: {}", run.report);
        assert!(number(&run.report, "/violations") > 0, "{bug}");
        assert!(run.errors.contains(violation), "{bug}: {}", run.errors);
    }
}

#[test]
fn what_does_not_apply_is_said() {
    for (arguments, message) in [
        (&["--store", "memory:"][..], "one process"),
        (
            &["--store", "file", "--bug", "none"],
            "no-fence, hold-reruns",
        ),
        (&["--seed", "1"], "--store <STORE>"),
    ] {
        let said = refusal(&[&["lost"], arguments].concat());
        assert!(said.contains(message), "{said}");
    }
}
