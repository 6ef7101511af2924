//! What is behind a handle: its threads, and the ways to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rusqlite::Connection;
use semel::store::{ClaimRequest, Label, Result};
use semel::{Identity, StoreError, StoreErrorKind};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout as within;

use super::clock::Time;
use super::connect::Place;
use super::queue::Queue;
use super::reader::{Read, Reader, closing};
use super::shared::Shared;
use super::step::{Answer, Done, Step, Work};
use super::transact::Lending;
use super::writer::Writer;
use super::{SqliteStore, error, spawn};
use crate::common::Gate;

/// The largest outcome, in its byte form. It is in memory more than once while it is written.
pub(super) const MAX_OUTCOME: usize = 32 << 20;

impl SqliteStore {
    pub(super) fn start(
        place: Place,
        connection: Connection,
        time: Time,
        for_tests: bool,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            place,
            time,
            steps: Queue::new(),
            lookups: Queue::new(),
            scans: Queue::new(),
            waiters: Arc::default(),
            waiting: AtomicUsize::new(0),
            erased: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            commits: AtomicU64::new(0),
        });
        let (finished, watch) = watch::channel(());
        let writer = Writer {
            shared: shared.clone(),
            _finished: finished,
        };
        let store = Self {
            shared: shared.clone(),
            gate: Gate::new("sqlite"),
            numbers: AtomicU64::new(0),
            finished: watch,
            threads: Mutex::default(),
            lending: Lending::new(),
            for_tests,
        };
        // Dropped where one does not start: those that did end then.
        let write = spawn("semel-sqlite-write", move || writer.run(connection))?;
        store.threads.lock().push(write);
        for scans in [false, true] {
            let reader = Reader {
                shared: shared.clone(),
                scans,
            };
            let read = spawn("semel-sqlite-read", move || reader.run())?;
            store.threads.lock().push(read);
        }
        Ok(store)
    }

    /// How many transactions this handle committed with a sync: with the number of steps it tells how
    /// many share one.
    pub fn commits(&self) -> u64 {
        self.shared.commits.load(Ordering::Relaxed)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    // Waits for an answer as long as a step may take; `withdraw` says whether it was not begun.
    async fn answer<T>(
        &self,
        answer: oneshot::Receiver<Result<T>>,
        withdraw: impl FnOnce() -> bool,
    ) -> Result<T> {
        match within(self.shared.place.timeout, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(lost())),
            Err(_) if withdraw() => Err(self.not_begun()),
            Err(_) => Err(self.too_slow()),
        }
    }

    fn not_begun(&self) -> StoreError {
        let message = if self.shared.locked.load(Ordering::Relaxed) {
            error::LOCKED.to_owned()
        } else {
            format!(
                "the store did not get to this step within {:?}",
                self.shared.place.timeout
            )
        };
        StoreError::new(StoreErrorKind::NotApplied, message)
    }

    fn too_slow(&self) -> StoreError {
        let timeout = self.shared.place.timeout;
        StoreError::new(
            StoreErrorKind::Unknown,
            format!("the step was begun and not done within {timeout:?}; it may still be"),
        )
    }

    pub(super) async fn submit(&self, work: Work) -> Result<Answer> {
        let _step = self.gate.enter()?;
        let number = self.number();
        let (done, answer) = oneshot::channel();
        let steps = &self.shared.steps;
        if steps.push(number, Step { work, done }).is_err() {
            return Err(closing());
        }
        self.answer(answer, || steps.withdraw(number)).await
    }

    // First to a reader, which hands it on where something is to be written.
    pub(super) async fn ask_to_claim(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<Answer> {
        let _step = self.gate.enter()?;
        let number = self.number();
        let (done, answer) = oneshot::channel();
        let read = Read::Claim {
            number,
            label: Box::new(Label::from(identity)),
            request: request.clone(),
            done,
        };
        let shared = &self.shared;
        if shared.lookups.push(number, read).is_err() {
            return Err(closing());
        }
        let withdraw = || shared.lookups.withdraw(number) || shared.steps.withdraw(number);
        self.answer(answer, withdraw).await
    }

    // A read that goes on too long changes nothing, begun or not.
    pub(super) async fn read<T>(
        &self,
        queue: &Queue<Read>,
        read: impl FnOnce(Done<T>) -> Read,
    ) -> Result<T> {
        let _step = self.gate.enter()?;
        let number = self.number();
        let (done, answer) = oneshot::channel();
        if queue.push(number, read(done)).is_err() {
            return Err(closing());
        }
        let withdraw = || {
            queue.withdraw(number);
            true
        };
        self.answer(answer, withdraw).await
    }

    pub(super) fn join(&self) {
        for thread in self.threads.lock().drain(..) {
            // Whatever ended it, callers were told.
            let _ = thread.join();
        }
    }
}

/// One who waits, as long as this lives.
pub(super) struct Counted<'a>(&'a Shared);

impl<'a> Counted<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        if shared.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            // It may sleep without a time set. Where it is closed, the wait ends by itself.
            let _ = shared.scans.push(u64::MAX, Read::Watch);
        }
        Self(shared)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lost() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unknown,
        "the store stopped before it answered; the step may have happened",
    )
}
