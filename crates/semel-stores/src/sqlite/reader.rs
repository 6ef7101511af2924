//! Threads that read, each on a connection of its own: they see what is committed, and nothing
//! else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Result};
use semel::StoreError;

use super::connect::Role;
use super::error;
use super::handle::{Shared, closing};
use super::statements::Statements;
use super::step::{Course, Step};
use crate::common::queue::{Queue, Woken};

/// How often a change by another process is looked for while somebody waits, and how much less
/// often with each who does: everybody looks after a change.
const WATCH_EVERY: Duration = Duration::from_millis(5);
const WATCH_LESS: Duration = Duration::from_micros(400);
const WATCH_LEAST: Duration = Duration::from_millis(250);

pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    /// Whether this one takes the scans and watches the file; else the lookups.
    pub(super) scans: bool,
}

impl Reader {
    fn queue(&self) -> &Queue<Step> {
        if self.scans {
            &self.shared.scans
        } else {
            &self.shared.lookups
        }
    }

    /// Answers until the store is closed and nothing waits. A connection that broke is replaced.
    pub(super) fn run(self) {
        while self.watches() || self.queue().wait(None) == Woken::Work {
            let opened = self.shared.place.connect(Role::Read);
            match opened.and_then(|connection| self.serve(&connection)) {
                Ok(()) => return,
                Err(e) => Shared::refuse_all(self.queue(), &e),
            }
        }
    }

    fn watches(&self) -> bool {
        self.scans && self.shared.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns once the store is closed; an error where the file is another one, or the connection broke.
    fn serve(&self, connection: &Connection) -> Result<(), StoreError> {
        let place = &self.shared.place;
        let mut on = Statements::new(connection, &place.table);
        let mut seen = 0;
        let mut next = Instant::now();
        loop {
            let waiting = self.shared.waiting.load(Ordering::Relaxed);
            let until = (self.scans && waiting > 0).then_some(next);
            match self.queue().wait(until) {
                Woken::Closed => return Ok(()),
                Woken::Work => {}
                Woken::Time => {
                    let version = on.data_version().map_err(|e| place.failed(&e))?;
                    if version != seen {
                        seen = version;
                        self.shared.waiters.wake_all();
                    }
                    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
                    let pause = WATCH_LESS.saturating_mul(waiting);
                    next = Instant::now() + pause.clamp(WATCH_EVERY, WATCH_LEAST);
                    continue;
                }
            }
            place.check_file()?;
            self.answer(&mut on, self.queue().take_all())
                .map_err(|e| place.failed(&e))?;
        }
    }

    /// Answers all from one instant of the file, which is not before any of them was asked.
    fn answer(&self, on: &mut Statements<'_>, steps: Vec<Step>) -> Result<()> {
        let begun = on.connection.execute_batch("BEGIN");
        let mut broken = Ok(());
        match begun.and_then(|()| on.clock()) {
            Ok((latest, _)) => {
                for mut step in steps {
                    let mut course = Course::of_reader(self.shared.time.now(latest));
                    match step.job.decide(on, &mut course) {
                        Ok(()) => step.job.answer(Ok(())),
                        Err(e) if step.has_to_write(&e) => self.hand_on(step),
                        Err(e) => {
                            step.job.answer(Err(self.shared.place.failed(&e)));
                            broken = broken.and(keep(e));
                        }
                    }
                }
            }
            Err(e) => {
                for step in steps {
                    step.job.answer(Err(self.shared.place.failed(&e)));
                }
                broken = keep(e);
            }
        }
        if !on.connection.is_autocommit() {
            on.connection.execute_batch("COMMIT")?;
        }
        broken
    }

    fn hand_on(&self, step: Step) {
        if let Err(step) = self.shared.steps.push(step) {
            step.job.answer(Err(closing()));
        }
    }
}

/// Keeps an error that asks for another connection.
fn keep(error: rusqlite::Error) -> Result<()> {
    if error::is_broken(&error) {
        return Err(error);
    }
    Ok(())
}
