//! Each model finds nothing, and each planted bug is found; a seed runs the same way every time.

use clap::ValueEnum as _;

use super::{Bug, Model, run_model, run_seed};

/// Nothing is wrong in 1,000 seeds, and what may go wrong did.
fn finds_nothing(model: Model, happened: &[&str]) {
    let report = run_model(model, 1, 1_000, None).expect("it runs").found;
    assert_eq!(report.failed, 0, "{:?}", report.failures);
    for what in happened {
        let count = report.counts.get(what).copied().unwrap_or(0);
        assert!(count >= 20, "{what}: {count} times; {:?}", report.counts);
    }
}

const NETWORK: [&str; 6] = [
    "refused",
    "lost",
    "answer lost",
    "late",
    "sent twice",
    "outage",
];
const PROCESSES: [&str; 3] = ["process died", "process drained", "process stood still"];

#[test]
fn guards() {
    let more = [
        "client went away",
        "dead letter",
        "reconciled",
        "stale effect refused",
    ];
    finds_nothing(Model::Guard, &[&NETWORK[..], &PROCESSES, &more].concat());
}

#[test]
fn layers() {
    let more = ["client went away", "first answer", "replay"];
    finds_nothing(Model::Layer, &[&NETWORK[..], &PROCESSES, &more].concat());
}

#[test]
fn brokers() {
    let more = [
        "acknowledgement lost",
        "commit",
        "delivered again",
        "rebalance",
        "recreated",
    ];
    finds_nothing(Model::Broker, &[&NETWORK[..], &PROCESSES, &more].concat());
}

#[test]
fn each_bug_is_found() {
    for bug in Bug::value_variants() {
        let is_found = |seed: &u64| {
            let seen = run_seed(bug.model(), *seed, Some(*bug), false).expect("it runs");
            !seen.wrong.is_empty()
        };
        let seed = (1..=3_000).find(is_found);
        println!("{bug:?}: seed {seed:?}");
        assert!(seed.is_some(), "{bug:?} is not found");
    }
}

/// In another thread, after other seeds, byte for byte.
#[test]
fn a_seed_runs_the_same_way_every_time() {
    for model in Model::value_variants() {
        let run = move |seed| run_seed(*model, seed, None, true).expect("it runs");
        let all = move || (1..=100).map(run).collect::<Vec<_>>();
        let other = std::thread::spawn(move || (1..=100).rev().map(run).collect::<Vec<_>>());
        let mut again = other.join().expect("no panic");
        again.reverse();
        for (one, other) in all().iter().zip(&again) {
            assert!(!one.trace.is_empty());
            assert_eq!(one, other);
        }
    }
}
