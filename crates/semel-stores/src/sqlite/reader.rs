//! Threads that read, each on a connection of its own: they see what is committed, and nothing
//! else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension as _, Result, Statement, params};
use semel::record;
use semel::store::{ClaimRequest, Entry, Fence, Label, ListQuery, Page};
use semel::versioned::Versioned;
use semel::{IdentityDigest, StoreError, StoreErrorKind, Timestamp};

use super::connect::{Role, journal_mode};
use super::error::{self, Phase, told};
use super::list::{list, parse_cursor};
use super::queue::{Queue, Woken};
use super::row;
use super::schema;
use super::shared::Shared;
use super::sql;
use super::step::{Answer, Done, Step, Work};
use super::versioned::Rows;
use super::writer::Left;
use crate::common::Running;

/// A question. A claim that has to write goes on to the writer.
pub(super) enum Read {
    Claim {
        number: u64,
        label: Box<Label>,
        request: ClaimRequest,
        done: Done<Answer>,
    },
    Get(IdentityDigest, Done<Option<Entry>>),
    Versioned([u8; 32], Done<Option<Versioned>>),
    Running(IdentityDigest, Fence, Done<Running>),
    List(ListQuery, Done<Page>),
    Probe(Done<Findings>),
    /// Somebody waits for a change now.
    Watch,
}

/// What a probe reads.
#[derive(Debug)]
pub(super) struct Findings {
    pub(super) journal_mode: String,
    pub(super) version: Option<u32>,
}

/// How often a change by another process is looked for while somebody waits, and how much less
/// often with each who does: everybody looks after a change.
const WATCH_EVERY: Duration = Duration::from_millis(5);
const WATCH_LESS: Duration = Duration::from_micros(400);
const WATCH_LEAST: Duration = Duration::from_millis(250);

/// How long to leave a file alone that could not be opened.
const REST: Duration = Duration::from_millis(50);

pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    /// Whether this one takes the scans and watches the file; else the lookups.
    pub(super) scans: bool,
}

struct Statements<'c> {
    find: Statement<'c>,
    get: Statement<'c>,
    running: Statement<'c>,
    list: Statement<'c>,
    clock: Statement<'c>,
    data_version: Statement<'c>,
    versioned: Rows<'c>,
}

impl<'c> Statements<'c> {
    fn prepare(connection: &'c Connection, table: &sql::Table) -> Result<Self> {
        let prepare = |statement| connection.prepare(&table.sql(statement));
        Ok(Self {
            find: prepare(sql::FIND)?,
            get: prepare(sql::GET)?,
            running: prepare(sql::RUNNING)?,
            list: prepare(sql::LIST)?,
            clock: prepare(sql::CLOCK)?,
            data_version: prepare("PRAGMA data_version")?,
            versioned: Rows::new(connection, table),
        })
    }
}

impl Reader {
    fn queue(&self) -> &Queue<Read> {
        if self.scans {
            &self.shared.scans
        } else {
            &self.shared.lookups
        }
    }

    /// Answers until the store is closed and nothing waits. A connection that broke is replaced.
    pub(super) fn run(self) {
        while self.watches() || self.queue().wait(None) == Woken::Work {
            let served = self
                .shared
                .place
                .connect(Role::Read)
                .and_then(|connection| {
                    self.serve(&connection)
                        .map_err(|e| self.shared.place.about(&told(&e, Phase::Before)))
                });
            let e = match served {
                Ok(Left::Closed) => return,
                Ok(Left::Broken) => continue,
                Err(e) => e,
            };
            for read in self.queue().take(|_| true) {
                read.fail(StoreError::new(e.kind(), e.to_string()));
            }
            std::thread::sleep(REST);
        }
    }

