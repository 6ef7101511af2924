//! The thread that decides and writes: all steps that wait, in one transaction with one sync.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::Connection;
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::sync::watch;

use super::connect::Role;
use super::error::{self, Phase, told};
use super::handle::Shared;
use super::room::Room;
use super::statements::Statements;
use super::step::{Course, Kind, Step};
use crate::common::queue::Woken;

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    /// Dropped last, when the connection is gone: that is how `close` knows.
    pub(super) _finished: watch::Sender<()>,
}

/// A transaction ends here even if more steps wait, so that one commit stays short.
const MAX_STEPS: usize = 512;
const MAX_BYTES: usize = 4 << 20;
/// What a step writes beside an outcome or a value.
const ROW_BYTES: usize = 512;

/// A transaction that failed, and where.
struct Failed {
    error: rusqlite::Error,
    phase: Phase,
}

/// A connection and what is made for it.
struct Session<'c> {
    statements: Statements<'c>,
    room: Room,
    /// Whether commits wait for the disk.
    syncs: bool,
}

impl Writer {
    /// Works until the store is closed and nothing waits. A connection that broke is replaced.
    pub(super) fn run(self, connection: Connection) {
        let mut connection = Some(connection);
        while self.shared.steps.wait(None) == Woken::Work {
            let opened = match connection.take() {
                Some(connection) => Ok(connection),
                None => self.shared.place.connect(Role::Write),
            };
            match opened.and_then(|connection| self.serve(&connection)) {
                Ok(ControlFlow::Break(())) => return,
                Ok(ControlFlow::Continue(())) => {}
                Err(e) => Shared::refuse_all(&self.shared.steps, &e),
            }
        }
    }

    /// Breaks once the store is closed; continues with another connection where this one broke.
    fn serve(&self, connection: &Connection) -> Result<ControlFlow<()>> {
        let place = &self.shared.place;
        let failed = |e: rusqlite::Error| place.failed(&e);
        let mut on = Session {
            statements: Statements::new(connection, &place.table),
            room: Room::new(),
            syncs: place.full,
        };
        on.statements.check().map_err(failed)?;
        let steps = &self.shared.steps;
        loop {
            if steps.wait(None) == Woken::Closed {
                return Ok(ControlFlow::Break(()));
            }
            place.check_file()?;
            // Where a crash may forget all that waits, there is no sync. The next one, that of the transaction
            // with the attempt's effects at the latest, takes it to the disk: the log has one order.
            let is_forgettable = |step: &Step| step.kind == Kind::Forgettable;
            let forgettable = steps.all(is_forgettable);
            let syncs = place.full && !forgettable;
            if on.syncs != syncs {
                let synchronous = if syncs { "FULL" } else { "NORMAL" };
                let set = format!("PRAGMA synchronous = {synchronous}");
                connection.execute_batch(&set).map_err(failed)?;
                on.syncs = syncs;
            }
            // First the lock, then the steps: those that come while it is waited for join, and
            // those that give up meanwhile were never begun.
            if let Err(e) = connection.execute_batch("BEGIN IMMEDIATE") {
                if !error::is_busy(&e) {
                    return Err(failed(e));
                }
                self.shared.locked.store(true, Ordering::Relaxed);
                // Nobody waits for these any more.
                steps.retain(|step| !step.job.is_given_up());
                continue;
            }
            self.shared.locked.store(false, Ordering::Relaxed);
            let (mut many, mut bytes) = (0, 0);
            let steps = steps.take(|step| {
                if forgettable && !is_forgettable(step) {
                    return false;
                }
                let fits = many < MAX_STEPS && (many == 0 || bytes < MAX_BYTES);
                many += 1;
                bytes += ROW_BYTES + step.bytes;
                fits
            });
            if self.group(&mut on, steps).is_err() {
                return Ok(ControlFlow::Continue(()));
            }
        }
    }

