//! The way to the committer: callers put steps in, the committer takes all there are.

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

    /// Waits for steps and moves all of them to `into`; `false` once the queue is closed and
    /// empty.
    pub(super) fn take(&self, into: &mut Vec<Step>) -> bool {
        let mut pending = self.pending.lock();
        while pending.steps.is_empty() {
            if pending.closed {
                return false;
            }
            self.filled.wait(&mut pending);
        }
        std::mem::swap(&mut pending.steps, into);
        true
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
