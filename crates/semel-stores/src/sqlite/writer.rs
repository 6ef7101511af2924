//! The thread that decides and writes: all steps that wait, in one transaction with one sync.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rusqlite::Connection;
use semel::store::Fenced;
use semel::{StoreError, StoreErrorKind};
use tokio::sync::watch;

use super::connect::Role;
use super::error::{self, Phase, told};
use super::queue::Woken;
use super::room::Room;
use super::shared::Shared;
use super::statements::Statements;
use super::step::{Answer, Course, Step, Work};

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    /// Dropped last, when the connection is gone: that is how `close` knows.
    pub(super) _finished: watch::Sender<()>,
}

/// A transaction ends here even if more steps wait, so that one commit stays short.
const MAX_STEPS: usize = 512;
const MAX_BYTES: usize = 4 << 20;

/// How long to leave a file alone that could not be opened.
const REST: Duration = Duration::from_millis(50);

/// Why a thread left its connection.
pub(super) enum Left {
    Closed,
    /// It is to be opened anew.
    Broken,
}

/// A transaction that failed, and where.
struct Failed {
    error: rusqlite::Error,
    phase: Phase,
}

/// A connection and what is made for it.
struct Session<'c> {
    connection: &'c Connection,
    statements: Statements<'c>,
    room: Room,
    /// Whether commits wait for the disk.
    syncs: bool,
}

