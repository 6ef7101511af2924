//! A group: steps that are decided one after the other and committed together.

use std::collections::HashMap;
use std::collections::hash_map;
use std::ops::ControlFlow;
use std::sync::Arc;

use semel::record::{self, Change, Decision};
use semel::store::{Claim, ClaimRequest, Entry, Fence, Fenced, Label, Purged, Result};
use semel::{IdentityDigest, StoreError, StoreErrorKind, Timestamp};

use super::engine::{Batch, Engine};
use super::keys::{self, ExpiryKey};
use super::shared::{State, read_settled};
use super::step::{Answer, Step};

/// Steps decided against what is on disk and what earlier steps of the group wrote.
#[derive(Default)]
pub(super) struct Group {
    pub(super) answers: Vec<Answer>,
    touched: Looked,
    purged: Vec<(ExpiryKey, IdentityDigest)>,
    // Whether to write a mark although no record changed.
    write: bool,
    /// Roughly how many bytes the changed records have.
    pub(super) bytes: usize,
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

/// What a group decides against.
pub(super) struct View<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) state: &'a State,
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

    /// Decides one step. Its answer waits for the group.
    pub(super) fn decide(&mut self, step: Step, view: &View<'_>, course: &mut Course) {
        let answer = match step {
            Step::Claim {
                label,
                request,
                absent,
                done,
            } => {
                self.expect(&label.digest, absent, view, course);
                Answer::Claim(done, self.claim(*label, &request, view, course))
            }
            Step::Fenced {
                digest,
                change,
                done,
            } => Answer::Fenced(done, self.fenced(&digest, &change, view, course)),
            Step::Get { digest, done } => {
                let found = self.find(&digest, view).map(|entry| {
                    entry
                        .filter(|e| !e.record.is_purgeable(course.now))
                        .map(|e| (*e).clone())
                });
                Answer::Get(done, Box::new(found))
            }
            Step::Purge { limit, done } => Answer::Purge(done, self.purge(limit, view, course)),
            Step::Sync { write, done } => {
                self.write |= write;
                Answer::Unit(done)
            }
            // Done by the committer between groups.
            Step::Clear { done } => Answer::Unit(done),
        };
        self.answers.push(answer);
    }

    fn claim(
        &mut self,
        label: Label,
        request: &ClaimRequest,
        view: &View<'_>,
        course: &mut Course,
    ) -> Result<Claim> {
        let current = self.find(&label.digest, view)?;
        let record = current.as_ref().map(|e| &e.record);
        let Decision { claim, write } = record::claim(record, request, course.now, course.fence);
        if let Some(record) = write {
            if let Claim::Acquired(acquired) = &claim {
                if let Some(full) = &course.full {
                    return Err(StoreError::new(StoreErrorKind::Capacity, &**full));
                }
                course.fence = course.fence.max(acquired.token.fence);
            }
            self.change(label.digest, current, Entry { label, record });
        }
        Ok(claim)
    }

    fn fenced(
        &mut self,
        digest: &IdentityDigest,
        change: &Change,
        view: &View<'_>,
        course: &mut Course,
    ) -> Result<Fenced> {
        let current = self.find(digest, view)?;
        let record = current.as_ref().map(|e| &e.record);
        match change.decide(record, course.now, course.fence) {
            Err(refusal) => Ok(refusal.into()),
            Ok(None) => Ok(Fenced::Applied),
            Ok(Some(record)) => {
                course.fence = course.fence.max(record.token.fence);
                if let Some(label) = current.as_ref().map(|e| e.label.clone()) {
                    self.change(*digest, current, Entry { label, record });
                }
                Ok(Fenced::Applied)
            }
        }
    }

    // Bounded by `limit`. The index is written in the same batches as the records, so that it can
    // be trusted without reading each record; identities that this group changed are left to the
    // next purge, since for them the engine's index is not the latest.
    fn purge(&mut self, limit: usize, view: &View<'_>, course: &mut Course) -> Result<Purged> {
        let end = keys::expiry_at(course.now.after(std::time::Duration::from_micros(1)));
        let (mut removed, mut more) = (0, false);
        let start = course.purge_from;
        let mut from = start;
        let found = &mut self.purged;
        let touched = &self.touched;
        view.engine.scan(&start, &end, &mut |key, _| {
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
                found.push((key, digest));
                removed += 1;
            }
            ControlFlow::Continue(())
        })?;
        course.purge_from = if more {
            from
        } else {
            course.purge_from.max(end)
        };
        Ok(Purged { removed, more })
    }

    // Most claims are on new identities, and the caller looked already. Its answer still holds if no
    // group came in between, or only the latest, and that did not touch the identity.
    fn expect(
        &mut self,
        digest: &IdentityDigest,
        absent: Option<u64>,
        view: &View<'_>,
        course: &Course,
    ) {
        let Some(after) = absent else { return };
        let groups = view.state.groups;
        if after == groups || (after + 1 == groups && !course.latest.contains_key(digest)) {
            self.touched.entry(*digest).or_insert(Touched {
                before: None,
                after: None,
                changed: false,
            });
        }
    }

    fn find(&mut self, digest: &IdentityDigest, view: &View<'_>) -> Result<Option<Arc<Entry>>> {
        let slot = match self.touched.entry(*digest) {
            hash_map::Entry::Occupied(slot) => return Ok(slot.get().after.clone()),
            hash_map::Entry::Vacant(slot) => slot,
        };
        let found = match view.state.open.get(digest) {
            Some(entry) => Some(entry.clone()),
            None => read_settled(view.engine, digest)?,
        };
        slot.insert(Touched {
            before: found.clone(),
            after: found.clone(),
            changed: false,
        });
        Ok(found)
    }

    fn change(&mut self, digest: IdentityDigest, before: Option<Arc<Entry>>, after: Entry) {
        self.bytes += 512 + outcome_len(&after);
        let touched = self.touched.entry(digest).or_insert(Touched {
            before,
            after: None,
            changed: false,
        });
        touched.after = Some(Arc::new(after));
        touched.changed = true;
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

    /// What it touched, once it is on disk.
    pub(super) fn into_looked(self) -> (Looked, Vec<Answer>) {
        (self.touched, self.answers)
    }

    /// The puts and deletes that take the engine from before the group to after it. Each key
    /// occurs once, whatever happened in between.
    pub(super) fn batch(&self, course: &mut Course) -> Batch {
        let mut batch = Batch::default();
        for (digest, touched) in self.touched.iter().filter(|(_, t)| t.changed) {
            let before = touched.before.as_deref();
            let was_open = before.map(|e| keys::is_open(e.record.state.kind()));
            let Some(after) = touched.after.as_deref() else {
                continue;
            };
            let open = keys::is_open(after.record.state.kind());
            let expiry = (!open).then(|| keys::expiry(&after.record, digest));
            if let (Some(before), Some(false)) = (before, was_open) {
                let old = keys::expiry(&before.record, digest);
                if expiry != Some(old) {
                    batch.delete(old);
                }
                if open {
                    batch.delete(keys::settled(digest));
                }
            }
            if was_open == Some(true) && !open {
                batch.delete(keys::open(digest));
            }
            if let Some(expiry) = expiry {
                course.purge_from = course.purge_from.min(expiry);
                batch.put(expiry, Vec::new());
                batch.put(keys::settled(digest), after.to_bytes());
            } else {
                batch.put(keys::open(digest), after.to_bytes());
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

fn outcome_len(entry: &Entry) -> usize {
    match &entry.record.state {
        semel::State::Completed(outcome) => outcome.as_bytes().len(),
        _ => 0,
    }
}
