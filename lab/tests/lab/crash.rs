//! Short crash matrices on every database, and the planted bugs that they must catch.

use crate::{Run, lab, on, some_seed};

/// A server of its own: it is killed.
#[test]
fn a_server_that_restarts_at_the_commit_is_survived() {
    for (database, restarts) in [("postgres", 3), ("mysql", 6)] {
        let survives = |seed| {
            let run = restarting(database, seed, &["--kills", &restarts.to_string()]);
            run.nothing_is_wrong();
            run.passed && run.report["cuts"] == restarts
        };
        assert!(some_seed(survives), "no run comes to enough");
    }
    let caught = some_seed(|seed| {
        let run = restarting("mysql", seed, &["--kills", "6", "--bug", "new-key"]);
        !run.passed && run.report["double_effects"].as_u64() > Some(0)
    });
    assert!(caught);
}

fn restarting(database: &str, seed: &str, arguments: &[&str]) -> Run {
    let run = ["crash-matrix", "--db", database, "--seed", seed];
    let points = ["--points", "server-restarts-at-commit"];
    lab(&[&run[..], &points, arguments].concat())
}

fn survives(database: &str, work: &str) {
    let proves = |seed| {
        let run = ["--work", work, "--kills", "60", "--seed", seed];
        let run = on(database, "crash-matrix", &run);
        run.nothing_is_wrong();
        let report = &run.report;
        let points = report["by_point"].as_object().expect("counts by point");
        assert!(points.len() >= 10, "{report}");
        // Without them the keys of the steps would not have been needed.
        let repeats = report["steps"]["repeats_honoured"].as_u64() > Some(0);
        run.passed && (work == "transaction" || repeats)
    };
    assert!(some_seed(proves), "no run comes to enough");
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
fn is_caught(database: &str, bug: &str, by: &str) {
    let finds = |seed| {
        let run = ["--kills", "40", "--seed", seed, "--bug", bug];
        let run = on(database, "crash-matrix", &run);
        let found = match by {
            "reruns" => &run.report["steps"][by],
            _ => &run.report[by],
        };
        !run.passed && found.as_u64() > Some(0)
    };
    assert!(some_seed(finds), "{bug} has no {by}");
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
