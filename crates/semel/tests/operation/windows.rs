//! Time windows, and what happens at their edges.

use std::time::Duration;

use proptest::prelude::*;
use semel::guard::{Policy, RunError};
use semel::operation::{Aligned, CallError, KeyFrom, Operation, Part};
use semel::store::Retention;

use super::{Bench, Count, START, call, first, replayed};

const MICRO: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const DAY: Duration = Duration::from_hours(24);

#[tokio::test(start_paused = true)]
async fn a_rolling_window_ends_when_it_is_over_and_at_no_boundary() {
    let bench = Bench::new();
    let op = Operation::new("op", [Part::USER], KeyFrom::Content)
        // The window is the retention, whichever was set last.
        .rolling(MINUTE)
        .with_retention(Retention::PAYMENT.with_tombstone(DAY));
    let count = Count::on(&bench);
    let call = call().field("what", "receipt");
    // Just before a minute's, an hour's and a day's boundary, and after it.
    bench.clock.advance(DAY - MICRO);
    assert_eq!(count.run(&op, &call).await.unwrap(), first(1));
    bench.clock.advance(MICRO);
    assert_eq!(count.run(&op, &call).await.unwrap(), replayed(1));
    bench.clock.advance(MINUTE - 2 * MICRO);
    assert_eq!(count.run(&op, &call).await.unwrap(), replayed(1));
    // Replays did not prolong it.
    bench.clock.advance(MICRO);
    assert_eq!(count.run(&op, &call).await.unwrap(), first(2));
}

#[tokio::test(start_paused = true)]
async fn a_rolling_window_counts_from_the_completion() {
    let bench = Bench::new();
    let op = Operation::new("op", [Part::USER], KeyFrom::Content).rolling(MINUTE);
    let clock = bench.clock.clone();
    let work = move |_| async move {
        clock.advance(10 * MINUTE);
        Ok::<_, std::convert::Infallible>("1".to_owned())
    };
    let asked = op.asked(&call()).unwrap();
    assert_eq!(bench.guard.run(asked, work).await.unwrap(), first(1));
    bench.clock.advance(MINUTE - MICRO);
    let count = Count::on(&bench);
    assert_eq!(count.run(&op, &call()).await.unwrap(), replayed(1));
}

fn daily() -> Operation {
    Operation::new("bonus", [Part::USER], KeyFrom::Scope).aligned(Aligned::DAYS)
}