    /// Does these steps in the transaction that was begun. `Err` where the connection broke.
    fn group(&self, on: &mut Session<'_>, mut steps: Vec<Step>) -> Result<(), ()> {
        let connection = on.statements.connection;
        match self.transact(on, &mut steps) {
            Ok(()) => {
                let scrubbed = self.scrub(connection, &steps);
                for Step { kind, job, .. } in steps {
                    job.answer(match &scrubbed {
                        Err(why) if kind == Kind::Purge => {
                            let what =
                                format!("what was erased is still in the write-ahead log: {why}");
                            Err(StoreError::new(StoreErrorKind::NotApplied, what))
                        }
                        _ => Ok(()),
                    });
                }
                Ok(())
            }
            // One of them may be the cause: the others are not to be lost with it.
            Err(failed) if steps.len() > 1 && failed.left_nothing() => {
                let mut steps = steps.into_iter();
                while let Some(step) = steps.next() {
                    if let Err(e) = connection.execute_batch("BEGIN IMMEDIATE") {
                        step.job.answer(Err(told(&e, Phase::Before)));
                        continue;
                    }
                    if self.group(on, vec![step]).is_err() {
                        steps.for_each(|step| step.job.answer(Err(interrupted())));
                        return Err(());
                    }
                }
                Ok(())
            }
            Err(Failed { error, phase }) => {
                for step in steps {
                    step.job.answer(Err(told(&error, phase)));
                }
                if error::is_broken(&error) || !connection.is_autocommit() {
                    return Err(());
                }
                Ok(())
            }
        }
    }

    /// What was erased is overwritten in the file at once (`secure_delete`), and lies in the log until that
    /// is cut: at the next purge, which fails while somebody reads what is in it.
    fn scrub(&self, connection: &Connection, steps: &[Step]) -> Result<(), String> {
        let is_purge = |step: &Step| step.kind == Kind::Purge;
        if self.shared.erased.load(Ordering::Relaxed) && steps.iter().any(is_purge) {
            let cut = "PRAGMA wal_checkpoint(TRUNCATE)";
            let is_busy = connection.query_row(cut, [], |row| row.get::<_, bool>(0));
            if is_busy.map_err(|error| error.to_string())? {
                return Err("another connection uses it".to_owned());
            }
            self.shared.erased.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Decides them, commits, and wakes who waits for what they changed.
    fn transact(&self, on: &mut Session<'_>, steps: &mut [Step]) -> Result<(), Failed> {
        let connection = on.statements.connection;
        let mut phase = Phase::Before;
        let done = self.decide(on, steps).and_then(|course| {
            if course.wrote {
                phase = Phase::Commit;
            }
            let end = if course.wrote { "COMMIT" } else { "ROLLBACK" };
            connection.execute_batch(end).map(|()| course)
        });
        let course = done.map_err(|error| {
            // Some errors have rolled back already. Where this fails the connection is left.
            if !connection.is_autocommit() {
                let _ = connection.execute_batch("ROLLBACK");
            }
            Failed { error, phase }
        })?;
        if course.erased {
            self.shared.erased.store(true, Ordering::Relaxed);
        }
        if course.wrote && on.syncs {
            self.shared.commits.fetch_add(1, Ordering::Relaxed);
        }
        for digest in &course.ended {
            self.shared.waiters.wake(digest);
        }
        Ok(())
    }

    fn decide(&self, on: &mut Session<'_>, steps: &mut [Step]) -> rusqlite::Result<Course> {
        let Session {
            statements, room, ..
        } = on;
        let full = room.short(statements.connection, &self.shared.place)?;
        let time = &self.shared.time;
        let decided = Course::run(statements, time, full, |on, course| {
            steps.iter_mut().try_for_each(|step| {
                course.now = time.now(course.now);
                step.job.decide(on, course)
            })
        });
        decided.map(|((), course)| course)
    }
}

impl Failed {
    /// Whether the transaction certainly left nothing behind.
    fn left_nothing(&self) -> bool {
        let error = &self.error;
        self.phase == Phase::Before || error::is_room(error) || error::is_busy(error)
    }
}

fn interrupted() -> StoreError {
    StoreError::new(
        StoreErrorKind::NotApplied,
        "the connection to the database file broke before this step was begun",
    )
}
