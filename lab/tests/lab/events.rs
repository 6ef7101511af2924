//! Short storms of events on every database, and the planted bugs that they must catch.

use serde_json::Value;

use crate::{on, some_seed};

fn survives(command: &str, database: &str) {
    let proves = |seed| {
        let run = ["--events", "500", "--kills", "20", "--seed", seed];
        let run = on(database, command, &run);
        run.nothing_is_wrong();
        let report = &run.report;
        let count = |value: &Value| value.as_u64().expect("a count");
        let aside = count(&report["letters"]["set_aside"]);
        assert_eq!(count(&report["applied"]) + aside, 500);
        // What the killed had in hand came again.
        let again = count(&report["redelivered"]) > 0;
        let come_to = |points: &[&str]| {
            let hits = points.iter().map(|point| &report["by_point"][point]);
            hits.map(count).sum::<u64>()
        };
        let wire = ["commit-lost", "commit-late", "commit-cut", "reading-back"];
        let callback = ["handing-over", "handed-over", "before-completion"];
        run.passed
            && again
            && (database == "sqlite" || come_to(&wire) >= 3)
            && (command != "events"
                || come_to(&callback) >= 2
                    && count(&report["letters"]["asked_again"]) > 0
                    && come_to(&["poisonous"]) > 0)
    };
    assert!(some_seed(proves), "no run comes to enough");
}

#[test]
fn events_on_postgres() {
    survives("events", "postgres");
}

#[test]
fn events_on_sqlite() {
    survives("events", "sqlite");
}

#[test]
fn events_on_mysql() {
    survives("events", "mysql");
}

#[test]
fn versioned_on_postgres() {
    survives("versioned", "postgres");
}

#[test]
fn versioned_on_sqlite() {
    survives("versioned", "sqlite");
}

#[test]
fn versioned_on_mysql() {
    survives("versioned", "mysql");
}

/// The bug is found, by what it does wrong.
fn is_caught(command: &str, database: &str, bug: &str, events: &str, kills: &str, by: &[&str]) {
    let finds = |seed| {
        let run = [
            "--events", events, "--kills", kills, "--seed", seed, "--bug", bug,
        ];
        let run = on(database, command, &run);
        !run.passed && by.iter().all(|by| run.report[by].as_u64() > Some(0))
    };
    assert!(some_seed(finds), "{bug} has no {by:?}");
}

#[test]
fn planted_bugs_are_caught() {
    let doubled = ["double_effects", "violations"];
    is_caught("events", "sqlite", "no-inbox", "50", "0", &doubled);
    is_caught("events", "sqlite", "commits-apart", "300", "20", &doubled);
    let lost = ["lost_effects", "violations"];
    is_caught("versioned", "sqlite", "overwrites", "300", "20", &lost);
}

#[test]
fn a_lost_commit_of_a_batch_taken_for_a_failure_is_caught() {
    let doubled = ["double_effects", "violations"];
    is_caught("events", "mysql", "runs-again", "300", "20", &doubled);
}

#[test]
fn wrong_dead_letters_are_caught() {
    is_caught(
        "events",
        "sqlite",
        "keeps-later",
        "200",
        "16",
        &["lost_letters"],
    );
    let twice = ["applied_and_set_aside"];
    is_caught("events", "sqlite", "shelves-refused", "100", "0", &twice);
}
