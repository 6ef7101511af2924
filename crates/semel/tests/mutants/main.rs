//! Is the suite worth anything? A small store is right in every case, and then wrong in one way at
//! a time; the suite must notice each.

mod bug;
mod store;

use std::sync::Arc;
use std::time::Duration;

use semel::conformance::model::{Step, agree};
use semel::conformance::{Bench, CASES, Factory, Failure, run};
use semel::{ManualClock, Timestamp};

use bug::Bug;
use store::SmallStore;

struct Small(Option<Bug>);

impl Factory for Small {
    async fn open(&self) -> Result<Bench, Failure> {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
        let store = Arc::new(SmallStore::new(self.0, clock.clone()));
        Ok(Bench::new(store.clone())
            .with_other(store)
            .with_clock(clock)
            .with_patience(Duration::from_millis(500))
            .exclusive())
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_bug_every_case_passes() {
    for case in CASES {
        if let Err(failure) = run(case, &Small(None)).await {
            panic!("{}: {failure}", case.name);
        }
    }
}

/// The bug and the cases that must notice it. Others may too.
const CAUGHT: &[(Bug, &[&str])] = &[
    (Bug::CheckThenAct, &["races::one_winner_of_64"]),
    (
        Bug::UnfencedSteps,
        &[
            "tokens::stale_after_takeover",
            "tokens::stale_after_release",
        ],
    ),
    (Bug::NonceIgnored, &["tokens::forged_nonce"]),
    (Bug::FenceIgnored, &["tokens::forged_fence"]),
    (
        Bug::FenceResetOnPurge,
        &["tokens::fences_grow", "expiry::swept_or_not"],
    ),
    (Bug::FencesByClock, &["tokens::fences_are_distinct"]),
    (Bug::FenceKeptOnResolve, &["resolve::happened"]),
    (
        Bug::HoldRetries,
        &[
            "lease::lapsed_under_hold_is_unknown",
            "races::nobody_wins_under_hold",
        ],
    ),
    (Bug::WakeLost, &["waiting::no_wake_is_lost"]),
    (Bug::ReleaseWakesNobody, &["waiting::wakes_on_release"]),
    (Bug::UnknownPurged, &["expiry::unknown_is_never_purged"]),
    (Bug::LapsedPurged, &["expiry::running_is_never_purged"]),
    (Bug::TombstonePurged, &["expiry::replayed_is_never_purged"]),
    (
        Bug::RetentionFromClaim,
        &["expiry::counted_from_completion"],
    ),
    (Bug::RetentionClosed, &["expiry::retention_is_half_open"]),
    (Bug::ReplayProlongs, &["expiry::replays_do_not_prolong"]),
    (
        Bug::MismatchWhenCompletedOnly,
        &["claim::other_fingerprint_in_flight"],
    ),
    (Bug::OwnNonceLoses, &["claim::own_nonce_is_acquired_again"]),
    (
        Bug::CopyRuns,
        &["release::a_copy_of_its_claim_does_not_run"],
    ),
    (
        Bug::SecondCompletionRefused,
        &["complete::again_with_the_same_outcome"],
    ),
    (
        Bug::SecondCompletionWins,
        &["complete::again_with_another_outcome"],
    ),
    (Bug::VoidIsEmpty, &["complete::replay_is_byte_identical"]),
    (Bug::RenewalShortens, &["lease::renewal_never_shortens"]),
    (Bug::RunningResolved, &["resolve::running_is_refused"]),
    (Bug::PurgeUnbounded, &["expiry::purge_is_bounded"]),
    (Bug::PageEdgeTwice, &["listing::every_standing_record_once"]),
    (Bug::ClosedWorks, &["close::closed_store_says_so"]),
    (
        Bug::StepsUnordered,
        &[
            "steps::other_steps_are_refused",
            "steps::kept_once_in_a_race",
        ],
    ),
    (
        Bug::SinceIsTheClaims,
        &["claim::since_is_the_records_beginning"],
    ),
    (Bug::MarkIsAStep, &["steps::mark_is_no_finished_step"]),
    (
        Bug::StepsForgotten,
        &[
            "steps::stay_through_takeover",
            "steps::stay_through_release",
        ],
    ),
    (Bug::NoteStays, &["note::is_the_latest_attempts"]),
    (Bug::NoteOfADuplicate, &["note::nothing_else_changes_it"]),
    (
        Bug::NoteForgotten,
        &[
            "note::is_kept_through_completion",
            "note::is_kept_through_resolution",
        ],
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bug_is_caught() {
    let mut missed = Vec::new();
    for (bug, names) in CAUGHT {
        for name in *names {
            let case = CASES.iter().find(|case| case.name == *name);
            let case = case.unwrap_or_else(|| panic!("there is no case {name}"));
            if run(case, &Small(Some(*bug))).await.is_ok() {
                missed.push(format!("{bug:?} by {name}"));
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}

/// Whether the model disagrees with the store in one of many random runs.
async fn model_notices(bug: Option<Bug>) -> Option<Failure> {
    // Fixed, so that the test is the same every time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let [_, a, b, c, d, e, f, _] = state.to_be_bytes();
        [a, b, c, d, e, f]
    };
    for _ in 0..200 {
        let steps: Vec<Step> = (0..100).map(|_| Step::of(bytes())).collect();
        let agreed = async { agree(&Small(bug).open().await?, &steps).await };
        if let Err(failure) = agreed.await {
            return Some(failure);
        }
    }
    None
}

#[tokio::test]
async fn the_model_agrees_where_there_is_no_bug() {
    assert_eq!(model_notices(None).await, None);
}

#[tokio::test]
async fn the_model_notices_what_one_caller_can() {
    let unseen = [
        // These need several callers at a time, or a closed store.
        Bug::CheckThenAct,
        Bug::WakeLost,
        Bug::ReleaseWakesNobody,
        Bug::ClosedWorks,
    ];
    let mut missed = Vec::new();
    for (bug, _) in CAUGHT {
        if !unseen.contains(bug) && model_notices(Some(*bug)).await.is_none() {
            missed.push(bug);
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}
