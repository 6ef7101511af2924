//! The effects: a ledger in a file that every process locks, reads and adds to. It refuses what
//! comes with a lower fence than it has seen for the same operation, and can be told never to take
//! an effect under a fence again: that is what makes "did not happen" true for good.
//!
//! A line is `effect ID FENCE`, `refused ID FENCE` or `closed ID FENCE`; the id is that of
//! [`AttemptInfo`](semel::guard::AttemptInfo) and [`Case`](semel::guard::Case).

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// What became of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is in the ledger.
    Accepted,
    /// A higher fence came before, or this one is closed.
    Refused,
}

/// The ledger at a path.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    path: PathBuf,
    /// Whether stale fences are refused: a planted bug otherwise.
    fenced: bool,
}

impl Ledger {
    pub(super) fn new(path: &Path, fenced: bool) -> Self {
        Self {
            path: path.into(),
            fenced,
        }
    }

    /// Lets the effect happen, unless its fence is stale.
    pub(super) fn effect(&self, id: &str, fence: u64) -> Result<Taken> {
        self.locked(|lines| {
            let stale = lines.iter().any(|line| {
                line.id == id && (line.fence > fence || (line.is("closed") && line.fence == fence))
            });
            match stale && self.fenced {
                true => (Taken::Refused, Some(format!("refused {id} {fence}"))),
                false => (Taken::Accepted, Some(format!("effect {id} {fence}"))),
            }
        })
    }

    /// The fence under which the effect happened. Where it did not, it never will under this one.
    pub(super) fn settle(&self, id: &str, fence: u64) -> Result<Option<u64>> {
        self.locked(|lines| {
            let effect = |line: &&Line| line.id == id && line.is("effect");
            match lines.iter().find(effect) {
                Some(line) => (Some(line.fence), None),
                None => (None, Some(format!("closed {id} {fence}"))),
            }
        })
    }

    /// The fences of the effects of an operation, and of those that were refused.
    pub(super) fn of(&self, id: &str) -> Result<(Vec<u64>, Vec<u64>)> {
        self.locked(|lines| {
            let fences = |what| {
                let ours = lines.iter().filter(|line| line.id == id && line.is(what));
                ours.map(|line| line.fence).collect()
            };
            ((fences("effect"), fences("refused")), None)
        })
    }

    /// Decides by all lines there are, and adds one, with no other process in between.
    fn locked<T>(&self, decide: impl FnOnce(&[Line]) -> (T, Option<String>)) -> Result<T> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(&self.path)?;
        // Given back when the file is closed, also by a kill.
        file.lock()?;
        let lines = read(&mut file)?;
        let (answer, line) = decide(&lines);
        if let Some(line) = line {
            // One write: a kill leaves a whole line or none.
            file.write_all(format!("{line}\n").as_bytes())?;
        }
        Ok(answer)
    }
}

struct Line {
    what: String,
    id: String,
    fence: u64,
}

impl Line {
    fn is(&self, what: &str) -> bool {
        self.what == what
    }
}

fn read(file: &mut File) -> Result<Vec<Line>> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let line = |line: &str| {
        let mut words = line.split(' ');
        Some(Line {
            what: words.next()?.to_owned(),
            id: words.next()?.to_owned(),
            fence: words.next()?.parse().ok()?,
        })
    };
    text.lines()
        .map(|text| line(text).with_context(|| format!("a line of the ledger: {text:?}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_fence_is_refused_and_a_closed_one_stays_closed() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(&folder.path().join("ledger"), true);
        assert_eq!(ledger.effect("a", 5).unwrap(), Taken::Accepted);
        assert_eq!(ledger.effect("a", 4).unwrap(), Taken::Refused);
        assert_eq!(ledger.effect("b", 4).unwrap(), Taken::Accepted);
        assert_eq!(ledger.settle("a", 6).unwrap(), Some(5));
        assert_eq!(ledger.settle("c", 7).unwrap(), None);
        assert_eq!(ledger.effect("c", 7).unwrap(), Taken::Refused);
        assert_eq!(ledger.effect("c", 8).unwrap(), Taken::Accepted);
        assert_eq!(ledger.of("a").unwrap(), (vec![5], vec![4]));
        assert_eq!(ledger.of("c").unwrap(), (vec![8], vec![7]));

        let blind = Ledger::new(&folder.path().join("ledger"), false);
        assert_eq!(blind.effect("a", 4).unwrap(), Taken::Accepted);
    }
}
