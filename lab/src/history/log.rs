//! The file of one process's history.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::{Answer, Call};
use crate::clock::{Nanos, now};
use crate::lines::Lines;

/// A line of it: the number of a call, when it was sent or answered, and what was said.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line {
    Sent(u64, Nanos, Call),
    Answered(u64, Nanos, Answer),
}

/// Appends calls and answers to a file. Shared by all tasks of a process.
#[derive(Debug)]
pub struct Log {
    lines: Lines,
    next: AtomicU64,
}

impl Log {
    /// A new history at `path`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            lines: Lines::create(path)?,
            next: AtomicU64::new(0),
        })
    }

    /// Writes that a call is about to be sent, and names it.
    pub fn invoke(&self, call: &Call) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.lines.record(&Line::Sent(id, now(), *call));
        id
    }

    /// Writes what came of it.
    pub fn answer(&self, id: u64, answer: &Answer) {
        self.lines.record(&Line::Answered(id, now(), *answer));
    }
}
