//! Limits on what requests with keys use of the process: all together, and those of one scope.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::Scope;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::quota::{Quotas, ScopeLimits, Share};

/// The bounds of a layer. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    attempts: Option<Attempts>,
    memory: Option<Arc<Memory>>,
    scopes: Option<Arc<Quotas>>,
}

#[derive(Debug, Clone)]
struct Attempts {
    free: Arc<Semaphore>,
    most: usize,
}

/// Why no attempt may be begun now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// As many run as may.
    Process,
    /// The scope has used what it may, for so long.
    Scope(Duration),
}

impl Limits {
    pub(crate) fn set_attempts(&mut self, at_once: usize) {
        let most = at_once.min(Semaphore::MAX_PERMITS);
        let free = Arc::new(Semaphore::new(most));
        self.attempts = Some(Attempts { free, most });
    }

    pub(crate) fn set_body_memory(&mut self, bytes: usize) {
        self.memory = Some(Arc::new(Memory {
            held: AtomicUsize::new(0),
            most: bytes,
        }));
    }

    pub(crate) fn set_scopes(&mut self, limits: ScopeLimits) {
        self.scopes = Some(Arc::new(Quotas::new(limits))).filter(|_| limits != ScopeLimits::new());
    }

    /// Room for an attempt.
    pub(crate) fn slot(&self, scope: &Scope) -> Result<Slot, Full> {
        let slot = self.slot_of_nobody()?;
        let share = self.scopes.as_ref().map(|scopes| scopes.share(scope));
        Ok(Slot {
            share: share.transpose().map_err(Full::Scope)?,
            ..slot
        })
    }

    /// Room in the process, whatever its scope has used.
    pub(crate) fn slot_of_nobody(&self) -> Result<Slot, Full> {
        let attempts = self.attempts.as_ref();
        let permit = attempts.map(|attempts| Arc::clone(&attempts.free).try_acquire_owned());
        Ok(Slot {
            _permit: permit.transpose().map_err(|_| Full::Process)?,
            share: None,
        })
    }

    /// Whether so many are as many as may run, or more.
    pub(crate) fn are_enough(&self, running: usize) -> bool {
        let attempts = self.attempts.as_ref();
        attempts.is_some_and(|attempts| running >= attempts.most)
    }

    /// Where the bodies of one request and its answer are counted.
    pub(crate) fn bodies(&self) -> Bodies {
        Bodies {
            memory: self.memory.clone(),
            bytes: AtomicUsize::new(0),
        }
    }
}

/// Room for one attempt, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    _permit: Option<OwnedSemaphorePermit>,
    share: Option<Share>,
}

impl Slot {
    /// The attempt was acquired. What turns out to be a duplicate takes nothing of its scope's limit.
    pub(crate) const fn begun(&mut self) {
        if let Some(share) = &mut self.share {
            share.begun();
        }
    }

    /// So many bytes of its answer were recorded.
    pub(crate) fn kept(&self, bytes: usize) {
        if let Some(share) = &self.share {
            share.kept(bytes);
        }
    }
}

#[derive(Debug)]
struct Memory {
    held: AtomicUsize,
    most: usize,
}

/// The bytes that one request and its answer hold, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Bodies {
    memory: Option<Arc<Memory>>,
    bytes: AtomicUsize,
}

impl Bodies {
    /// Counts so many bytes more, where there is room for them.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let Some(memory) = &self.memory else {
            return true;
        };
        let more = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= memory.most);
        let taken = memory
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok();
        if taken {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// Counts bytes that are there, whether there is room for them or not: what an operation that
    /// ran has answered is not thrown away.
    pub(crate) fn add(&self, bytes: usize) {
        if let Some(memory) = &self.memory {
            memory.held.fetch_add(bytes, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Bodies {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory
                .held
                .fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
        }
    }
}
