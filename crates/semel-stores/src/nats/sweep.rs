//! Removing what is past its retention.
//!
//! A removal names the message's sequence, not its key. A record that a claim has just changed lies
//! under another sequence, so removing the old one does nothing: no claim is ever lost to a purge,
//! in whichever order the server takes the two. Nothing is left behind under the key: the next
//! claim creates it as if it had never been.
//!
//! Messages do not change. What was read once need not be read again before the earliest of its
//! records ends: a handle remembers that instant for each stretch of the bucket, and a purge reads
//! only stretches that are due, and what came since.

use futures_util::{StreamExt as _, stream};
use semel::Timestamp;
use semel::store::{Purged, Result};

use super::NatsStore;
use super::effort::Effort;
use super::link::Trouble;
use super::scan::{Held, Scan};
use super::shared::unclassified;

/// Removals asked for at the same time.
const ABREAST: usize = 32;

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
    /// Which stream it was: one made anew begins anew.
    base: u64,
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
        let mut sweep = self.shared.sweep.lock().await;
        if sweep.base != base {
            *sweep = Sweep {
                base,
                ..Sweep::default()
            };
        }
        let now = self.shared.clock.now();
        let mut at = 0;
        while let Some(stretch) = sweep.known.get(at).copied() {
            if stretch.due > now {
                at += 1;
                continue;
            }
            let swept = self
                .stretch(stretch.first, Some(stretch.end), limit, now, &mut purged)
                .await?;
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
            let swept = self.stretch(first, None, limit, now, &mut purged).await?;
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

    /// Reads a stretch, or a part of the bucket's tail, and removes what is past its retention, no
    /// more than `limit` in all.
    async fn stretch(
        &self,
        first: u64,
        end: Option<u64>,
        limit: usize,
        now: Timestamp,
        purged: &mut Purged,
    ) -> Result<Swept> {
        let mut scan = Scan::new(&self.shared, self.effort(), first);
        let swept = self.read_stretch(&mut scan, end, limit, now, purged).await;
        scan.end().await;
        swept
    }

    async fn read_stretch(
        &self,
        scan: &mut Scan<'_>,
        end: Option<u64>,
        limit: usize,
        now: Timestamp,
        purged: &mut Purged,
    ) -> Result<Swept> {
        // A part of the tail is as long as is worth remembering by itself.
        const PART: usize = 1_024;
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
            let (mut past, mut marks) = (Vec::new(), Vec::new());
            for met in batch {
                if end.is_some_and(|end| met.sequence >= end) {
                    break;
                }
                // What came since the purge began is the next one's: others write on and on.
                if end.is_none() && met.stored > now {
                    swept.over = true;
                    break;
                }
                match met.held {
                    Held::Record(row) if now >= row.entry.record.purge_at => {
                        if purged.removed + past.len() >= limit {
                            self.remove(&past, purged).await?;
                            past.clear();
                            if purged.removed >= limit {
                                swept.stopped = true;
                                return Ok(swept);
                            }
                        }
                        past.push(met.sequence);
                    }
                    Held::Record(row) => swept.due = swept.due.min(row.entry.record.purge_at),
                    Held::Mark => marks.push(met.sequence),
                    // Not known to be past anything: it stays.
                    Held::Damaged(_) => {}
                }
                swept.end = met.sequence + 1;
                read += 1;
            }
            self.remove(&past, purged).await?;
            let mut uncounted = *purged;
            self.remove(&marks, &mut uncounted).await?;
            if let Some(end) = end.filter(|end| swept.over || scan.next >= *end) {
                swept.end = end;
                return Ok(swept);
            }
            if swept.over || read >= PART {
                return Ok(swept);
            }
        }
    }

    async fn remove(&self, sequences: &[u64], purged: &mut Purged) -> Result<()> {
        let removals = sequences
            .iter()
            .copied()
            .map(|sequence| self.remove_one(sequence));
        let mut removals = stream::iter(removals).buffer_unordered(ABREAST);
        while let Some(removed) = removals.next().await {
            purged.removed += usize::from(removed?);
        }
        Ok(())
    }

    async fn remove_one(&self, sequence: u64) -> Result<bool> {
        let link = &self.shared.link;
        let mut effort: Effort = self.effort();
        loop {
            link.connected(effort.until).await?;
            match link.delete(sequence, effort.patience()).await {
                Ok(removed) => return Ok(removed),
                Err(Trouble::Nobody(e) | Trouble::Silence(e)) => effort.pause(e).await?,
                Err(trouble) => return Err(unclassified(trouble)),
            }
        }
    }
}

impl Sweep {
    /// Leaves out what holds no record that ends, and joins small neighbours.
    fn tidy(&mut self) {
        self.known
            .retain(|s| s.due < Timestamp::MAX && s.first < s.end);
    }
}
