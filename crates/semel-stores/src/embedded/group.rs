//! A group: steps that are decided one after the other and committed together.

use std::collections::HashMap;
use std::collections::hash_map;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use semel::record::{self, Change, Decision};
use semel::store::{Claim, ClaimRequest, Entry, Fence, Fenced, Label, Purged, Result};
use semel::{IdentityDigest, StoreError, StoreErrorKind, Timestamp};

use super::engine::{Batch, Engine};
use super::keys::{self, ExpiryKey};
use super::shared::{State, read_settled};

/// What the steps of a group change.
#[derive(Default)]
pub(super) struct Group {
    pub(super) touched: Looked,
    purged: Vec<(ExpiryKey, IdentityDigest)>,
    /// Whether to write a mark although no record changed.
    pub(super) write: bool,
}

pub(super) struct Touched {
    before: Option<Arc<Entry>>,
    after: Option<Arc<Entry>>,
    changed: bool,
}

/// What lives longer than a group, and changes with each.
pub(super) struct Course {
    /// The highest fence given out.
    pub(super) fence: Fence,
    /// The latest instant.
    pub(super) now: Timestamp,
    /// No settled record expires below this key: what was purged leaves traces that a scan from
    /// the start would have to cross each time.
    pub(super) purge_from: ExpiryKey,
    /// Why new claims are refused.
    pub(super) full: Option<Arc<str>>,
    /// What the latest group that was put on disk touched.
    pub(super) latest: Looked,
}

/// Identities that were looked up.
pub(super) type Looked = HashMap<IdentityDigest, Touched>;

/// A group whose steps are being decided, against what is on disk and what earlier ones of them wrote.
pub(super) struct Deciding<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) state: &'a State,
    pub(super) course: &'a mut Course,
    pub(super) group: Group,
}

impl Deciding<'_> {
    /// Claims. The caller may have found no record after `absent` groups, which spares a look.
    pub(super) fn claim(
        &mut self,
        label: Label,
        request: &ClaimRequest,
        absent: Option<u64>,
    ) -> Result<Claim> {
        self.expect(&label.digest, absent);
        let current = self.find(&label.digest)?;
        let course = &mut *self.course;
        let record = current.as_ref().map(|e| &e.record);
        let Decision { claim, write } = record::claim(record, request, course.now, course.fence);
        if let Some(record) = write {
            if let Claim::Acquired(acquired) = &claim {
                if let Some(full) = &course.full {
                    return Err(StoreError::new(StoreErrorKind::Capacity, &**full));
                }
                course.fence = course.fence.max(acquired.token.fence);
            }
            self.put(Entry { label, record });
        }
        Ok(claim)
    }

    pub(super) fn change(&mut self, digest: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let current = self.find(digest)?;
        let course = &mut *self.course;
        let record = current.as_ref().map(|e| &e.record);
        let record = match change.decide(record, course.now, course.fence) {
            Ok(record) => record,
            Err(refusal) => return Ok(refusal.into()),
        };
        if let (Some(current), Some(record)) = (current, record) {
            course.fence = course.fence.max(record.token.fence);
            let label = current.label.clone();
            self.put(Entry { label, record });
        }
        Ok(Fenced::Applied)
    }

    pub(super) fn get(&mut self, digest: &IdentityDigest) -> Result<Option<Entry>> {
        let found = self.find(digest)?;
        let found = found.filter(|entry| !entry.record.is_purgeable(self.course.now));
        Ok(found.map(Arc::unwrap_or_clone))
    }

    pub(super) fn purge(&mut self, limit: usize) -> Result<Purged> {
        let after_now = self.course.now.after(Duration::from_micros(1));
        self.purge_before(keys::expiry_at(after_now), limit)
    }

    /// Removes what is open, and at most `limit` of the settled records, whenever they expire. For tests.
    pub(super) fn clear(&mut self, limit: usize) -> Result<Purged> {
        for (digest, entry) in &self.state.open {
            let touched = self.group.touched.entry(*digest);
            touched.or_insert_with(|| Touched::found(Some(entry.clone())));
        }
        for touched in self.group.touched.values_mut() {
            touched.after = None;
            touched.changed = true;
        }
        self.purge_before(keys::NO_EXPIRY, limit)
    }

    // Bounded by `limit`. The index is written in the same batches as the records, so that it can
    // be trusted without reading each record; identities that this group changed are left to the
    // next purge, since for them the engine's index is not the latest.
    fn purge_before(&mut self, end: ExpiryKey, limit: usize) -> Result<Purged> {
        let (mut removed, mut more) = (0, false);
        // After a clear nothing is left even behind `end`.
        let start = self.course.purge_from.min(end);
        let mut from = self.course.purge_from.max(end);
        let Group {
            purged, touched, ..
        } = &mut self.group;
        self.engine.scan(&start, &end, &mut |key, _| {
            let (Ok(key), Some(digest)) = (ExpiryKey::try_from(key), keys::expiring_digest(key))
            else {
                return ControlFlow::Continue(());
            };
            if removed == limit {
                more = true;
                from = key;
                return ControlFlow::Break(());
            }
            if !touched.get(&digest).is_some_and(|t| t.changed) {
                purged.push((key, digest));
                removed += 1;
            }
            ControlFlow::Continue(())
        })?;
        self.course.purge_from = from;
        Ok(Purged { removed, more })
    }

    // Most claims are on new identities, and the caller looked already. Its answer still holds if no
    // group came in between, or only the latest, and that did not touch the identity.
    fn expect(&mut self, digest: &IdentityDigest, absent: Option<u64>) {
        let Some(after) = absent else { return };
        let (groups, latest) = (self.state.groups, &self.course.latest);
        if after == groups || (after + 1 == groups && !latest.contains_key(digest)) {
            let touched = self.group.touched.entry(*digest);
            touched.or_insert_with(|| Touched::found(None));
        }
    }

    fn find(&mut self, digest: &IdentityDigest) -> Result<Option<Arc<Entry>>> {
        let slot = match self.group.touched.entry(*digest) {
            hash_map::Entry::Occupied(slot) => return Ok(slot.get().after.clone()),
            hash_map::Entry::Vacant(slot) => slot,
        };
        let found = match self.state.open.get(digest) {
            Some(entry) => Some(entry.clone()),
            None => read_settled(self.engine, digest)?,
        };
        slot.insert(Touched::found(found.clone()));
        Ok(found)
    }

    // In the place of what was found, or of nothing.
    fn put(&mut self, entry: Entry) {
        let touched = self.group.touched.entry(entry.label.digest);
        let touched = touched.or_insert_with(|| Touched::found(None));
        touched.after = Some(Arc::new(entry));
        touched.changed = true;
    }
}

