//! The effects: a ledger in a file that every process locks, reads and adds to. It refuses what
//! comes with a lower fence than it has seen for the same operation, and can be told never to take
//! an effect under a fence again: that is what makes "did not happen" true for good.
//!
//! The id is that of
//! [`AttemptInfo`](semel::guard::AttemptInfo) and [`Case`](semel::guard::Case).

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::lines::{self, Lines};

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
        self.locked(id, fence, |lines| {
            let stale = |line: &Line| {
                line.fence > fence || line.what == What::Closed && line.fence == fence
            };
            match self.fenced && lines.iter().any(stale) {
                true => (Taken::Refused, Some(What::Refused)),
                false => (Taken::Accepted, Some(What::Effect)),
            }
        })
    }

    /// The fence under which the effect happened. Where it did not, it never will under this one.
    pub(super) fn settle(&self, id: &str, fence: u64) -> Result<Option<u64>> {
        self.locked(id, fence, |lines| {
            match lines.iter().find(|line| line.what == What::Effect) {
                Some(line) => (Some(line.fence), None),
                None => (None, Some(What::Closed)),
            }
        })
    }

    /// The fences of the effects of an operation, and of those that were refused.
    pub(super) fn of(&self, id: &str) -> Result<(Vec<u64>, Vec<u64>)> {
        let lines = self.read(id)?;
        let fences = |what| {
            let such = lines.iter().filter(|line| line.what == what);
            such.map(|line| line.fence).collect()
        };
        Ok((fences(What::Effect), fences(What::Refused)))
    }

    fn read(&self, id: &str) -> Result<Vec<Line>> {
        let mut lines: Vec<Line> = lines::read(&self.path)?;
        lines.retain(|line| line.id == id);
        Ok(lines)
    }

    /// Decides by the operation's lines, and adds one, with no other process in between.
    fn locked<T>(
        &self,
        id: &str,
        fence: u64,
        decide: impl FnOnce(&[Line]) -> (T, Option<What>),
    ) -> Result<T> {
        let file = Lines::open(&self.path)?;
        file.lock()?;
        let (answer, what) = decide(&self.read(id)?);
        if let Some(what) = what {
            let id = id.to_owned();
            file.append(&Line { what, id, fence })?;
        }
        Ok(answer)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    what: What,
    id: String,
    fence: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum What {
    Effect,
    Refused,
    Closed,
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
