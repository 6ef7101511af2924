//! What callers and the committer share: the durable view of open records, which identities have
//! uncommitted steps, and who waits.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use semel::store::{Entry, Result};
use semel::{Clock, IdentityDigest, StoreError, StoreErrorKind, Timestamp};

use super::engine::Engine;
use super::keys;
use crate::common::Waiters;

/// Every record in flight or unknown.
pub(super) type OpenRecords = BTreeMap<IdentityDigest, Arc<Entry>>;

pub(super) struct Shared {
    state: RwLock<State>,
    clock: Box<dyn Clock>,
    // The latest instant shown: a clock that starts behind it stands still until it is past it.
    latest: AtomicU64,
    pub(super) waiters: Arc<Waiters>,
}

pub(super) struct State {
    engine: Result<Arc<dyn Engine>, Refusal>,
    /// As it is on disk.
    pub(super) open: OpenRecords,
    // Whose records the engine may show before they are on disk.
    uncommitted: HashSet<IdentityDigest>,
    /// How many groups were put on disk.
    pub(super) groups: u64,
}

/// Why everything is refused.
#[derive(Clone)]
pub(super) struct Refusal {
    kind: StoreErrorKind,
    reason: Arc<str>,
}

/// What a reader found.
pub(super) enum Seen {
    /// The record is on disk.
    Durable(Arc<Entry>),
    /// There was no record after this many groups.
    Absent(u64),
    /// A step on it is under way: only the committer can tell.
    Uncommitted,
}

impl Shared {
    pub(super) fn new(
        engine: Arc<dyn Engine>,
        open: OpenRecords,
        clock: Box<dyn Clock>,
        latest: Timestamp,
    ) -> Self {
        Self {
            state: RwLock::new(State {
                engine: Ok(engine),
                open,
                uncommitted: HashSet::new(),
                groups: 0,
            }),
            clock,
            latest: AtomicU64::new(latest.as_micros()),
            waiters: Arc::default(),
        }
    }

    /// The present instant; never earlier than one shown or persisted before.
    pub(super) fn now(&self) -> Timestamp {
        let now = self.clock.now().as_micros();
        let before = self.latest.fetch_max(now, Ordering::AcqRel);
        Timestamp::from_micros(now.max(before))
    }

    /// How many groups were put on disk.
    pub(super) fn groups(&self) -> u64 {
        self.state.read().groups
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// The engine, or why everything is refused.
    pub(super) fn engine(&self) -> Result<Arc<dyn Engine>> {
        self.state.read().engine()
    }

    /// Reads one record without waiting for the disk; see the module's documentation for why this
    /// never shows what is not durable.
    pub(super) fn look(&self, digest: &IdentityDigest) -> Result<Seen> {
        let (engine, groups) = {
            let state = self.state.read();
            let engine = state.engine()?;
            if let Some(entry) = state.open.get(digest) {
                return Ok(Seen::Durable(entry.clone()));
            }
            (engine, state.groups)
        };
        let found = read_settled(&*engine, digest)?;
        let state = self.state.read();
        // A failed group stays among the uncommitted until the store is opened again.
        if state.uncommitted.contains(digest) {
            return Ok(Seen::Uncommitted);
        }
        match found {
            Some(entry) => Ok(Seen::Durable(entry)),
            None if state.groups == groups => Ok(Seen::Absent(groups)),
            // Between the two looks the record may have moved from settled to open and back.
            None => Ok(Seen::Uncommitted),
        }
    }

    /// Whether steps on any of these identities are under way.
    pub(super) fn any_uncommitted<'a>(
        &self,
        mut digests: impl Iterator<Item = &'a IdentityDigest>,
    ) -> bool {
        let state = self.state.read();
        !state.uncommitted.is_empty() && digests.any(|d| state.uncommitted.contains(d))
    }

    /// From here on readers of these identities do not trust the engine.
    pub(super) fn begin(&self, digests: impl Iterator<Item = IdentityDigest>) {
        self.state.write().uncommitted.extend(digests);
    }

