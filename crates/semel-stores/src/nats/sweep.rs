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
    of: (u64, u64),
}

/// What is read.
#[derive(Clone, Copy)]
enum Part {
    /// A stretch that was read before, up to here.
    Known(u64),
    /// Some of what was not.
    Tail,
}

/// What came of reading a stretch.
struct Swept {
    /// When the earliest of what was read and stays may go.
    due: Timestamp,
    /// Read up to here.
    end: u64,
    /// The bound was reached before the stretch's end.
    stopped: bool,
    /// There is nothing after it.
    over: bool,
}

impl NatsStore {
    pub(super) async fn sweep(&self, limit: usize) -> Result<Purged> {
        let mut purged = Purged {
            removed: 0,
            more: false,
        };
        let mut effort = self.effort();
        let base = self.shared.base(&mut effort).await?;
        let of = (base, self.shared.link.losses());
        let mut sweep = self.shared.sweep.lock().await;
        if sweep.of != of {
            *sweep = Sweep {
                of,
                ..Sweep::default()
            };
        }
        let mut pass = Pass::new(sweep.tail.max(1));
        let now = self.shared.clock.now();
        let mut at = 0;
        while let Some(stretch) = sweep.known.get(at).copied() {
            if stretch.due > now {
                at += 1;
                continue;
            }
            let part = Part::Known(stretch.end);
            let swept = self.stretch(stretch.first, part, &mut pass, limit, now, &mut purged);
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
        loop {
            let first = sweep.tail.max(1);
            let swept = self.stretch(first, Part::Tail, &mut pass, limit, now, &mut purged);
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
            if swept.over {
                return Ok(purged);
            }
        }
    }

    /// Reads a part of the bucket, and removes what is past its retention, no more than `limit` in
    /// all, and what was replaced.
    async fn stretch(
        &self,
        first: u64,
        part: Part,
        pass: &mut Pass,
        limit: usize,
        now: Timestamp,
        purged: &mut Purged,
    ) -> Result<Swept> {
        let mut scan = Scan::new(&self.shared, self.effort(), first);
        let swept = self.read_part(&mut scan, part, pass, limit, now, purged);
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
        now: Timestamp,
        purged: &mut Purged,
    ) -> Result<Swept> {
        // A part of the tail is as long as is worth remembering by itself.
        const LONGEST: usize = 1_024;
        let mut swept = Swept {
            due: Timestamp::MAX,
            end: scan.next,
            stopped: false,
            over: false,
        };
        let mut read = 0;
        loop {
            let batch = scan.batch().await?;
            swept.over = batch.is_empty();
            let mut removals = Removals::default();
            for met in batch {
                match part {
                    Part::Known(end) if met.sequence >= end => break,
                    // What came since the purge began is the next one's: others write on and on.
                    Part::Tail if met.stored > now => {
                        swept.over = true;
                        break;
                    }
                    _ => {}
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
                if matches!(part, Part::Tail) {
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
            if let Part::Known(end) = part
                && (swept.over || scan.next >= end)
            {
                swept.end = end;
                return Ok(swept);
            }
            if swept.over || read >= LONGEST {
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
