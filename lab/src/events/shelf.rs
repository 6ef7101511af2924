//! Where the callback for dead letters puts events: a ledger of its own, outside the database, that
//! no kill reaches.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::lines;

/// What the callback writes down.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line {
    /// It begins with an event.
    Asked(u64),
    /// It has taken the event, after so many attempts.
    Kept(u64, u32),
}

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

/// What is on it, by event.
pub(super) fn read(path: &Path) -> io::Result<BTreeMap<u64, Shelved>> {
    let mut shelf: BTreeMap<u64, Shelved> = BTreeMap::new();
    for line in lines::read(path)? {
        match line {
            Line::Asked(event) => shelf.entry(event).or_default().asked += 1,
            Line::Kept(event, attempts) => {
                let shelved = shelf.entry(event).or_default();
                shelved.attempts = match shelved.kept {
                    0 => attempts,
                    _ => shelved.attempts.min(attempts),
                };
                shelved.kept += 1;
            }
        }
    }
    Ok(shelf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::Lines;

    #[test]
    fn it_says_how_often_each_event_was_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letters");
        assert!(read(&path).unwrap().is_empty());
        let shelf = Lines::open(&path).unwrap();
        for attempts in [6, 5] {
            shelf.append(&Line::Asked(7)).unwrap();
            shelf.append(&Line::Kept(7, attempts)).unwrap();
        }
        shelf.append(&Line::Asked(8)).unwrap();
        let found = read(&path).unwrap();
        let shelved = |asked, kept, attempts| Shelved {
            asked,
            kept,
            attempts,
        };
        assert_eq!((found[&7], found[&8]), (shelved(2, 2, 5), shelved(1, 0, 0)));
    }
}
