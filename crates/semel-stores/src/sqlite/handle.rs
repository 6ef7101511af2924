//! What a store's handle and its threads share: the queues, and the ways in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::Connection;
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::sync::watch;
use tokio::time::timeout as within;

use super::clock::Time;
use super::connect::Place;
use super::reader::Reader;
use super::statements::Statements;
use super::step::{Course, Kind, Step};
use super::transact::Lending;
use super::writer::Writer;
use super::{SqliteStore, error};
use crate::common::queue::{Queue, lost};
use crate::common::thread::spawn;
use crate::common::{Gate, Waiters};

/// The largest outcome, in its byte form. It is in memory more than once while it is written.
pub(super) const MAX_OUTCOME: usize = 32 << 20;

/// How long to leave a file alone that could not be opened.
const REST: Duration = Duration::from_millis(50);

pub(super) struct Shared {
    pub(super) place: Place,
    pub(super) time: Time,
    /// To the writer.
    pub(super) steps: Queue<Step>,
    /// To the reader of single records.
    pub(super) lookups: Queue<Step>,
    /// To the reader of everything that takes longer; it also looks out for other processes.
    pub(super) scans: Queue<Step>,
    pub(super) waiters: Arc<Waiters>,
    /// How many wait.
    pub(super) waiting: AtomicUsize,
    /// Whether the writer waits for somebody else's lock.
    pub(super) locked: AtomicBool,
    /// Whether something was erased that lies in the log.
    pub(super) erased: AtomicBool,
    /// How many transactions were committed.
    pub(super) commits: AtomicU64,
}

impl Shared {
    pub(super) fn close(&self) {
        // Readers hand claims on to the writer: it is told last.
        self.lookups.close();
        self.scans.close();
        self.steps.close();
    }

    /// Refuses what waits for a thread whose connection cannot be used, and lets that rest.
    pub(super) fn refuse_all(queue: &Queue<Step>, why: &StoreError) {
        for step in queue.take_all() {
            let why = StoreError::new(why.kind(), why.to_string());
            step.job.answer(Err(why));
        }
        std::thread::sleep(REST);
    }
}

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

    /// Sends a step to the thread behind this queue, and waits for its answer as long as a step may
    /// take.
    pub(super) async fn submit<T: Send + 'static>(
        &self,
        to: &Queue<Step>,
        kind: Kind,
        bytes: usize,
        decide: impl FnMut(&mut Statements<'_>, &mut Course) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let _step = self.gate.enter()?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (step, answer) = Step::new(number, kind, bytes, decide);
        to.push(step).map_err(|_| closing())?;
        let is_another = |step: &Step| step.number != number;
        match within(self.shared.place.timeout, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(lost())),
            // A reader may have handed it on.
            Err(_) if to.retain(is_another) || self.shared.steps.retain(is_another) => {
                Err(self.not_begun())
            }
            // Begun or not, it changes nothing.
            Err(_) if kind == Kind::Read => Err(self.not_begun()),
            Err(_) => Err(self.too_slow()),
        }
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        from: &Queue<Step>,
        read: impl FnMut(&mut Statements<'_>, &mut Course) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.submit(from, Kind::Read, 0, read).await
    }

    pub(super) async fn write<T: Send + 'static>(
        &self,
        kind: Kind,
        bytes: usize,
        write: impl FnMut(&mut Statements<'_>, &mut Course) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.submit(&self.shared.steps, kind, bytes, write).await
    }

    fn not_begun(&self) -> StoreError {
        if self.shared.locked.load(Ordering::Relaxed) {
            return StoreError::new(StoreErrorKind::Contended, error::LOCKED);
        }
        let timeout = self.shared.place.timeout;
        let message = format!("the store did not get to this step within {timeout:?}");
        StoreError::new(StoreErrorKind::NotApplied, message)
    }

    fn too_slow(&self) -> StoreError {
        let timeout = self.shared.place.timeout;
        StoreError::new(
            StoreErrorKind::Unknown,
            format!("the step was begun and not done within {timeout:?}; it may still be"),
        )
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
            // The one who looks out may sleep without a time set. Where it is closed, the wait ends by itself.
            let (nothing, _) = Step::new(u64::MAX, Kind::Read, 0, |_, _| Ok(()));
            drop(shared.scans.push(nothing));
        }
        Self(shared)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn closing() -> StoreError {
    StoreError::new(StoreErrorKind::Closed, "the store is being closed")
}
