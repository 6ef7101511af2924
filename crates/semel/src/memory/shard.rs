//! One shard: a hash table of records, and a heap that says which expires next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hashbrown::HashTable;
use tokio::sync::Notify;

use super::usage::{Local, Usage};
use crate::record::{Record, State};
use crate::store::Fence;
use crate::{Identity, IdentityDigest, Timestamp};

/// Those who wait for a record to change, where anybody does.
pub(super) type Waiters = Option<Arc<Notify>>;

/// One record with its name. The digest is in here too: looking up does not follow the identity.
#[repr(C)]
pub(super) struct Cell {
    digest: IdentityDigest,
    pub(super) record: Record,
    pub(super) identity: Identity,
    pub(super) waiters: Waiters,
    // The heap's entry that counts for this cell; `MAX` for none. Entries for later are stale.
    queued_at: Timestamp,
}

impl Cell {
    pub(super) fn new(identity: Identity, record: Record) -> Self {
        Self {
            digest: *identity.digest(),
            identity,
            record,
            waiters: None,
            queued_at: Timestamp::MAX,
        }
    }

    // What the cell holds, in bytes, with a fixed overhead for table, heap and allocator.
    fn bytes(&self) -> usize {
        const OVERHEAD: usize = 160;
        size_of::<Self>() + OVERHEAD + self.identity.text_len() + variable_bytes(&self.record)
    }
}

fn variable_bytes(record: &Record) -> usize {
    let outcome = match &record.state {
        State::Completed(outcome) => outcome.as_bytes().len(),
        _ => 0,
    };
    outcome + record.progress.as_bytes().len() + record.note.as_text().len()
}

/// The fences of one shard. Each shard has numbers of its own, by what is left when they are divided
/// by the number of shards: so no two identities get the same fence, and shards need not meet.
pub(super) struct Fences {
    highest: Fence,
    shard: u64,
    shards: u64,
}

impl Fences {
    /// The fence below the next one: above all that this shard gave out, and not below the clock's
    /// microseconds.
    pub(super) fn floor(&self, now: Timestamp) -> Fence {
        let least = (self.highest.0 + 1).max(now.as_micros());
        let behind = (least + self.shards - self.shard) % self.shards;
        let ahead = (self.shards - behind) % self.shards;
        Fence(least + ahead - 1)
    }

    pub(super) fn gave(&mut self, fence: Fence) {
        self.highest = self.highest.max(fence);
    }
}

pub(super) struct Shard {
    // Cells lie in the table: one line of memory less to wait for than behind a pointer. It has to
    // be small, since it is moved when it grows; there are up to 256 of them.
    table: HashTable<Cell>,
    // (purge time, hash): which record to look at next. A record that lives longer than its entry
    // says is queued again when the entry comes up.
    expiry: BinaryHeap<Reverse<(Timestamp, u64)>>,
    local: Local,
    pub(super) fences: Fences,
}

// A digest is uniform already; the shard was chosen by its first bytes.
fn hash_of(digest: &IdentityDigest) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.as_bytes()[8..16]);
    u64::from_be_bytes(bytes)
}

impl Shard {
    /// An empty one, with its number among so many.
    pub(super) fn new(shard: usize, shards: usize) -> Self {
        Self {
            table: HashTable::new(),
            expiry: BinaryHeap::new(),
            local: Local::default(),
            fences: Fences {
                highest: Fence::default(),
                shard: shard as u64,
                shards: shards as u64,
            },
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.table.iter()
    }

    pub(super) fn find(&mut self, digest: &IdentityDigest) -> Option<&mut Cell> {
        self.table
            .find_mut(hash_of(digest), |cell| cell.digest == *digest)
    }

    /// Adds a cell that is not there yet.
    pub(super) fn insert(&mut self, cell: Cell, usage: &Usage) {
        usage.add(&mut self.local, cell.bytes());
        let hash = hash_of(&cell.digest);
        self.table
            .insert_unique(hash, cell, |cell| hash_of(&cell.digest));
    }

    /// Lets `step` see the record and write a new one; `None` where there is no record. Who waited
    /// for the old one is handed out, to be woken without the lock.
    pub(super) fn update<T>(
        &mut self,
        digest: &IdentityDigest,
        usage: &Usage,
        step: impl FnOnce(&Record) -> (T, Option<Record>),
    ) -> Option<(T, Waiters)> {
        let hash = hash_of(digest);
        let cell = self.table.find_mut(hash, |cell| cell.digest == *digest)?;
        let (answer, next) = step(&cell.record);
        let Some(next) = next else {
            return Some((answer, None));
        };
        let (before, after) = (variable_bytes(&cell.record), variable_bytes(&next));
        if before != after {
            usage.resize(&mut self.local, before, after);
        }
        let changed = cell.record.token.fence != next.token.fence || next.state != State::InFlight;
        cell.record = next;
        // Also where an entry for later is there: a record that was released, claimed again and
        // completed may go earlier than the release said.
        if cell.record.purge_at < cell.queued_at {
            cell.queued_at = cell.record.purge_at;
            self.expiry.push(Reverse((cell.queued_at, hash)));
        }
        let waiters = if changed { cell.waiters.take() } else { None };
        Some((answer, waiters))
    }

    /// Counts everything, however little it is.
    pub(super) fn hand_on(&mut self, usage: &Usage) {
        usage.hand_on(&mut self.local);
    }

    /// Removes up to `limit` purgeable records, and hands them out to be freed without the lock.
    pub(super) fn purge(&mut self, now: Timestamp, limit: usize, usage: &Usage) -> Vec<Cell> {
        let mut expired = Vec::new();
        while expired.len() < limit
            && let Some(&Reverse((at, hash))) = self.expiry.peek()
            && at <= now
        {
            self.expiry.pop();
            // Should two records share all 64 bits, each has an entry, and both come up.
            let Ok(found) = self.table.find_entry(hash, |cell| {
                hash_of(&cell.digest) == hash && cell.queued_at == at
            }) else {
                continue;
            };
            if found.get().record.is_purgeable(now) {
                let cell = found.remove().0;
                usage.remove(&mut self.local, cell.bytes());
                expired.push(cell);
                continue;
            }
            let cell = found.into_mut();
            // Claimed again since: in flight records are queued when they settle.
            cell.queued_at = cell.record.purge_at;
            if cell.queued_at != Timestamp::MAX {
                self.expiry.push(Reverse((cell.queued_at, hash)));
            }
        }
        if expired.len() > 32 && self.expiry.len() * 4 < self.expiry.capacity() {
            self.expiry.shrink_to(self.expiry.len() * 2);
        }
        if expired.len() > 32 && self.table.len() * 8 < self.table.capacity() {
            let twice = self.table.len() * 2;
            self.table.shrink_to(twice, |cell| hash_of(&cell.digest));
        }
        expired
    }

    /// Removes everything, and tells who waited.
    pub(super) fn clear(&mut self, usage: &Usage) -> Vec<Arc<Notify>> {
        self.expiry = BinaryHeap::new();
        std::mem::take(&mut self.table)
            .into_iter()
            .filter_map(|mut cell| {
                usage.remove(&mut self.local, cell.bytes());
                cell.waiters.take()
            })
            .collect()
    }
}
