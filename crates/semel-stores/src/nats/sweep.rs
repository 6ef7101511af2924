//! Finding what is past its retention, and what was replaced; `removal` says how it goes.
//!
//! Messages do not change. What was read once need not be read again before the earliest of its
//! records ends: a handle remembers that instant for each stretch of the bucket, and a purge reads
//! only stretches that are due, and what came since. What a message replaced is removed when the
//! message is met for the first time.
//!
//! The bucket is read from its first message to its last, so that of one key the older ones are met,
//! and removed, before the younger.

use semel::Timestamp;
use semel::store::{Purged, Result};

use super::clock::Mark;
use super::link::timestamp;
use super::removal::Removals;
use super::scan::Scan;
use super::shared::Shared;

/// Messages from `first` on and before `end`; none of them may go before `due`.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    first: u64,
    end: u64,
    due: Timestamp,
}

/// What this handle has read, in order. Stretches without a record that ends are left out.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    known: Vec<Stretch>,
    /// From here on nothing was read.
    tail: u64,
    /// Which stream it was, and how often the connection was lost before: one made anew begins
    /// anew, and a server that lost its power may have gone back.
    of: (Timestamp, u64),
}

/// What is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Some of what was read before.
    Known,
    /// Some of what was not.
    Tail,
}

/// One purge.
struct Purge {
    limit: usize,
    purged: Purged,
    /// By it nothing is removed early, whatever other steps read meanwhile.
    time: Mark,
    /// The messages that it met for the first time, ascending; they begin at `from`.
    passed: Vec<u64>,
    from: u64,
}

impl Shared {
    pub(super) async fn sweep(&self, limit: usize) -> Result<Purged> {
        let mut sweep = self.sweep.lock().await;
        let mut effort = self.effort();
        let info = self.refresh(&mut effort).await?;
        let time = self.time(&mut effort).await?;
        // What comes after the purge began is the next one's: others write on and on.
        let end = info.state.last_sequence + 1;
        let of = (timestamp(info.created), self.link.losses());
        if sweep.of != of || end < sweep.tail {
            *sweep = Sweep {
                of,
                ..Sweep::default()
            };
        }
        let purged = Purged {
            removed: 0,
            more: false,
        };
        let mut purge = Purge {
            limit,
            purged,
            time,
            passed: Vec::new(),
            from: sweep.tail.max(1),
        };
        let mut at = 0;
        while let Some(stretch) = sweep.known.get(at).copied() {
            at += 1;
            if stretch.due > time.now() {
                continue;
            }
            let read = self.stretch(stretch.first, stretch.end, Part::Known, &mut purge);
            let read = read.await?;
            if purge.purged.more {
                // What was not read is still due; what was read and stays is known by itself.
                sweep.known[at - 1].first = read.end;
                sweep.known.insert(at - 1, read);
                break;
            }
            sweep.known[at - 1] = read;
        }
        while !purge.purged.more && sweep.tail < end {
            let first = sweep.tail.max(1);
            let read = self.stretch(first, end, Part::Tail, &mut purge).await?;
            sweep.tail = read.end;
            sweep.known.push(read);
        }
        sweep.tidy();
        Ok(purge.purged)
    }

    /// Reads a part of the bucket, removes what is past its retention and what was replaced, and says
    /// how far it came.
    async fn stretch(
        &self,
        first: u64,
        end: u64,
        part: Part,
        purge: &mut Purge,
    ) -> Result<Stretch> {
        let mut scan = Scan::new(self, self.effort(), first, end);
        let read = self.read_part(&mut scan, first, part, purge).await;
        scan.end().await;
        read
    }

    async fn read_part(
        &self,
        scan: &mut Scan<'_>,
        first: u64,
        part: Part,
        purge: &mut Purge,
    ) -> Result<Stretch> {
        // A part of the tail is as long as is worth remembering by itself.
        const LONGEST: usize = 1_024;
        let mut messages = 0;
        let mut read = Stretch {
            first,
            end: first,
            due: Timestamp::MAX,
        };
        loop {
            let batch = scan.batch().await?;
            let now = purge.time.now();
            let mut removals = Removals::default();
            for met in batch {
                let purge_at = match &met.row {
                    Ok(Some(row)) => row.entry.record.purge_at,
                    // Not known to be past anything: what is damaged stays.
                    Ok(None) | Err(_) => Timestamp::MAX,
                };
                let ended = now >= purge_at;
                if ended && purge.purged.removed + removals.records >= purge.limit {
                    purge.purged.removed += self.remove(std::mem::take(&mut removals)).await?;
                    if purge.purged.removed >= purge.limit {
                        purge.purged.more = true;
                        return Ok(read);
                    }
                }
                if part == Part::Tail {
                    removals.replaced_by(&met, (purge.from, &purge.passed));
                    purge.passed.push(met.sequence);
                }
                if ended || matches!(met.row, Ok(None)) {
                    removals.add(&met, ended);
                } else {
                    read.due = read.due.min(purge_at);
                }
                read.end = met.sequence + 1;
                messages += 1;
            }
            purge.purged.removed += self.remove(removals).await?;
            // Also past what was removed, or is not ours.
            read.end = scan.reached();
            if scan.is_over() || (part == Part::Tail && messages >= LONGEST) {
                return Ok(read);
            }
        }
    }
}

impl Sweep {
    /// Leaves out what holds no record that ends.
    fn tidy(&mut self) {
        self.known
            .retain(|s| s.due < Timestamp::MAX && s.first < s.end);
    }
}
