//! Steps as they travel to the writer's thread, and how each is decided.

use rusqlite::Result;
use semel::record::{self, Change};
use semel::store::{Claim, ClaimRequest, Fence, Fenced, Label, Purged};
use semel::versioned::rule::Decision;
use semel::{IdentityDigest, Record, StoreError, StoreErrorKind, Timestamp};
use tokio::sync::oneshot;

use super::statements::Statements;
use super::versioned::Alteration;

/// Where an answer goes. Nobody may be there any more.
pub(super) type Done<T> = oneshot::Sender<semel::store::Result<T>>;

/// A step that writes, or may.
pub(super) struct Step {
    pub(super) work: Work,
    pub(super) done: Done<Answer>,
}

pub(super) enum Work {
    Claim(Box<Label>, ClaimRequest),
    Fenced(IdentityDigest, Change),
    /// Of a versioned record.
    Versioned(Box<Alteration>),
    /// Removes at most so many records.
    Purge(usize),
    /// Writes the clock, to see that writing works.
    Touch,
    Clear,
}

#[derive(Debug)]
pub(super) enum Answer {
    Claim(Claim),
    Fenced(Fenced),
    Purged(Purged),
    Versioned(Decision),
    /// A claim, or a new record, that was refused: there is no room for another.
    Full(Box<str>),
    Done,
}

/// What is known while steps are decided in one transaction.
pub(super) struct Course {
    pub(super) now: Timestamp,
    /// The highest fence given out by this file.
    pub(super) fence: Fence,
    /// Why new claims are refused.
    pub(super) full: Option<Box<str>>,
    /// Whether anything was written.
    pub(super) wrote: bool,
}

impl Work {
    /// Decides the step and writes what it changes, inside a transaction that has the write lock:
    /// nothing changes between the reading and the writing.
    pub(super) fn run(&self, on: &mut Statements<'_>, course: &mut Course) -> Result<Answer> {
        match self {
            Self::Claim(label, request) => claim(label, request, on, course),
            Self::Fenced(digest, change) => fenced(digest, change, on, course).map(Answer::Fenced),
            Self::Versioned(made) => made.run(on, course),
            Self::Purge(limit) => {
                let removed = on.purge(course.now, *limit)?;
                course.wrote |= removed > 0;
                let more = on.purgeable(course.now)?;
                Ok(Answer::Purged(Purged { removed, more }))
            }
            Self::Touch => {
                course.wrote = true;
                Ok(Answer::Done)
            }
            Self::Clear => {
                course.wrote = true;
                on.clear().map(|()| Answer::Done)
            }
        }
    }

    /// Whether a crash of the machine may forget what it does.
    pub(super) const fn is_forgettable(&self) -> bool {
        matches!(self, Self::Claim(_, request) if request.is_forgettable)
    }

    /// Roughly how many bytes it writes.
    pub(super) fn bytes(&self) -> usize {
        const ROW: usize = 512;
        if let Self::Versioned(made) = self {
            return ROW + made.bytes();
        }
        let outcome = match self {
            Self::Fenced(_, change) => change.outcome(),
            _ => None,
        };
        ROW + outcome.map_or(0, |o| o.as_bytes().len())
    }
}

fn claim(
    label: &Label,
    request: &ClaimRequest,
    on: &mut Statements<'_>,
    course: &mut Course,
) -> Result<Answer> {
    let found = on.find(&label.digest)?;
    let current = found.as_ref().map(|f| &f.record);
    let record::Decision { claim, write } =
        record::claim(current, request, course.now, course.fence);
    if let Some(record) = write {
        if let (Claim::Acquired(_), Some(full)) = (&claim, &course.full) {
            return Ok(Answer::Full(full.clone()));
        }
        match &found {
            Some(found) => on.update(found.id, &record)?,
            None => on.insert(label, &record)?,
        }
        course.wrote(&record);
    }
    Ok(Answer::Claim(claim))
}

fn fenced(
    digest: &IdentityDigest,
    change: &Change,
    on: &mut Statements<'_>,
    course: &mut Course,
) -> Result<Fenced> {
    let Some(found) = on.find(digest)? else {
        return Ok(Fenced::Refused(
            match change.decide(None, course.now, course.fence) {
                Err(refusal) => refusal,
                Ok(_) => semel::store::Refusal::Missing,
            },
        ));
    };
    match change.decide(Some(&found.record), course.now, course.fence) {
        Err(refusal) => Ok(refusal.into()),
        Ok(None) => Ok(Fenced::Applied),
        Ok(Some(record)) => {
            on.update(found.id, &record)?;
            course.wrote(&record);
            Ok(Fenced::Applied)
        }
    }
}

impl Course {
    fn wrote(&mut self, record: &Record) {
        self.wrote = true;
        self.fence = self.fence.max(record.token.fence);
    }
}

impl Step {
    pub(super) fn answer(self, answer: semel::store::Result<Answer>) {
        // An error here means that the caller went away.
        let _ = self.done.send(match answer {
            Ok(Answer::Full(full)) => Err(StoreError::new(StoreErrorKind::Capacity, full)),
            other => other,
        });
    }
}

impl Answer {
    /// Whoever asked for something else than what was answered.
    pub(super) fn unexpected(&self) -> StoreError {
        StoreError::new(
            StoreErrorKind::Unknown,
            format!("the store answered another question: {}", self.name()),
        )
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Claim(_) => "a claim",
            Self::Fenced(_) => "a fenced step",
            Self::Purged(_) => "a purge",
            Self::Versioned(_) => "a change of a versioned record",
            Self::Full(_) | Self::Done => "nothing",
        }
    }
}
