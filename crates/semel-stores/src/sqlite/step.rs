//! Steps as they travel to a thread with a connection, and how each is decided there.

use rusqlite::ffi::{self, SQLITE_READONLY};
use rusqlite::{Error, ErrorCode};
use semel::record::{self, Change, Decision};
use semel::store::{Claim, ClaimRequest, Fence, Fenced, Label, Purged, Result};
use semel::{IdentityDigest, Record, StoreError, StoreErrorKind, Timestamp};
use tokio::sync::oneshot;

use super::clock::Time;
use super::statements::Statements;
use crate::common::queue::lost;

/// What a step is to the thread that takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    /// A write that a crash of the machine may forget.
    Forgettable,
    /// A write that is not done before what was erased has left the log.
    Purge,
}

/// A step, and the way back for its answer.
pub(super) struct Step {
    /// By which its caller takes it back.
    pub(super) number: u64,
    pub(super) kind: Kind,
    /// Roughly how many bytes it writes.
    pub(super) bytes: usize,
    pub(super) job: Box<dyn Job>,
}

pub(super) trait Job: Send {
    /// Decides the step and writes what it changes. Where its transaction fails it may be decided
    /// again, in another one.
    fn decide(&mut self, on: &mut Statements<'_>, course: &mut Course) -> rusqlite::Result<()>;

    /// Gives the answer that was decided last, once that is committed; or says why it is not.
    fn answer(self: Box<Self>, committed: Result<()>);

    /// Whether nobody waits for the answer any more.
    fn is_given_up(&self) -> bool;
}

struct Asked<T, F> {
    decide: F,
    decided: Option<T>,
    done: oneshot::Sender<Result<T>>,
}

impl<T, F> Job for Asked<T, F>
where
    T: Send,
    F: FnMut(&mut Statements<'_>, &mut Course) -> rusqlite::Result<T> + Send,
{
    fn decide(&mut self, on: &mut Statements<'_>, course: &mut Course) -> rusqlite::Result<()> {
        self.decided = Some((self.decide)(on, course)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let decided = self.decided.ok_or_else(lost);
        // An error here means that the caller went away.
        let _ = self.done.send(committed.and(decided));
    }

    fn is_given_up(&self) -> bool {
        self.done.is_closed()
    }
}

impl Step {
    pub(super) fn new<T, F>(
        number: u64,
        kind: Kind,
        bytes: usize,
        decide: F,
    ) -> (Self, oneshot::Receiver<Result<T>>)
    where
        T: Send + 'static,
        F: FnMut(&mut Statements<'_>, &mut Course) -> rusqlite::Result<T> + Send + 'static,
    {
        let (done, answer) = oneshot::channel();
        let job = Box::new(Asked {
            decide,
            decided: None,
            done,
        });
        let step = Self {
            number,
            kind,
            bytes,
            job,
        };
        (step, answer)
    }

    /// Whether it failed only because a reader took it: the writer is to decide it.
    pub(super) fn has_to_write(&self, error: &Error) -> bool {
        self.kind != Kind::Read && error.sqlite_error_code() == Some(ErrorCode::ReadOnly)
    }
}

/// What is known while steps are decided in one transaction.
pub(super) struct Course {
    pub(super) now: Timestamp,
    /// The highest fence given out by this file.
    fence: Fence,
    /// Why there is no room for new records.
    full: Option<Box<str>>,
    /// Whether the connection is a reader's.
    read_only: bool,
    /// Whether anything was written.
    pub(super) wrote: bool,
    /// Whether anything was erased.
    pub(super) erased: bool,
    /// Whose waiters are woken once it is committed.
    pub(super) ended: Vec<IdentityDigest>,
}

impl Course {
    fn new(now: Timestamp, fence: Fence) -> Self {
        Self {
            now,
            fence,
            full: None,
            read_only: false,
            wrote: false,
            erased: false,
            ended: Vec::new(),
        }
    }

    pub(super) fn of_reader(now: Timestamp) -> Self {
        Self {
            read_only: true,
            ..Self::new(now, Fence::default())
        }
    }

    /// Decides steps in a transaction that has the write lock, or takes it now, and moves the file's
    /// clock on if they wrote.
    pub(super) fn run<T>(
        on: &mut Statements<'_>,
        time: &Time,
        full: Option<Box<str>>,
        decide: impl FnOnce(&mut Statements<'_>, &mut Self) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<(T, Self)> {
        let (latest, fence) = on.clock()?;
        let mut course = Self {
            full,
            ..Self::new(time.now(latest), fence)
        };
        let decided = decide(on, &mut course)?;
        if course.wrote {
            on.advance(course.now, course.fence)?;
        }
        Ok((decided, course))
    }

    /// Whether there is room for another record.
    pub(super) fn room(&self) -> Result<()> {
        match &self.full {
            Some(full) => Err(StoreError::new(StoreErrorKind::Capacity, full.clone())),
            None => Ok(()),
        }
    }

    fn wrote(&mut self, record: &Record) {
        self.wrote = true;
        self.fence = self.fence.max(record.token.fence);
    }
}

/// Claims. A reader answers where nothing is to be written.
pub(super) fn claim(
    label: &Label,
    request: &ClaimRequest,
    on: &mut Statements<'_>,
    course: &mut Course,
) -> rusqlite::Result<Result<Claim>> {
    let found = on.find(&label.digest)?;
    let current = found.as_ref().map(|f| &f.record);
    let Decision { claim, write } = record::claim(current, request, course.now, course.fence);
    let Some(record) = write else {
        return Ok(Ok(claim));
    };
    if course.read_only {
        // As SQLite itself would say.
        let error = ffi::Error::new(SQLITE_READONLY);
        return Err(Error::SqliteFailure(error, None));
    }
    if let (Claim::Acquired(_), Err(full)) = (&claim, course.room()) {
        return Ok(Err(full));
    }
    match &found {
        Some(found) => on.update(found.id, &record)?,
        None => on.insert(label, &record)?,
    }
    course.wrote(&record);
    course.ended.push(label.digest);
    Ok(Ok(claim))
}

/// Changes a record, or says why not.
pub(super) fn change(
    digest: &IdentityDigest,
    change: &Change,
    on: &mut Statements<'_>,
    course: &mut Course,
) -> rusqlite::Result<Fenced> {
    course.erased |= change.erases();
    let found = on.find(digest)?;
    let current = found.as_ref().map(|f| &f.record);
    let record = match change.decide(current, course.now, course.fence) {
        Ok(record) => record,
        Err(refusal) => return Ok(refusal.into()),
    };
    if let (Some(found), Some(record)) = (&found, record) {
        on.update(found.id, &record)?;
        course.wrote(&record);
    }
    if change.ends_attempt() {
        course.ended.push(*digest);
    }
    Ok(Fenced::Applied)
}

/// Removes at most so many records.
pub(super) fn purge(
    limit: usize,
    on: &mut Statements<'_>,
    course: &mut Course,
) -> rusqlite::Result<Purged> {
    let removed = on.purge(course.now, limit)?;
    course.wrote |= removed > 0;
    let more = on.purgeable(course.now)?;
    Ok(Purged { removed, more })
}