    /// The group is on disk: shows it, and wakes who waits.
    pub(super) fn finish(&self, changes: &[(IdentityDigest, Option<Arc<Entry>>)]) {
        let mut state = self.state.write();
        state.groups += 1;
        state.uncommitted.clear();
        for (digest, after) in changes {
            match after {
                Some(entry) if keys::is_open(entry.record.state.kind()) => {
                    state.open.insert(*digest, entry.clone());
                }
                _ => {
                    state.open.remove(digest);
                }
            }
        }
        drop(state);
        for (digest, _) in changes {
            self.waiters.wake(digest);
        }
    }

    /// Refuses everything from now on, for this reason, and lets go of the engine.
    pub(super) fn refuse(&self, refusal: Refusal) {
        let engine = std::mem::replace(&mut self.state.write().engine, Err(refusal));
        // Outside the lock: an engine joins its threads when it goes.
        drop(engine);
        self.waiters.wake_all();
    }

    /// Goes on with an engine that was opened again, and what is open in it. Nobody holds the one
    /// before: what was uncommitted there is known now.
    pub(super) fn resume(&self, engine: Arc<dyn Engine>, open: OpenRecords) {
        let mut state = self.state.write();
        state.engine = Ok(engine);
        state.open = open;
        state.uncommitted.clear();
        // Two, so that no look before it counts as one before the latest group.
        state.groups += 2;
    }
}

impl Refusal {
    pub(super) fn new(kind: StoreErrorKind, reason: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            reason: reason.into(),
        }
    }

    pub(super) fn closed() -> Self {
        Self::new(StoreErrorKind::Closed, "the store was closed")
    }

    pub(super) fn error(&self) -> StoreError {
        StoreError::new(self.kind, &*self.reason)
    }
}

impl State {
    pub(super) fn engine(&self) -> Result<Arc<dyn Engine>> {
        self.engine.as_ref().map(Arc::clone).map_err(Refusal::error)
    }
}

/// Reads a settled record from the engine.
pub(super) fn read_settled(
    engine: &dyn Engine,
    digest: &IdentityDigest,
) -> Result<Option<Arc<Entry>>> {
    let Some(bytes) = engine.get(&keys::settled(digest))? else {
        return Ok(None);
    };
    decode(&bytes, digest.as_bytes()).map(|entry| Some(Arc::new(entry)))
}

/// Reads every record under `o`.
pub(super) fn read_open(engine: &dyn Engine) -> Result<OpenRecords> {
    let mut open = BTreeMap::new();
    read(engine, keys::OPEN, |entry| {
        let entry = entry()?;
        open.insert(entry.label.digest, Arc::new(entry));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(open)
}

/// Visits the records whose keys are in this range, until the visitor breaks. It is given what reads one.
pub(super) fn read(
    engine: &dyn Engine,
    (from, to): (&[u8], &[u8]),
    mut visit: impl FnMut(&dyn Fn() -> Result<Entry>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut visited = Ok(());
    engine.scan(from, to, &mut |key, value| {
        visit(&|| decode(&value, &key[1..])).unwrap_or_else(|e| {
            visited = Err(e);
            ControlFlow::Break(())
        })
    })?;
    visited
}

/// Reads a record's bytes, and checks that they are whose they should be.
fn decode(bytes: &bytes::Bytes, digest: &[u8]) -> Result<Entry> {
    let entry = Entry::from_bytes(bytes).map_err(|e| {
        StoreError::new(
            StoreErrorKind::Corrupt,
            "a stored record cannot be read; restore the store from a backup",
        )
        .with_source(e)
    })?;
    if entry.label.digest.as_bytes() != digest {
        return Err(StoreError::new(
            StoreErrorKind::Corrupt,
            "a stored record lies under another identity; restore the store from a backup",
        ));
    }
    Ok(entry)
}
