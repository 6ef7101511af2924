//! The way to a thread with a connection: callers put work in, the thread takes what there is.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

pub(super) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    filled: Condvar,
}

struct Waiting<T> {
    work: Vec<(u64, T)>,
    closed: bool,
}

/// Why a thread stopped waiting for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    Work,
    Time,
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                work: Vec::new(),
                closed: false,
            }),
            filled: Condvar::new(),
        }
    }

    /// Hands work over; gives it back where the queue is closed.
    pub(super) fn push(&self, number: u64, work: T) -> Result<(), T> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(work);
        }
        waiting.work.push((number, work));
        drop(waiting);
        self.filled.notify_one();
        Ok(())
    }

    /// Takes work back. `false` where the thread has it already.
    pub(super) fn withdraw(&self, number: u64) -> bool {
        let mut waiting = self.waiting.lock();
        let before = waiting.work.len();
        waiting.work.retain(|(n, _)| *n != number);
        waiting.work.len() < before
    }

    /// Waits until there is work, `until` has come, or the queue is closed and empty.
    pub(super) fn wait(&self, until: Option<Instant>) -> Woken {
        let mut waiting = self.waiting.lock();
        loop {
            if !waiting.work.is_empty() {
                return Woken::Work;
            }
            if waiting.closed {
                return Woken::Closed;
            }
            match until {
                None => self.filled.wait(&mut waiting),
                Some(until) => {
                    if self.filled.wait_until(&mut waiting, until).timed_out() {
                        return Woken::Time;
                    }
                }
            }
        }
    }

    /// Whether all that waits is so.
    pub(super) fn all(&self, mut is: impl FnMut(&T) -> bool) -> bool {
        self.waiting.lock().work.iter().all(|(_, work)| is(work))
    }

    /// Takes what there is, in order, up to the first for which `more` says no.
    pub(super) fn take(&self, mut more: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let many = waiting
            .work
            .iter()
            .take_while(|(_, work)| more(work))
            .count();
        waiting.work.drain(..many).map(|(_, work)| work).collect()
    }

    /// Drops the work for which `keep` says no.
    pub(super) fn retain(&self, mut keep: impl FnMut(&T) -> bool) {
        self.waiting.lock().work.retain(|(_, work)| keep(work));
    }

    /// Takes no more work. What is in is still done.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.filled.notify_all();
    }
}
