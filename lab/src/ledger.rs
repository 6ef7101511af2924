//! The effects: what an operation does to the world, and the service downstream that it does it to.
//!
//! All processes append to one file, one `write` per effect; the file's order is the order in which
//! the effects arrived. The service downstream remembers the highest fence that it saw for each
//! key and refuses what comes with a lower one. It has no state of its own but this file: whether
//! it took an effect follows from the lines before it, so that a kill can lose neither.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::clock::{Nanos, now};
use crate::history::{Held, KeyIndex};
use crate::lines::Lines;

/// One effect, as it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// When it was sent, at the latest.
    pub at: Nanos,
    /// On which key.
    pub key: KeyIndex,
    /// The attempt's fence.
    pub fence: u64,
    /// The attempt's nonce; `None` where the worker does not see it, behind a `Guard`.
    pub nonce: Option<u128>,
    /// Whether the fence was passed on, so that the service could refuse.
    pub fenced: bool,
}

/// The file, open for appending.
#[derive(Debug)]
pub struct Ledger(Lines);

impl Ledger {
    /// Opens the ledger at `path`, or begins one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Lines::open(path)?))
    }

    /// Lets an effect happen.
    pub fn effect(&self, key: KeyIndex, held: Held, fenced: bool) {
        self.write(key, held.fence, Some(held.nonce), fenced);
    }

    /// Lets an effect happen for an attempt whose nonce is not known here.
    pub fn effect_of_fence(&self, key: KeyIndex, fence: u64) {
        self.write(key, fence, None, true);
    }

    fn write(&self, key: KeyIndex, fence: u64, nonce: Option<u128>, fenced: bool) {
        // Effects that are not written down would be missed by the checker.
        self.0.record(&Effect {
            at: now(),
            key,
            fence,
            nonce,
            fenced,
        });
    }
}

/// Which effects the service downstream took, and how many it refused for their fence.
pub fn accepted(effects: &[Effect]) -> (Vec<Effect>, usize) {
    let mut highest: HashMap<KeyIndex, u64> = HashMap::new();
    let taken = |effect: &&Effect| {
        let highest = highest.entry(effect.key).or_default();
        let taken = !effect.fenced || effect.fence >= *highest;
        // What comes without a fence teaches nothing.
        if effect.fenced {
            *highest = (*highest).max(effect.fence);
        }
        taken
    };
    let accepted: Vec<Effect> = effects.iter().filter(taken).copied().collect();
    let refused = effects.len() - accepted.len();
    (accepted, refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::read;

    #[test]
    fn what_comes_late_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let ledger = Ledger::open(&path).unwrap();
        let held = |fence| Held { fence, nonce: 0xab };
        ledger.effect(1, held(5), true);
        ledger.effect(1, held(7), true);
        ledger.effect(1, held(6), true);
        ledger.effect(1, held(6), false);
        ledger.effect_of_fence(2, 1);
        let effects: Vec<Effect> = read(&path).unwrap();
        assert_eq!(effects[0].nonce, Some(0xab));
        let (taken, refused) = accepted(&effects);
        let taken: Vec<_> = taken.iter().map(|e| (e.key, e.fence, e.fenced)).collect();
        assert_eq!(
            taken,
            [(1, 5, true), (1, 7, true), (1, 6, false), (2, 1, true)]
        );
        assert_eq!(refused, 1);
    }
}
