//! Removing messages, so that none of them comes back as a record.
//!
//! **Nothing is removed by a limit.** A server that is killed reads its files again. What a limit of
//! the stream had removed is still in them: the server keeps the latest of what it finds. With one
//! message per key, records that were claimed, completed and then removed were in flight again, 300
//! of 300 (`nats::kills`; 2.9.10 and 2.15.1). What was removed by its sequence is overwritten in the
//! files, and stays away. So the stream keeps every message of a key, and each is removed here.
//!
//! **Oldest first.** A message is removed only once nothing older is under its key. So what a key
//! holds is its latest message, or nothing, also where this stops halfway or the server is killed.
//! Each message says which one it replaces, and was stored only because that one was the last: a
//! purge that meets it removes that one, and what is expired after it.
//!
//! A removal names the sequence, not the key. A record that a claim has just changed lies under
//! another sequence: no claim is ever lost to a purge, in whichever order the server takes the two.
//! Nothing is left behind under the key: the next claim creates it as if it had never been.

use std::collections::HashMap;

use futures_util::{StreamExt as _, stream};
use semel::IdentityDigest;
use semel::store::Result;

use super::scan::{ABREAST, Met};
use super::shared::Shared;

/// One step of emptying a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// All that is before this message.
    Before(u64),
    /// This message.
    One { sequence: u64, counts: bool },
}

/// What is to be removed, of each key in this order.
#[derive(Default)]
pub(super) struct Removals {
    keys: HashMap<IdentityDigest, Vec<Removal>>,
    /// How many of them count as records.
    pub(super) records: usize,
}

impl Removals {
    /// Removes what this message replaced. `passed`: the messages that the purge met from some sequence on,
    /// ascending.
    pub(super) fn replaced_by(&mut self, met: &Met, (from, passed): (u64, &[u64])) {
        let removal = match met.replaces {
            Some(0) => return,
            Some(sequence) if sequence >= from => {
                if passed.binary_search(&sequence).is_err() {
                    // It was not there any more.
                    return;
                }
                Removal::One {
                    sequence,
                    counts: false,
                }
            }
            // Met in an earlier pass or never, or written by another program.
            _ => Removal::Before(met.sequence),
        };
        let removals = self.keys.entry(met.identity).or_default();
        if let Removal::One { sequence, .. } = removal {
            // Expired, and claimed anew: the record is still there.
            let expired = Removal::One {
                sequence,
                counts: true,
            };
            if let Some(known) = removals.iter_mut().find(|known| **known == expired) {
                *known = removal;
                self.records -= 1;
                return;
            }
        }
        removals.push(removal);
    }

    /// Removes this message: what it replaced is gone, or goes before. `counts`: as a record.
    pub(super) fn add(&mut self, met: &Met, counts: bool) {
        self.records += usize::from(counts);
        let removals = self.keys.entry(met.identity).or_default();
        removals.push(Removal::One {
            sequence: met.sequence,
            counts,
        });
    }
}

impl Shared {
    /// Removes all that was noted, and says how many records were among it.
    pub(super) async fn remove(&self, removals: Removals) -> Result<usize> {
        let keys = removals.keys.into_iter();
        let keys = keys.map(|(identity, removals)| self.remove_of(identity, removals));
        let mut keys = stream::iter(keys).buffer_unordered(ABREAST);
        let mut records = 0;
        while let Some(removed) = keys.next().await {
            records += removed?;
        }
        Ok(records)
    }

    /// One after the other. Where one fails, those after it stay.
    async fn remove_of(&self, identity: IdentityDigest, removals: Vec<Removal>) -> Result<usize> {
        let mut records = 0;
        for removal in removals {
            match removal {
                Removal::Before(sequence) => self.remove_before(&identity, sequence).await?,
                Removal::One { sequence, counts } => {
                    let removed = self.remove_one(sequence).await?;
                    records += usize::from(counts && removed);
                }
            }
        }
        Ok(records)
    }

    async fn remove_before(&self, identity: &IdentityDigest, sequence: u64) -> Result<()> {
        let link = &self.link;
        let subject = link.subject(identity);
        loop {
            let mut effort = self.effort();
            let first = link.ask(&mut effort, |patience| link.first(&subject, 1, patience));
            match first.await? {
                Some(first) if first.sequence < sequence => {
                    self.remove_one(first.sequence).await?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// `false`: it was not there.
    async fn remove_one(&self, sequence: u64) -> Result<bool> {
        let link = &self.link;
        let mut effort = self.effort();
        let removed = link.ask(&mut effort, |patience| link.delete(sequence, patience));
        removed.await
    }
}