    fn watches(&self) -> bool {
        self.scans && self.shared.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns once the store is closed, the file is another one, or the connection broke.
    fn serve(&self, connection: &Connection) -> Result<Left> {
        let mut on = Statements::prepare(connection, &self.shared.place.table)?;
        let file = self.shared.place.file();
        let mut seen = 0;
        let mut next = Instant::now();
        loop {
            let waiting = self.shared.waiting.load(Ordering::Relaxed);
            let until = (self.scans && waiting > 0).then_some(next);
            match self.queue().wait(until) {
                Woken::Closed => return Ok(Left::Closed),
                Woken::Work => {}
                Woken::Time => {
                    let version: i64 = on.data_version.query_row([], |row| row.get(0))?;
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
            if self.shared.place.file() != file {
                return Ok(Left::Broken);
            }
            let reads = self.queue().take(|_| true);
            self.answer(connection, &mut on, reads)?;
        }
    }

    /// Answers all from one instant of the file, which is not before any of them was asked.
    fn answer(
        &self,
        connection: &Connection,
        on: &mut Statements<'_>,
        reads: Vec<Read>,
    ) -> Result<()> {
        let began = connection
            .execute_batch("BEGIN")
            .and_then(|()| on.clock.query_row([], |row| row::comes(row, 0)));
        let latest = match began {
            Ok(latest) => latest,
            Err(e) => {
                for read in reads {
                    read.fail(told(&e, Phase::Before));
                }
                return self.end(connection).and(keep(Err(e)));
            }
        };
        let mut broken = Ok(());
        for read in reads {
            let answered = self.read(connection, on, read, latest);
            broken = broken.and(keep(answered));
        }
        self.end(connection).and(broken)
    }

    fn end(&self, connection: &Connection) -> Result<()> {
        if connection.is_autocommit() {
            return Ok(());
        }
        connection.execute_batch("COMMIT")
    }

    fn read(
        &self,
        connection: &Connection,
        on: &mut Statements<'_>,
        read: Read,
        latest: Timestamp,
    ) -> Result<()> {
        let now = self.shared.time.now(latest);
        match read {
            Read::Claim {
                number,
                label,
                request,
                done,
            } => {
                let found = on
                    .find
                    .query_row([label.digest.as_bytes()], row::found)
                    .optional();
                let decision = match &found {
                    Ok(None) => None,
                    Ok(Some(found)) => {
                        let current = Some(&found.record);
                        let decision = record::claim(current, &request, now, Fence::default());
                        decision.write.is_none().then_some(decision.claim)
                    }
                    Err(e) => {
                        let _ = done.send(Err(told(e, Phase::Before)));
                        return found.map(drop);
                    }
                };
                match decision {
                    Some(claim) => drop(done.send(Ok(Answer::Claim(claim)))),
                    None => self.hand_on(number, label, request, done),
                }
                Ok(())
            }
            Read::Get(digest, done) => {
                let entry = on.get.query_row([digest.as_bytes()], row::entry).optional();
                let entry = entry.map(|entry| entry.filter(|e| !e.record.is_purgeable(now)));
                send(done, entry)
            }
            Read::Versioned(digest, done) => send(done, on.versioned.read(&digest)),
            Read::Running(digest, fence, done) => {
                let values = params![digest.as_bytes(), row::bits(fence.0)];
                let running = on.running.query_row(values, |row| {
                    Ok(if row.get(0)? {
                        Running::Yes
                    } else {
                        Running::No
                    })
                });
                send(done, running)
            }
            Read::List(query, done) => match parse_cursor(query.after.as_ref()) {
                Ok(after) => send(done, list(&mut on.list, &query, after, now)),
                Err(e) => {
                    let _ = done.send(Err(e));
                    Ok(())
                }
            },
            Read::Probe(done) => {
                let version = schema::version(connection, &self.shared.place.table);
                let findings = version.and_then(|version| {
                    Ok(Findings {
                        journal_mode: journal_mode(connection)?,
                        version,
                    })
                });
                send(done, findings)
            }
            Read::Watch => Ok(()),
        }
    }

    fn hand_on(&self, number: u64, label: Box<Label>, request: ClaimRequest, done: Done<Answer>) {
        let work = Work::Claim(label, request);
        if let Err(step) = self.shared.steps.push(number, Step { work, done }) {
            step.answer(Err(closing()));
        }
    }
}

/// Keeps an error that asks for another connection.
fn keep(result: Result<()>) -> Result<()> {
    match result {
        Err(e) if error::is_broken(&e) => Err(e),
        _ => Ok(()),
    }
}

fn send<T>(done: Done<T>, result: Result<T>) -> Result<()> {
    match result {
        Ok(value) => {
            let _ = done.send(Ok(value));
            Ok(())
        }
        Err(e) => {
            let _ = done.send(Err(told(&e, Phase::Before)));
            Err(e)
        }
    }
}

pub(super) fn closing() -> StoreError {
    StoreError::new(StoreErrorKind::Closed, "the store is being closed")
}

impl Read {
    pub(super) fn fail(self, error: StoreError) {
        match self {
            Self::Claim { done, .. } => drop(done.send(Err(error))),
            Self::Get(_, done) => drop(done.send(Err(error))),
            Self::Versioned(_, done) => drop(done.send(Err(error))),
            Self::Running(_, _, done) => drop(done.send(Err(error))),
            Self::List(_, done) => drop(done.send(Err(error))),
            Self::Probe(done) => drop(done.send(Err(error))),
            Self::Watch => {}
        }
    }
}
