//! Whether the store is of use again once the faults are over.

use serde::Serialize;

use crate::clock::Nanos;
use crate::history::{Answer, Op};

const SECOND: Nanos = 1_000_000_000;
/// A second in which half as much is answered as before the first fault must begin by then.
const SOON: Nanos = 2 * SECOND;

/// How soon it was.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Recovery {
    /// Answers a second before the first fault.
    rate_before: usize,
    /// After so many seconds; `None`: not in time.
    pub(crate) recovered_after: Option<f64>,
}

/// How long the workers must go on after the faults of a store that elects a leader within so long.
pub(super) const fn calm(elects: Nanos) -> Nanos {
    SOON + SECOND + elects
}

/// What became of it, where the faults went on from `first` to `over`.
pub(super) fn recovery(
    ops: &[Op],
    begun: Nanos,
    (first, over): (Nanos, Nanos),
    elects: Nanos,
) -> Recovery {
    let answered = |op: &&Op| !matches!(op.answer, Answer::Lost | Answer::Failed(_));
    let mut times: Vec<Nanos> = ops.iter().filter(answered).map(|op| op.answered).collect();
    times.sort_unstable();
    let before = |at: Nanos| times.partition_point(|time| *time < at);
    let early = (before(first) - before(begun)) as f64;
    let rate = early * SECOND as f64 / (first - begun).max(1) as f64;
    let well = |at: &Nanos| rate > 0.0 && 2.0 * (before(at + SECOND) - before(*at)) as f64 >= rate;
    let mut moments = (over..=over + SOON + elects).step_by(SECOND as usize / 10);
    Recovery {
        rate_before: rate as usize,
        recovered_after: moments
            .find(well)
            .map(|at| ((at - over) / (SECOND / 10)) as f64 / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Call, Failed};

    #[test]
    fn a_store_is_back_where_half_of_the_rate_is() {
        let op = |at: Nanos, answer| Op {
            worker: 0,
            invoked: at,
            answered: at,
            call: Call::Get { key: 1 },
            answer,
        };
        // Ten answers a second before a fault from 1 s to 3 s, and so many from some time on.
        let back = |from: Nanos, every: Nanos, answer| {
            let early = (0..SECOND).step_by(SECOND as usize / 10);
            let mut ops: Vec<Op> = early.map(|at| op(at, Answer::Absent)).collect();
            let late = (from..8 * SECOND).step_by(every as usize);
            ops.extend(late.map(|at| op(at, answer)));
            recovery(&ops, 0, (SECOND, 3 * SECOND), 0)
        };
        let fifth = SECOND / 5;
        let found = back(3 * SECOND, fifth, Answer::Absent);
        assert_eq!((found.rate_before, found.recovered_after), (10, Some(0.0)));
        let after = |from, every, answer| back(from, every, answer).recovered_after;
        assert_eq!(after(5 * SECOND, fifth, Answer::Absent), Some(1.9));
        assert_eq!(after(6 * SECOND, fifth, Answer::Absent), None);
        assert_eq!(after(3 * SECOND, SECOND / 4, Answer::Absent), None);
        assert_eq!(after(3 * SECOND, fifth, Answer::Failed(Failed::Not)), None);
        // Nothing was answered before either.
        assert_eq!(
            recovery(&[], 0, (SECOND, 3 * SECOND), 0).recovered_after,
            None
        );
    }
}