#[tokio::test(start_paused = true)]
async fn a_retry_across_the_boundary_is_in_its_intents_window() {
    let bench = Bench::new();
    let bonus = daily();
    let count = Count::on(&bench);
    let evening = call().made_at(START.after(DAY - SECOND));
    let morning = call().made_at(START.after(DAY + SECOND));
    bench.clock.advance(DAY - SECOND);
    assert_eq!(count.run(&bonus, &evening).await.unwrap(), first(1));
    bench.clock.advance(2 * SECOND);
    assert_eq!(count.run(&bonus, &evening).await.unwrap(), replayed(1));
    // The next day's own is another, and neither takes the other's place.
    assert_eq!(count.run(&bonus, &morning).await.unwrap(), first(2));
    assert_eq!(count.run(&bonus, &evening).await.unwrap(), replayed(1));
    assert_eq!(count.run(&bonus, &morning).await.unwrap(), replayed(2));
    let timeless = bonus.asked(&call());
    assert_eq!(timeless.unwrap_err(), CallError::MissingTime);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_runs_across_the_boundary_keeps_its_retry_off() {
    let bench = Bench::new();
    let bonus = daily();
    let evening = call().made_at(START.after(DAY - SECOND));
    bench.clock.advance(DAY - SECOND);
    let running = {
        let (guard, asked) = (bench.guard.clone(), bonus.asked(&evening).unwrap());
        tokio::spawn(async move {
            let work = |_| async {
                tokio::time::sleep(Duration::from_secs(5)).await;
                Ok::<_, std::convert::Infallible>("1".to_owned())
            };
            guard.run(asked, work).await.unwrap()
        })
    };
    tokio::time::sleep(SECOND).await;
    bench.clock.advance(2 * SECOND);
    let count = Count::on(&bench);
    let retry = count.run(&bonus, &evening).await;
    assert!(matches!(retry, Err(RunError::InFlight { .. })));
    assert_eq!(running.await.unwrap(), first(1));
    assert_eq!(count.run(&bonus, &evening).await.unwrap(), replayed(1));
}

#[tokio::test(start_paused = true)]
async fn an_aligned_answer_is_kept_for_two_windows_at_least() {
    let policy = |retention| {
        let op = Operation::new("bonus", [], KeyFrom::Scope).with_retention(retention);
        let op = op.aligned(Aligned::DAYS);
        let asked = op.asked(&call().made_at(START)).unwrap();
        let policy = op.policy(&Policy::default());
        assert_eq!(asked.policy(&Policy::default()), policy);
        policy.retention()
    };
    assert_eq!(policy(Retention::API).replay, 2 * DAY);
    let longer = Retention::PAYMENT.with_tombstone(DAY);
    assert_eq!(policy(longer), longer);
}

/// The length of a window, in seconds.
const LENGTH: u64 = 1_000;

/// An intent: which of few it is, when it is made, and when its deliveries come: from then until one
/// window after its own, in thousandths of that time.
type Intent = (u8, u64, Vec<u64>);

fn intents() -> impl Strategy<Value = Vec<Intent>> {
    let deliveries = prop::collection::vec(prop_oneof![0..1_000_u64, Just(0), Just(999)], 1..5);
    prop::collection::vec((0..2_u8, 0..4 * LENGTH, deliveries), 1..12)
}

fn deliveries((what, made, when): &Intent) -> impl Iterator<Item = (u64, u64, u8)> {
    let end = (made / LENGTH + 2) * LENGTH;
    when.iter()
        .map(move |when| (made + (end - made) * when / 1_000, *made, *what))
}

proptest! {
    /// Each content runs exactly once in each window that has an intent of it, however late and in
    /// whichever order the deliveries come.
    #[test]
    fn once_in_each_window_however_late_retries_are(intents in intents()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new();
            let at = |seconds| START.after(Duration::from_secs(seconds));
            let op = Operation::new("op", [Part::USER], KeyFrom::Content)
                .with_retention(Retention::new(SECOND))
                .aligned(Aligned::every(Duration::from_secs(LENGTH)));
            let mut deliveries: Vec<_> = intents.iter().flat_map(deliveries).collect();
            deliveries.sort_unstable();
            let (count, mut now) = (Count::on(&bench), 0);
            for (due, made, what) in deliveries {
                bench.clock.advance(Duration::from_secs(due - now));
                now = due;
                count.run(&op, &call().field("what", what).made_at(at(made))).await.unwrap();
            }
            // One begins at the start.
            let windows: std::collections::HashSet<_> =
                intents.iter().map(|(what, made, _)| (*what, made / LENGTH)).collect();
            assert_eq!(count.runs() as usize, windows.len());
        });
    }

    /// Rolling: runs of one content are a window apart, and no request within it runs.
    #[test]
    fn rolling_runs_are_a_window_apart(gaps in prop::collection::vec(0..1_500_u64, 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new();
            let op = Operation::new("op", [Part::USER], KeyFrom::Content)
                .rolling(Duration::from_secs(1_000));
            let (count, mut now, mut last) = (Count::on(&bench), 0_u64, None::<u64>);
            for gap in gaps {
                bench.clock.advance(Duration::from_secs(gap));
                now += gap;
                let due = last.is_none_or(|last| now >= last + 1_000);
                let before = count.runs();
                count.run(&op, &call()).await.unwrap();
                assert_eq!(count.runs() > before, due);
                last = if due { Some(now) } else { last };
            }
        });
    }
}
