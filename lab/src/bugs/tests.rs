//! Each planted bug is caught within seconds, and a store without one is not accused.

use clap::ValueEnum as _;
use tokio::task::JoinSet;

use super::Bug;
use crate::check::{Findings, check, excerpt};
use crate::history::read_all;
use crate::ledger;
use crate::lines;
use crate::torture::local::Local;

/// How a run's network is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// All the time, and callers are told: nothing is excused.
    Strict,
    /// In spells, in which the store sends steps again by itself, as the stores on servers do behind
    /// the faults of a run: refusals are excused where a spell was under way.
    Faults,
}

async fn run(seed: u64, bug: Option<Bug>, mode: Mode) -> Findings {
    let directory = tempfile::tempdir().unwrap();
    let local = Local {
        in_spells: mode == Mode::Faults,
        ..Local::quick(directory.path(), seed, bug)
    };
    let ran = local.on_memory().await.unwrap();
    let ops = read_all(directory.path()).unwrap();
    let effects = lines::read(&local.settings.ledger()).unwrap();
    let (accepted, _) = ledger::accepted(&effects);
    let findings = check(&ops, &accepted, &local.options(&ran));
    println!(
        "{bug:?}, {mode:?}: {} calls, {} effects, {:?}, searched: {:?}, given up: {:?}",
        ops.len(),
        effects.len(),
        findings.by_property(),
        findings.searched,
        findings.undecided,
    );
    let origin = ops.first().map_or(0, |op| op.invoked);
    for violation in findings.violations.iter().take(2) {
        println!(
            "  {} of key {}: {}",
            violation.property, violation.key, violation.what
        );
        if bug.is_none() {
            for line in excerpt(&ops, violation.key, violation.at, origin, 24) {
                println!("    {line}");
            }
        }
    }
    findings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_bug_is_not_accused() {
    for mode in [Mode::Strict, Mode::Faults] {
        for seed in 0..3 {
            let findings = run(seed, None, mode).await;
            assert_eq!(findings.violations, [], "{mode:?}, seed {seed}");
            assert_eq!((findings.lost, findings.double_effects), (0, 0));
            let (searched, given_up) = (findings.searched.calls, findings.undecided.calls);
            assert!(searched > 9 * given_up, "{findings:?}");
        }
    }
}

/// By which of these properties a bug is caught: for its own fault, not for some odd consequence.
fn properties(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::CheckThenAct | Bug::HoldReruns | Bug::CallersClock | Bug::PurgesRunning => &["P1"],
        Bug::EpochReset => &["P1"],
        Bug::UnfencedComplete | Bug::NonceIgnored | Bug::FenceIgnored => &["P3"],
        Bug::StaleRead | Bug::EarlyAck | Bug::ShortRetention | Bug::AbandonForgotten => &["P2"],
        Bug::NeverExpires => &["P2"],
        Bug::DroppedField | Bug::OtherKeysReplay | Bug::VoidIsEmpty => &["P4"],
        Bug::MismatchReplays => &["P9"],
        Bug::DeafWait => &["P8"],
        Bug::ZeroRowsLost | Bug::NewNonceRetry | Bug::OwnNonceLoses => &["P11"],
        Bug::FailsOpen => &["P1", "P10"],
        Bug::DoneCalledNotDone => &["P1", "P4", "P11"],
    }
}

async fn is_caught(bug: Bug, mode: Mode) -> bool {
    // A busy machine may miss a race more than once.
    for seed in 0..6 {
        let found = run(seed, Some(bug), mode).await.by_property();
        if properties(bug).iter().any(|p| found.contains_key(p)) {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bug_is_caught() {
    let mut missed = Vec::new();
    for mode in [Mode::Strict, Mode::Faults] {
        for some in Bug::value_variants().chunks(8) {
            let mut running = JoinSet::new();
            for bug in some.iter().copied() {
                running.spawn(async move { (bug, is_caught(bug, mode).await) });
            }
            for (bug, caught) in running.join_all().await {
                if !caught {
                    missed.push((bug, mode));
                }
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
