//! Where the callback for dead letters puts events: a ledger of its own, outside the database, that
//! no kill reaches.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

/// The file, open for appending.
#[derive(Debug)]
pub(super) struct Shelf(File);

/// What is there of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shelved {
    /// How often the callback was asked to take it.
    pub(crate) asked: usize,
    /// How often it did.
    pub(crate) kept: usize,
    /// The fewest attempts that a letter said had failed.
    pub(crate) attempts: u32,
}

impl Shelf {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(file))
    }

    /// The callback begins.
    pub(super) fn asked(&self, event: u64) -> io::Result<()> {
        self.write(&format!("asked {event} 0\n"))
    }

    /// It has taken the event, after so many attempts.
    pub(super) fn keep(&self, event: u64, attempts: u32) -> io::Result<()> {
        self.write(&format!("kept {event} {attempts}\n"))
    }

    // One write for each line: processes append to it at the same time.
    fn write(&self, line: &str) -> io::Result<()> {
        (&self.0).write_all(line.as_bytes())
    }
}

/// What is on it, by event.
pub(super) fn read(path: &Path) -> io::Result<BTreeMap<u64, Shelved>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let mut shelf: BTreeMap<u64, Shelved> = BTreeMap::new();
    for line in text.lines() {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, line);
        let (what, numbers) = line.split_once(' ').ok_or_else(wrong)?;
        let (event, attempts) = numbers.split_once(' ').ok_or_else(wrong)?;
        let event = event.parse().map_err(|_| wrong())?;
        let attempts = attempts.parse().map_err(|_| wrong())?;
        let shelved = shelf.entry(event).or_default();
        if what == "asked" {
            shelved.asked += 1;
        } else {
            shelved.attempts = match shelved.kept {
                0 => attempts,
                _ => shelved.attempts.min(attempts),
            };
            shelved.kept += 1;
        }
    }
    Ok(shelf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_often_each_event_was_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letters");
        assert!(read(&path).unwrap().is_empty());
        let shelf = Shelf::open(&path).unwrap();
        for attempts in [6, 5] {
            shelf.asked(7).unwrap();
            shelf.keep(7, attempts).unwrap();
        }
        shelf.asked(8).unwrap();
        let found = read(&path).unwrap();
        let shelved = |asked, kept, attempts| Shelved {
            asked,
            kept,
            attempts,
        };
        assert_eq!((found[&7], found[&8]), (shelved(2, 2, 5), shelved(1, 0, 0)));
    }
}
