//! The way to the committer: callers put steps in, the committer takes all there are.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::step::Step;

#[derive(Default)]
pub(super) struct Queue {
    pending: Mutex<Pending>,
    filled: Condvar,
}

#[derive(Default)]
struct Pending {
    steps: Vec<Step>,
    closed: bool,
}

/// What came out of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Steps,
    /// None came in time.
    Nothing,
    /// None is in, and none will come.
    Closed,
}

impl Queue {
    /// Hands a step over; gives it back where the queue is closed.
    #[must_use]
    pub(super) fn push(&self, step: Step) -> Option<Step> {
        let mut pending = self.pending.lock();
        if pending.closed {
            return Some(step);
        }
        pending.steps.push(step);
        let first = pending.steps.len() == 1;
        drop(pending);
        // The committer sleeps on an empty queue only.
        if first {
            self.filled.notify_one();
        }
        None
    }

    /// Waits for steps until this instant, and moves all of them to `into`.
    pub(super) fn take(&self, into: &mut Vec<Step>, until: Instant) -> Taken {
        let mut pending = self.pending.lock();
        while pending.steps.is_empty() {
            if pending.closed {
                return Taken::Closed;
            }
            if self.filled.wait_until(&mut pending, until).timed_out() && pending.steps.is_empty() {
                return Taken::Nothing;
            }
        }
        std::mem::swap(&mut pending.steps, into);
        Taken::Steps
    }

    /// Takes no more steps. Those that are in are still done.
    pub(super) fn close(&self) {
        self.pending.lock().closed = true;
        self.filled.notify_one();
    }

    /// Drops what is in: whoever waits for it is told that its answer is lost.
    pub(super) fn abandon(&self) {
        let steps = std::mem::take(&mut self.pending.lock().steps);
        drop(steps);
    }
}
