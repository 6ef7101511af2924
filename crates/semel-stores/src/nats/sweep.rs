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

use super::NatsStore;
use super::link::timestamp;
use super::removal::{Pass, Removals};
use super::scan::{Held, Scan};

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

/// What is read, up to a sequence.
#[derive(Clone, Copy)]
enum Part {
    /// A stretch that was read before.
    Known(u64),
    /// Some of what was not. What comes after the purge began is the next one's: others write on and on.
    Tail(u64),
}

/// What came of reading a stretch.
struct Swept {
    /// When the earliest of what was read and stays may go.
    due: Timestamp,
    /// Read up to here.
    end: u64,
    /// The bound was reached before the stretch's end.
    stopped: bool,
}

impl NatsStore {
    pub(super) async fn sweep(&self, limit: usize) -> Result<Purged> {
        let mut purged = Purged {
            removed: 0,
            more: false,
        };
        let mut effort = self.effort();
        let info = self.shared.refresh(&mut effort).await?;
        let end = info.state.last_sequence + 1;
        let of = (timestamp(info.created), self.shared.link.losses());
        let mut sweep = self.shared.sweep.lock().await;
        if sweep.of != of {
            *sweep = Sweep {
                of,
                ..Sweep::default()
            };
        }
        let mut pass = Pass::new(sweep.tail.max(1));
        let mut at = 0;
        while let Some(stretch) = sweep.known.get(at).copied() {
            if stretch.due > self.shared.clock.now() {
                at += 1;
                continue;
            }
            let part = Part::Known(stretch.end);
            let swept = self.stretch(stretch.first, part, &mut pass, limit, &mut purged);
            let swept = swept.await?;
            if swept.stopped {
                // What was not read is still due; what was read and stays is known by itself.
                sweep.known[at].first = swept.end;
                sweep.known.insert(
                    at,
                    Stretch {
                        first: stretch.first,
                        end: swept.end,
                        due: swept.due,
                    },
                );
                sweep.tidy();
                purged.more = true;
                return Ok(purged);
            }
            sweep.known[at].due = swept.due;
            at += 1;
        }
        while sweep.tail < end {
            let first = sweep.tail.max(1);
            let swept = self.stretch(first, Part::Tail(end), &mut pass, limit, &mut purged);
            let swept = swept.await?;
            sweep.tail = swept.end;
            sweep.known.push(Stretch {
                first,
                end: swept.end,
                due: swept.due,
            });
            sweep.tidy();
            if swept.stopped {
                purged.more = true;
                return Ok(purged);
            }
        }
        Ok(purged)
    }

    /// Reads a part of the bucket, and removes what is past its retention, no more than `limit` in
    /// all, and what was replaced.
    async fn stretch(
        &self,
        first: u64,
        part: Part,
        pass: &mut Pass,
        limit: usize,
        purged: &mut Purged,
    ) -> Result<Swept> {
        let mut scan = Scan::new(&self.shared, self.effort(), first);
        let swept = self.read_part(&mut scan, part, pass, limit, purged);
        let swept = swept.await;
        scan.end().await;
        swept
    }

    async fn read_part(
        &self,
        scan: &mut Scan<'_>,
        part: Part,
        pass: &mut Pass,
        limit: usize,
        purged: &mut Purged,
    ) -> Result<Swept> {
        // A part of the tail is as long as is worth remembering by itself.
        const LONGEST: usize = 1_024;
        let (Part::Known(end) | Part::Tail(end)) = part;
        let mut swept = Swept {
            due: Timestamp::MAX,
            end: scan.next,
            stopped: false,
        };
        let mut read = 0;
        loop {
            let batch = scan.batch().await?;
            // As its consumer corrected it: what is removed does not come back.
            let now = self.shared.clock.now();
            let over = batch.is_empty() || scan.next >= end;
            let mut removals = Removals::default();
            for met in batch {
                if met.sequence >= end {
                    break;
                }
                let purge_at = match &met.held {
                    Held::Record(row) => row.entry.record.purge_at,
                    // Not known to be past anything: what is damaged stays.
                    Held::Mark | Held::Damaged(_) => Timestamp::MAX,
                };
                let ended = now >= purge_at;
                if ended && purged.removed + removals.records >= limit {
                    purged.removed += self.remove(std::mem::take(&mut removals)).await?;
                    if purged.removed >= limit {
                        swept.stopped = true;
                        return Ok(swept);
                    }
                }
                if matches!(part, Part::Tail(_)) {
                    removals.replaced_by(&met, pass);
                    pass.meets(&met);
                }
                if ended || matches!(met.held, Held::Mark) {
                    removals.add(&met, ended);
                } else {
                    swept.due = swept.due.min(purge_at);
                }
                swept.end = met.sequence + 1;
                read += 1;
            }
            purged.removed += self.remove(removals).await?;
            if over {
                swept.end = end;
                return Ok(swept);
            }
            if matches!(part, Part::Tail(_)) && read >= LONGEST {
                return Ok(swept);
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
