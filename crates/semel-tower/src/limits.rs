//! Limits on what all requests with keys together use of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bounds of a layer. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    attempts: Option<Arc<Semaphore>>,
    memory: Option<Arc<Memory>>,
}

impl Limits {
    pub(crate) fn set_attempts(&mut self, at_once: usize) {
        let at_once = at_once.min(Semaphore::MAX_PERMITS);
        self.attempts = Some(Arc::new(Semaphore::new(at_once)));
    }

    pub(crate) fn set_body_memory(&mut self, bytes: usize) {
        self.memory = Some(Arc::new(Memory {
            held: AtomicUsize::new(0),
            most: bytes,
        }));
    }

    /// Room for an attempt; none where as many as may be are running.
    pub(crate) fn slot(&self) -> Option<Slot> {
        let Some(attempts) = &self.attempts else {
            return Some(Slot(None));
        };
        let permit = Arc::clone(attempts).try_acquire_owned().ok()?;
        Some(Slot(Some(permit)))
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
pub(crate) struct Slot(
    #[expect(dead_code, reason = "it is there to be dropped")] Option<OwnedSemaphorePermit>,
);

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