const fn before(error: rusqlite::Error) -> Failed {
    Failed {
        error,
        phase: Phase::Before,
    }
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
            match opened.map(|connection| self.serve(&connection)) {
                Ok(Left::Closed) => return,
                Ok(Left::Broken) => {}
                Err(e) => {
                    for step in self.shared.steps.take(|_| true) {
                        step.answer(Err(StoreError::new(e.kind(), e.to_string())));
                    }
                    std::thread::sleep(REST);
                }
            }
        }
    }

    fn serve(&self, connection: &Connection) -> Left {
        let mut on = match Statements::prepare(connection, &self.shared.place.table) {
            Ok(statements) => Session {
                connection,
                statements,
                room: Room::new(),
                syncs: self.shared.place.full,
            },
            Err(e) => return self.refuse_all(&e),
        };
        let file = self.shared.place.file();
        loop {
            if self.shared.steps.wait(None) == Woken::Closed {
                return Left::Closed;
            }
            if self.shared.place.file() != file {
                return Left::Broken;
            }
            // Where a crash may forget all that waits, there is no sync. The next one, that of the transaction
            // with the attempt's effects at the latest, takes it to the disk: the log has one order.
            let steps = &self.shared.steps;
            let forgettable = steps.all(|step| step.work.is_forgettable());
            let syncs = self.shared.place.full && !forgettable;
            if on.syncs != syncs {
                let synchronous = if syncs { "FULL" } else { "NORMAL" };
                let set = format!("PRAGMA synchronous = {synchronous}");
                if let Err(e) = connection.execute_batch(&set) {
                    return self.refuse_all(&e);
                }
                on.syncs = syncs;
            }
            // First the lock, then the steps: those that come while it is waited for join, and
            // those that give up meanwhile were never begun.
            if let Err(e) = connection.execute_batch("BEGIN IMMEDIATE") {
                if !error::is_busy(&e) {
                    return self.refuse_all(&e);
                }
                self.shared.locked.store(true, Ordering::Relaxed);
                // Nobody waits for these any more.
                self.shared.steps.retain(|step| !step.done.is_closed());
                continue;
            }
            self.shared.locked.store(false, Ordering::Relaxed);
            let (mut many, mut bytes) = (0, 0);
            let steps = steps.take(|step| {
                if forgettable && !step.work.is_forgettable() {
                    return false;
                }
                let fits = many < MAX_STEPS && (many == 0 || bytes < MAX_BYTES);
                many += 1;
                bytes += step.work.bytes();
                fits
            });
            if self.group(&mut on, steps).is_err() {
                return Left::Broken;
            }
        }
    }

    /// Does these steps in the transaction that was begun. `Err` where the connection broke.
    fn group(&self, on: &mut Session<'_>, steps: Vec<Step>) -> Result<(), ()> {
        match self.transact(on, &steps) {
            Ok(answers) => {
                let scrubbed = self.scrub(on, &steps);
                for (step, answer) in steps.into_iter().zip(answers) {
                    let is_purge = matches!(answer, Answer::Purged(_));
                    step.answer(match &scrubbed {
                        Err(why) if is_purge => {
                            let what =
                                format!("what was erased is still in the write-ahead log: {why}");
                            Err(StoreError::new(StoreErrorKind::NotApplied, what))
                        }
                        _ => Ok(answer),
                    });
                }
                Ok(())
            }
            // One of them may be the cause: the others are not to be lost with it.
            Err(failed) if steps.len() > 1 && may_go_singly(&failed) => {
                let mut steps = steps.into_iter();
                while let Some(step) = steps.next() {
                    if let Err(e) = on.connection.execute_batch("BEGIN IMMEDIATE") {
                        step.answer(Err(told(&e, Phase::Before)));
                        continue;
                    }
                    if self.group(on, vec![step]).is_err() {
                        steps.for_each(|step| step.answer(Err(interrupted())));
                        return Err(());
                    }
                }
                Ok(())
            }
            Err(Failed { error, phase }) => {
                for step in steps {
                    step.answer(Err(told(&error, phase)));
                }
                if error::is_broken(&error) || !on.connection.is_autocommit() {
                    return Err(());
                }
                Ok(())
            }
        }
    }

    /// What was erased is overwritten in the file at once (`secure_delete`), and lies in the log until that
    /// is cut: at the next purge, which fails while somebody reads what is in it.
    fn scrub(&self, on: &Session<'_>, steps: &[Step]) -> Result<(), String> {
        let is_erasing = |work: &Work| matches!(work, Work::Fenced(_, change) if change.erases());
        if steps.iter().any(|step| is_erasing(&step.work)) {
            self.shared.erased.store(true, Ordering::Relaxed);
        }
        let is_purge = |step: &Step| matches!(step.work, Work::Purge(_));
        if self.shared.erased.load(Ordering::Relaxed) && steps.iter().any(is_purge) {
            let cut = "PRAGMA wal_checkpoint(TRUNCATE)";
            let is_busy = on
                .connection
                .query_row(cut, [], |row| row.get::<_, bool>(0));
            if is_busy.map_err(|error| error.to_string())? {
                return Err("another connection uses it".to_owned());
            }
            self.shared.erased.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn transact(&self, on: &mut Session<'_>, steps: &[Step]) -> Result<Vec<Answer>, Failed> {
        let done = self
            .decide(on, steps)
            .map_err(before)
            .and_then(|(answers, wrote)| {
                let end = if wrote { "COMMIT" } else { "ROLLBACK" };
                match on.connection.execute_batch(end) {
                    Ok(()) => Ok((answers, wrote)),
                    Err(error) if wrote => Err(Failed {
                        error,
                        phase: Phase::Commit,
                    }),
                    Err(error) => Err(before(error)),
                }
            });
        match done {
            Ok((answers, wrote)) => {
                if wrote && on.syncs {
                    self.shared.commits.fetch_add(1, Ordering::Relaxed);
                }
                if wrote {
                    self.wake(steps, &answers);
                }
                Ok(answers)
            }
            Err(failed) => {
                // Some errors have rolled back already. Where this fails the connection is left.
                if !on.connection.is_autocommit() {
                    let _ = on.connection.execute_batch("ROLLBACK");
                }
                Err(failed)
            }
        }
    }

    fn decide(
        &self,
        on: &mut Session<'_>,
        steps: &[Step],
    ) -> rusqlite::Result<(Vec<Answer>, bool)> {
        let Session {
            connection,
            statements,
            room,
            ..
        } = on;
        let (latest, fence) = statements.clock()?;
        let mut course = Course {
            now: latest,
            fence,
            full: room.short(connection, &self.shared.place)?,
            wrote: false,
        };
        let mut answers = Vec::with_capacity(steps.len());
        for step in steps {
            course.now = self.shared.time.now(latest);
            answers.push(step.work.run(statements, &mut course)?);
        }
        if course.wrote {
            statements.advance(course.now, course.fence)?;
        }
        Ok((answers, course.wrote))
    }

    fn wake(&self, steps: &[Step], answers: &[Answer]) {
        for (step, answer) in steps.iter().zip(answers) {
            match (&step.work, answer) {
                (Work::Fenced(digest, change), Answer::Fenced(Fenced::Applied))
                    if change.ends_attempt() =>
                {
                    self.shared.waiters.wake(digest);
                }
                (Work::Claim(label, _), _) => self.shared.waiters.wake(&label.digest),
                (Work::Clear, _) => self.shared.waiters.wake_all(),
                _ => {}
            }
        }
    }

    fn refuse_all(&self, error: &rusqlite::Error) -> Left {
        for step in self.shared.steps.take(|_| true) {
            step.answer(Err(self.shared.place.about(&told(error, Phase::Before))));
        }
        std::thread::sleep(REST);
        Left::Broken
    }
}

/// Whether the transaction certainly left nothing behind.
fn may_go_singly(failed: &Failed) -> bool {
    failed.phase == Phase::Before || error::is_room(&failed.error) || error::is_busy(&failed.error)
}

fn interrupted() -> StoreError {
    StoreError::new(
        StoreErrorKind::NotApplied,
        "the connection to the database file broke before this step was begun",
    )
}
