//! An engine that can be held, failed and counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use semel::store::{Result, Retention, StoreExt as _};
use semel::{Outcome, StoreError, StoreErrorKind};
use semel_stores::embedded::{Batch, Engine, Visit};
use semel_stores::{FileOptions, FileStore};

use super::identity;

/// In memory. Shows a batch to readers at once, and calls it on disk when it is let through.
#[derive(Default)]
pub(super) struct Fake {
    pub(super) map: Mutex<BTreeMap<Vec<u8>, Bytes>>,
    held: Mutex<bool>,
    changed: Condvar,
    // How many batches wait for their sync, and how many had one.
    waiting: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) fault: Mutex<Fault>,
    // How many engines on this map are open, and how often one was opened.
    open: AtomicU64,
    pub(super) opened: AtomicU64,
}

/// What goes wrong. What fails in a sync is there all the same, unless it is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Fault {
    #[default]
    None,
    Sync,
    /// The batch is undone: it never came to the disk.
    Write,
    Panic,
    /// A write fails for want of room, and so does opening.
    Full,
    /// A sync fails, and what is opened after it is damaged.
    Damaged,
}

/// An engine that is alone on its map.
struct Handle(Arc<Fake>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Fake {
    pub(super) fn open(self: &Arc<Self>, options: FileOptions) -> Result<FileStore> {
        let fake = Arc::clone(self);
        options.open_engine(move || {
            match *fake.fault.lock() {
                Fault::Full => return Err(full()),
                Fault::Damaged => {
                    let kind = StoreErrorKind::Corrupt;
                    return Err(StoreError::new(kind, "a file is damaged"));
                }
                _ => {}
            }
            let others = fake.open.fetch_add(1, Ordering::SeqCst);
            assert_eq!(others, 0, "two engines are open");
            fake.opened.fetch_add(1, Ordering::SeqCst);
            Ok(Arc::new(Handle(Arc::clone(&fake))))
        })
    }

    pub(super) fn hold(&self, held: bool) {
        *self.held.lock() = held;
        self.changed.notify_all();
    }

    pub(super) async fn until_syncing(&self) {
        while self.waiting.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl Engine for Handle {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.0.map.lock().get(key).cloned())
    }

    fn apply(&self, batch: Batch) -> Result<()> {
        let keys: std::collections::HashSet<_> = batch
            .operations
            .iter()
            .map(|(key, _)| key.clone())
            .collect();
        assert_eq!(keys.len(), batch.operations.len(), "a key occurs twice");
        let fake = &*self.0;
        let mut map = fake.map.lock();
        let before = map.clone();
        for (key, value) in batch.operations {
            match value {
                Some(value) => map.insert(key.to_vec(), value),
                None => map.remove(&*key),
            };
        }
        drop(map);
        fake.waiting.fetch_add(1, Ordering::SeqCst);
        let mut held = fake.held.lock();
        while *held {
            fake.changed.wait(&mut held);
        }
        fake.waiting.fetch_sub(1, Ordering::SeqCst);
        let fault = *fake.fault.lock();
        match fault {
            Fault::None => {}
            Fault::Panic => panic!("as planned"),
            Fault::Sync | Fault::Damaged => {
                let kind = StoreErrorKind::Unknown;
                return Err(StoreError::new(kind, "the disk is gone"));
            }
            Fault::Write | Fault::Full => {
                *fake.map.lock() = before;
                return Err(full());
            }
        }
        fake.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn scrub(&self) -> Result<()> {
        Ok(())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        let map = self.0.map.lock().clone();
        for (key, value) in map.range(from.to_vec()..to.to_vec()) {
            if visit(key, value.clone()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn log_bytes(&self) -> u64 {
        1000
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

fn full() -> StoreError {
    StoreError::new(StoreErrorKind::Capacity, "the disk is full")
}

pub(super) fn store() -> (Arc<Fake>, Arc<FileStore>) {
    let fake = Arc::new(Fake::default());
    let store = fake.open(FileOptions::new()).unwrap();
    (fake, Arc::new(store))
}

pub(super) fn spawn_complete(
    store: &Arc<FileStore>,
    key: &'static str,
    token: semel::store::Token,
) -> tokio::task::JoinHandle<Result<semel::store::Fenced>> {
    let store = store.clone();
    tokio::spawn(async move {
        let outcome = Outcome::success(b"answer");
        store
            .complete(identity(key).digest(), &token, &outcome, Retention::ORDER)
            .await
    })
}
