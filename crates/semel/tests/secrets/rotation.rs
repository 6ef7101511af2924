//! One secret replaced by another, in thousands of simulated deployments; and that what is wrong with a
//! program, or with the order of the steps, is found by the same checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::store::{OnLost, Retention};

use super::world::{Counts, Fault, Work, World};
use super::{A, B, PLAIN};

type Lists = &'static [&'static [&'static str]];

/// Two programs with the list before, and one with that after.
const BEFORE: Lists = &[&[A], &[A, B], &[A, B]];
const BOTH: Lists = &[&[A, B], &[B, A], &[B, A]];
const AFTER: Lists = &[&[B, A], &[B], &[B]];

const SHORT: Retention = Retention::new(Duration::from_secs(2));
const HELD: Work = Work {
    on_lost: OnLost::Hold,
    in_steps: false,
    retention: SHORT.with_tombstone(Duration::from_secs(1)),
};
const RETRIED: Work = Work {
    on_lost: OnLost::Retry,
    in_steps: false,
    retention: SHORT,
};
const IN_STEPS: Work = Work {
    on_lost: OnLost::Retry,
    in_steps: true,
    retention: Retention::ORDER,
};

/// What is wrong in one simulation, and what there was to see.
type Told = (Vec<String>, Arc<Counts>);

fn simulate<F: Future<Output = ()>>(
    seed: u64,
    work: Work,
    fault: Fault,
    course: impl Fn(Arc<World>) -> F,
) -> Told {
    #[cfg(feature = "simulation")]
    semel::simulation::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(seed, work, fault);
        course(world.clone()).await;
        (world.found_wrong(), Arc::clone(&world.counts))
    })
}

/// So many seeds, or as many as `SEMEL_ROTATION_SEEDS` says.
fn seeds(usual: u64) -> u64 {
    let more = std::env::var("SEMEL_ROTATION_SEEDS").ok();
    more.and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// All are right, and there was something to see.
fn holds<F: Future<Output = ()>>(work: Work, course: impl Fn(Arc<World>) -> F) {
    let seeds = seeds(100);
    let (mut often, mut seldom) = ([0; 2], [0; 4]);
    for seed in 0..seeds {
        let (wrong, counts) = simulate(seed, work, Fault::None, &course);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        let add = |all: &mut [usize], seen: &[&AtomicUsize]| {
            for (sum, seen) in all.iter_mut().zip(seen) {
                *sum += seen.load(Ordering::SeqCst);
            }
        };
        let Counts {
            runs,
            answers,
            given_back,
            waits,
            gone,
            repeated,
        } = &*counts;
        add(&mut often, &[runs, answers]);
        add(&mut seldom, &[given_back, waits, gone, repeated]);
    }
    let most = usize::try_from(seeds).unwrap();
    assert!(often.iter().all(|seen| *seen > most), "{often:?}");
    assert!(seldom.iter().all(|seen| *seen > most / 50), "{seldom:?}");
}

/// Some seed shows it, by what it makes wrong.
fn is_found<F: Future<Output = ()>>(
    work: Work,
    fault: Fault,
    wrong: &str,
    course: impl Fn(Arc<World>) -> F,
) {
    let mut told = (0..2_000).map(|seed| simulate(seed, work, fault, &course));
    let found = told.any(|(told, _)| told.iter().any(|line| line.contains(wrong)));
    assert!(found, "{fault:?} is not found");
}

async fn from_one_to_another(world: Arc<World>) {
    world.run(BEFORE).await;
    world.run(BOTH).await;
    world.until_nothing_is_left(&[&[B, A], &[B, A]]).await;
    world.run(AFTER).await;
    world.ends(&[B]).await;
}

async fn half_way(world: Arc<World>) {
    world.run(BEFORE).await;
    world.run(BOTH).await;
    // And back.
    world.run(BOTH).await;
    world.ends(&[B, A]).await;
}

#[test]
fn nothing_runs_twice_where_lost_attempts_are_held() {
    holds(HELD, from_one_to_another);
}

#[test]
fn nothing_runs_beside_another_where_lost_attempts_are_retried() {
    holds(RETRIED, from_one_to_another);
}

/// Whatever is lost in between, its service is asked under one key.
#[test]
fn steps_go_on_under_the_keys_that_were_given_out() {
    holds(IN_STEPS, half_way);
}

#[test]
fn a_first_secret_is_adopted() {
    holds(HELD, |world| async move {
        world.run(&[&[], &[PLAIN, A], &[PLAIN, A]]).await;
        world.run(&[&[PLAIN, A], &[A, PLAIN], &[A, PLAIN]]).await;
        world.until_nothing_is_left(&[&[A, PLAIN]]).await;
        world.run(&[&[A, PLAIN], &[A]]).await;
        world.ends(&[A]).await;
    });
}

#[test]
fn a_program_that_does_not_look_is_found() {
    is_found(
        HELD,
        Fault::NoLook,
        "beside a name that is InFlight",
        half_way,
    );
}

#[test]
fn a_program_that_looks_before_it_claims_is_found() {
    is_found(
        HELD,
        Fault::LooksBefore,
        "beside a name that is InFlight",
        half_way,
    );
}

#[test]
fn a_program_that_gives_back_what_it_took_over_is_found() {
    is_found(IN_STEPS, Fault::TakesOverAtOnce, "charges under", half_way);
}

#[test]
fn a_claim_given_back_that_counts_as_run_is_found() {
    is_found(
        RETRIED,
        Fault::CountsAsRun,
        "beside a name that is InFlight",
        half_way,
    );
}

#[test]
fn a_nonce_that_two_calls_share_is_found() {
    is_found(HELD, Fault::SharesNonces, "times at once", half_way);
}

#[test]
fn a_step_that_is_left_out_is_found() {
    let courses: [Lists; 3] = [&[&[A], &[B, A]], &[&[A, B], &[B]], &[&[A], &[B]]];
    for lists in courses {
        is_found(
            HELD,
            Fault::None,
            "beside a name that is",
            |world| async move {
                world.run(lists).await;
            },
        );
    }
}

/// A record that programs with *B A* may still find under *A* is one that those with *B* do not.
#[test]
fn a_secret_that_is_removed_too_early_is_found() {
    is_found(HELD, Fault::None, "after it was done", |world| async move {
        world.run(BOTH).await;
        world.run(AFTER).await;
    });
}
