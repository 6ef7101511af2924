//! Short crash matrices on every database, and the planted bugs that they must catch. They share
//! a server of each kind; one that is not installed is a failure.

use std::process::Command;

use semel_testkit::servers::{Kind, shared};
use serde_json::Value;

fn matrix(database: &'static str, arguments: &[&str]) -> (bool, Value) {
    let arguments = arguments.iter().copied().map(String::from);
    run_matrix(on(database).into_iter().chain(arguments))
}

fn run_matrix(arguments: impl Iterator<Item = String>) -> (bool, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_semel-lab"))
        .arg("crash-matrix")
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

/// A server of its own: it is killed.
#[test]
fn a_server_that_restarts_at_the_commit_is_survived() {
    for (database, restarts) in [("postgres", "3"), ("mysql", "6")] {
        let (passed, report) = restarting(database, &["--kills", restarts]);
        assert!(passed, "{report}");
        assert_eq!(report["cuts"].to_string(), restarts, "{report}");
    }
    let (passed, report) = restarting("mysql", &["--kills", "6", "--bug", "new-key"]);
    assert!(!passed, "{report}");
    assert!(report["double_effects"].as_u64() > Some(0), "{report}");
}

fn restarting(database: &str, arguments: &[&str]) -> (bool, Value) {
    let points = ["--points", "server-restarts-at-commit", "--seed", "7"];
    let run = ["--db", database].into_iter().chain(points);
    run_matrix(run.chain(arguments.iter().copied()).map(String::from))
}

/// On a server that these tests share, where there is one.
fn on(database: &'static str) -> Vec<String> {
    let url = match database {
        "postgres" => Some(shared(Kind::Postgres).expect("PostgreSQL starts")),
        "mysql" => Some(shared(Kind::MariaDb).expect("MariaDB starts")),
        _ => None,
    };
    let store = url.map(|url| ["--store".to_owned(), url]);
    let database = ["--db", database].map(String::from);
    database
        .into_iter()
        .chain(store.into_iter().flatten())
        .collect()
}

fn survives(database: &'static str, work: &str) {
    let run = ["--work", work, "--kills", "60", "--seed", "7"];
    let (passed, report) = matrix(database, &run);
    assert!(passed, "{report}");
    assert_eq!(report["kills"], 60);
    for none in [
        "double_effects",
        "lost_effects",
        "missing_answers",
        "wrong_answers",
        "wrong_balances",
        "left_in_flight",
        "wrong_leftovers",
    ] {
        assert_eq!(report[none], 0, "{none}: {report}");
    }
    let points = report["by_point"].as_object().expect("counts by point");
    assert!(points.len() >= 10, "{report}");
    assert!(
        points.values().all(|hits| hits.as_u64() > Some(0)),
        "{report}"
    );
    if work != "transaction" {
        assert_eq!(report["steps"]["reruns"], 0);
        // Without them the keys of the steps would not have been needed.
        assert!(
            report["steps"]["repeats_honoured"].as_u64() > Some(0),
            "{report}"
        );
    }
}

#[test]
fn transactions_on_postgres() {
    survives("postgres", "transaction");
}

#[test]
fn transactions_on_sqlite() {
    survives("sqlite", "transaction");
}

#[test]
fn transactions_on_mysql() {
    survives("mysql", "transaction");
}

#[test]
fn steps_on_postgres() {
    survives("postgres", "steps");
}

#[test]
fn steps_on_sqlite() {
    survives("sqlite", "steps");
}

#[test]
fn steps_on_mysql() {
    survives("mysql", "steps");
}

#[test]
fn mixed_steps_on_postgres() {
    survives("postgres", "mixed");
}

#[test]
fn mixed_steps_on_sqlite() {
    survives("sqlite", "mixed");
}

#[test]
fn mixed_steps_on_mysql() {
    survives("mysql", "mixed");
}

/// The bug is found, by what it does wrong.
fn is_caught(database: &'static str, bug: &str, by: &str) {
    let run = ["--kills", "40", "--seed", "7", "--bug", bug];
    let (passed, report) = matrix(database, &run);
    assert!(!passed, "{report}");
    let found = match by {
        "reruns" => &report["steps"][by],
        _ => &report[by],
    };
    assert!(found.as_u64() > Some(0), "{bug} is not found: {report}");
}

#[test]
fn completing_apart_from_the_effect_is_caught() {
    is_caught("sqlite", "completes-after", "double_effects");
    is_caught("sqlite", "commits-first", "double_effects");
}

#[test]
fn a_lost_commit_taken_for_a_failure_is_caught() {
    is_caught("postgres", "new-key", "double_effects");
    is_caught("mysql", "runs-again", "double_effects");
}

#[test]
fn answering_before_the_commit_is_caught() {
    is_caught("sqlite", "answers-first", "lost_effects");
}

#[test]
fn a_step_without_its_key_is_caught() {
    is_caught("sqlite", "random-step-key", "double_effects");
}

#[test]
fn a_step_that_is_not_kept_is_caught() {
    is_caught("sqlite", "forgets-steps", "reruns");
}

#[test]
fn a_step_kept_before_its_call_is_caught() {
    is_caught("sqlite", "keeps-first", "lost_effects");
}
