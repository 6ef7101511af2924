//! The way to a thread of a store's: callers put steps in, the thread takes what there is.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use semel::{StoreError, StoreErrorKind};

pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    filled: Condvar,
}

struct Waiting<T> {
    steps: Vec<T>,
    closed: bool,
}

/// Why a thread stopped waiting for steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    Work,
    /// None came in time.
    Time,
    /// None is in, and none will come.
    Closed,
}

impl<T> Queue<T> {
    pub(crate) const fn new() -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                steps: Vec::new(),
                closed: false,
            }),
            filled: Condvar::new(),
        }
    }

    /// Hands a step over; gives it back where the queue is closed.
    pub(crate) fn push(&self, step: T) -> Result<(), T> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(step);
        }
        waiting.steps.push(step);
        let first = waiting.steps.len() == 1;
        drop(waiting);
        // The thread sleeps on an empty queue only.
        if first {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Waits until there are steps, `until` has come, or the queue is closed and empty.
    pub(crate) fn wait(&self, until: Option<Instant>) -> Woken {
        let mut waiting = self.waiting.lock();
        loop {
            if !waiting.steps.is_empty() {
                return Woken::Work;
            }
            if waiting.closed {
                return Woken::Closed;
            }
            match until {
                None => self.filled.wait(&mut waiting),
                Some(until) => {
                    let timed_out = self.filled.wait_until(&mut waiting, until).timed_out();
                    if timed_out && waiting.steps.is_empty() {
                        return Woken::Time;
                    }
                }
            }
        }
    }

    /// Takes what there is, in order, up to the first for which `more` says no.
    pub(crate) fn take(&self, mut more: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let many = waiting.steps.iter().take_while(|step| more(step)).count();
        waiting.steps.drain(..many).collect()
    }

    /// Takes all there is.
    pub(crate) fn take_all(&self) -> Vec<T> {
        self.take(|_| true)
    }

    /// Takes no more steps. Those that are in are still done.
    pub(crate) fn close(&self) {
        self.waiting.lock().closed = true;
        self.filled.notify_all();
    }
}

#[cfg(feature = "sqlite")]
impl<T> Queue<T> {
    /// Whether all that waits is so.
    pub(crate) fn all(&self, is: impl FnMut(&T) -> bool) -> bool {
        self.waiting.lock().steps.iter().all(is)
    }

    /// Drops the steps for which `keep` says no, and says whether there were any.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) -> bool {
        let mut waiting = self.waiting.lock();
        let before = waiting.steps.len();
        waiting.steps.retain(keep);
        waiting.steps.len() < before
    }
}

/// What a caller is told whose answer never came: its step may have happened.
pub(crate) fn lost() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unknown,
        "the store stopped before it answered; the step may have happened",
    )
}
