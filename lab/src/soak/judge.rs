//! What leaks, and what takes too long to come back.

use serde::Serialize;

use super::Strike;
use super::resources::{NAMES, Sample};
use super::rhythm::{BEAT, Beat, sum};
use crate::clock::Nanos;
use crate::named::Named as _;
use crate::nemesis::Fault;

/// How much more each may be in the last fifth of a run than in the second fifth: times this, and
/// this on top.
const BOUNDS: [(f64, f64); NAMES.len()] = [
    (1.1, 8.0),
    (1.0, 8.0),
    (1.0, 4.0),
    (1.25, 32.0),
    (1.25, 32.0),
    (1.25, 8.0),
    (1.25, 250.0),
    (1.25, 32.0),
];

/// By then the rate is to be half of what it was before the fault again, and a call to take twice
/// as long at most.
const SOON: usize = 4;
/// Of so many half seconds the rate before a fault is taken.
const BEFORE: usize = 10;
/// Where it takes longer than this it is said to take as long.
const LOOKED_FOR: usize = 120;

/// A moment so long after a fault, in half seconds, says nothing of it.
const AWAY: usize = 20;

/// How much one thing grew: medians.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Growth {
    pub(super) what: &'static str,
    pub(super) warm: f64,
    pub(super) end: f64,
    pub(super) bound: f64,
}

/// How one fault was recovered from.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Recovery {
    pub(super) fault: Fault,
    /// From the start of the run.
    pub(super) at: f64,
    pub(super) lasted: f64,
    /// Calls a second, and what the middle one took, before it or usually: the worse of the two.
    rate: f64,
    p50_ms: f64,
    /// How long after its end both were within twice of that again.
    pub(super) recovered_after: f64,
}

/// What each of the columns grew by. What was not seen in either fifth is left out.
pub(super) fn growth(samples: &[Sample]) -> Vec<Growth> {
    let fifth = samples.len() / 5;
    let (warm, end) = (
        &samples[fifth..2 * fifth],
        &samples[samples.len() - fifth..],
    );
    let one = |(place, what): (usize, &&'static str)| {
        let (warm, end) = (median(warm, place)?, median(end, place)?);
        let (times, more) = BOUNDS[place];
        Some(Growth {
            what,
            warm,
            end,
            bound: warm * times + more,
        })
    };
    NAMES.iter().enumerate().filter_map(one).collect()
}

fn median(samples: &[Sample], place: usize) -> Option<f64> {
    let mut values: Vec<f64> = samples.iter().filter_map(|s| s.values[place]).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// How long each fault's effects lasted after it.
pub(super) fn recoveries(beats: &[Beat], strikes: &[Strike], begun: Nanos) -> Vec<Recovery> {
    // On a machine that does other things too, a good moment before a fault is no measure.
    let all = sum(beats);
    let usual = (all.answered as f64 / beats.len() as f64, all.quantile(0.5));
    let place = |at: Nanos| (at.saturating_sub(begun) / BEAT) as usize;
    let recovery = |strike: &Strike| {
        let (from, until) = (place(strike.from), place(strike.until));
        let before = sum(beats.get(from.saturating_sub(BEFORE)..from)?);
        let length = from.clamp(1, BEFORE) as f64;
        let rate = usual.0.min(before.answered as f64 / length);
        let p50 = usual.1.max(before.quantile(0.5));
        let well = |second: &[Beat]| {
            let second = sum(second);
            second.answered as f64 >= rate && second.quantile(0.5) <= p50 * 2.0
        };
        let after = beats.get(until..)?.windows(2).take(LOOKED_FOR);
        let beats_until = after.into_iter().position(well).unwrap_or(LOOKED_FOR);
        Some(Recovery {
            fault: strike.fault,
            at: seconds(strike.from.saturating_sub(begun)),
            lasted: seconds(strike.until - strike.from),
            rate: rate * 2.0,
            p50_ms: p50,
            recovered_after: beats_until as f64 / 2.0,
        })
    };
    strikes.iter().filter_map(recovery).collect()
}

/// The share of moments away from all faults at which calls were as slow, or as few, as they may
/// not be after one: what else the machine did.
pub(super) fn slow_anyway(beats: &[Beat], strikes: &[Strike], begun: Nanos) -> f64 {
    let all = sum(beats);
    let (rate, p50) = (all.answered as f64 / beats.len() as f64, all.quantile(0.5));
    let place = |at: Nanos| (at.saturating_sub(begun) / BEAT) as usize;
    let near = |at: usize| {
        let mut strikes = strikes.iter();
        strikes.any(|strike| (place(strike.from)..place(strike.until) + AWAY).contains(&at))
    };
    let moments = beats.windows(2).enumerate();
    let away: Vec<Beat> = moments
        .filter(|(at, _)| !near(*at) && !near(*at + 1))
        .map(|(_, second)| sum(second))
        .collect();
    let slow = |beat: &&Beat| (beat.answered as f64) < rate || beat.quantile(0.5) > p50 * 2.0;
    away.iter().filter(slow).count() as f64 / away.len().max(1) as f64
}

fn seconds(nanos: Nanos) -> f64 {
    (nanos / 100_000_000) as f64 / 10.0
}

/// What is wrong.
pub(super) fn why(growth: &[Growth], faults: &[Recovery]) -> Vec<String> {
    let grew = growth.iter().filter(|growth| growth.end > growth.bound);
    let grew = grew.map(|of| {
        let (what, bound) = (of.what, of.bound);
        format!(
            "{what} grew from {:.1} to {:.1}, more than {bound:.1}",
            of.warm, of.end
        )
    });
    let slow = |fault: &&Recovery| fault.recovered_after > SOON as f64 / 2.0;
    let slow = faults.iter().filter(slow).map(|of| {
        let (fault, took) = (of.fault.name(), of.recovered_after);
        format!(
            "after {fault} at {:.0} s it took {took} s to recover",
            of.at
        )
    });
    grew.chain(slow).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_grows_after_the_warm_up_is_found() {
        let samples = |records: fn(usize) -> f64| -> Vec<Sample> {
            let sample = |at: usize| {
                let mut values = [None; NAMES.len()];
                values[6] = Some(records(at));
                Sample { at: 0, values }
            };
            (0..100).map(sample).collect()
        };
        let judged = |records| why(&growth(&samples(records)), &[]).len();
        assert_eq!(judged(|at| 100.0 * at.min(20) as f64), 0, "warm by then");
        assert_eq!(judged(|at| 100.0 * at as f64), 1);
    }

    #[test]
    fn what_is_slow_to_come_back_is_found() {
        let beats = |slow: usize| -> Vec<Beat> {
            let beat = |at: usize| {
                let mut beat = Beat::default();
                let calls = if (20..24 + slow).contains(&at) { 1 } else { 10 };
                for _ in 0..calls {
                    beat.add(Some(Duration::from_millis(1)), false);
                }
                beat
            };
            (0..100).map(beat).collect()
        };
        let strike = Strike {
            fault: Fault::Cut,
            from: 20 * BEAT,
            until: 24 * BEAT,
        };
        let judged = |slow| recoveries(&beats(slow), &[strike], 0).remove(0);
        assert!(judged(0).recovered_after < 1.0);
        assert!(why(&[], &[judged(2)]).is_empty());
        assert_eq!(why(&[], &[judged(9)]).len(), 1);
        let anyway = |slow| slow_anyway(&beats(slow), &[strike], 0);
        assert!(anyway(0) < 0.01 && anyway(40) > 0.2);
    }
}
