//! The file of one process's history.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Answer, Call, write_answer, write_call};
use crate::clock::now;

/// Appends calls and answers to a file. Shared by all tasks of a process: one `write` appends a
/// line whole, without a lock here.
#[derive(Debug)]
pub struct Log {
    file: File,
    next: AtomicU64,
}

impl Log {
    /// A new history at `path`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(path)?;
        Ok(Self {
            file,
            next: AtomicU64::new(0),
        })
    }

    /// Writes that a call is about to be sent, and names it.
    pub fn invoke(&self, call: &Call) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut line = String::with_capacity(120);
        let _ = write!(line, "> {id} {} ", now());
        write_call(&mut line, call);
        self.append(line);
        id
    }

    /// Writes what came of it.
    pub fn answer(&self, id: u64, answer: &Answer) {
        let at = now();
        let mut line = String::with_capacity(80);
        let _ = write!(line, "< {id} {at} ");
        write_answer(&mut line, answer);
        self.append(line);
    }

    fn append(&self, mut line: String) {
        line.push('\n');
        // A run whose history cannot be written proves nothing.
        (&self.file)
            .write_all(line.as_bytes())
            .expect("the history can be written");
    }
}