impl Touched {
    fn found(entry: Option<Arc<Entry>>) -> Self {
        Self {
            before: entry.clone(),
            after: entry,
            changed: false,
        }
    }
}

impl Group {
    /// No steps, and yet a mark with the present instant.
    pub(super) fn of_nothing() -> Self {
        Self {
            write: true,
            ..Self::default()
        }
    }

    /// Whether there is something to put on disk.
    pub(super) fn writes(&self) -> bool {
        self.write || !self.purged.is_empty() || self.touched.values().any(|t| t.changed)
    }

    /// The identities whose records the engine may show before they are on disk.
    pub(super) fn digests(&self) -> impl Iterator<Item = IdentityDigest> + '_ {
        let changed = self.touched.iter().filter(|(_, t)| t.changed);
        let purged = self.purged.iter().map(|(_, digest)| *digest);
        changed.map(|(digest, _)| *digest).chain(purged)
    }

    /// What changed, for those who read without asking the engine.
    pub(super) fn changes(&self) -> Vec<(IdentityDigest, Option<Arc<Entry>>)> {
        self.touched
            .iter()
            .filter(|(_, t)| t.changed)
            .map(|(digest, t)| (*digest, t.after.clone()))
            .collect()
    }

    /// The puts and deletes that take the engine from before the group to after it. Each key
    /// occurs once, whatever happened in between.
    pub(super) fn batch(&self, course: &mut Course) -> Batch {
        let mut batch = Batch::default();
        for (digest, touched) in self.touched.iter().filter(|(_, t)| t.changed) {
            let lies = |entry: &Arc<Entry>| keys::of(&entry.record, digest);
            let (old, old_expiry) = touched.before.as_ref().map(lies).unzip();
            let (new, new_expiry) = touched.after.as_ref().map(lies).unzip();
            if let Some(key) = old.filter(|_| old != new) {
                batch.delete(key);
            }
            if let Some(key) = old_expiry.flatten().filter(|_| old_expiry != new_expiry) {
                batch.delete(key);
            }
            if let (Some(key), Some(after)) = (new, &touched.after) {
                batch.put(key, after.to_bytes());
            }
            if let Some(key) = new_expiry.flatten() {
                course.purge_from = course.purge_from.min(key);
                batch.put(key, Vec::new());
            }
        }
        for (expiry, digest) in &self.purged {
            if !self.touched.get(digest).is_some_and(|t| t.changed) {
                batch.delete(expiry);
                batch.delete(keys::settled(digest));
            }
        }
        batch
    }
}
