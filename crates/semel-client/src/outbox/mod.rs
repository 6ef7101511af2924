//! Intents, kept before they are first sent.

#[cfg(feature = "file")]
mod disk;
mod intent;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use parking_lot::Mutex;
use semel::{Key, KeyError};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::call::new_key;
use intent::Kept;

pub use intent::Intent;

/// Intents that were begun and are not finished.
///
/// An intent is a request with a key of its own, under a name that the program knows it by: `invoice-4711/charge`. It
/// is kept before it is first sent and until [`Intent::finish`] says that its answer was put to use. So a
/// program that was killed finds in [`pending`](Self::pending) what it has to finish, with the same keys and the same
/// bytes.
///
/// * [`in_memory`](Self::in_memory): as long as the process.
/// * [`open`](Self::open) (feature `file`): a directory with a file for each intent, synced to the disk before
///   [`begin`](Self::begin) returns. One process at a time has it open. The files hold the requests as they are sent, and are for this
///   user's eyes only.
///
/// Credentials are not kept: a service or middleware under [`Retry`](crate::Retry) adds them to each try.
#[derive(Debug, Clone)]
pub struct Outbox {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    index: Mutex<Index>,
    // What is begun and finished under one name comes one after the other; names share a few of these.
    turns: [Arc<Turn<()>>; 32],
    hasher: RandomState,
    #[cfg(feature = "file")]
    disk: Option<disk::Disk>,
}

#[derive(Debug)]
struct Index {
    intents: HashMap<Box<str>, Arc<Kept>>,
    // With those that are being written.
    count: usize,
    bytes: usize,
    max_count: usize,
    max_bytes: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            intents: HashMap::new(),
            count: 0,
            bytes: 0,
            max_count: 10_000,
            max_bytes: 64 << 20,
        }
    }
}

/// Why an intent was not begun, or not finished. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// It is open, in another process or in this one.
    #[error("the outbox {path} is open already, in another process or in this one", path = path.display())]
    InUse {
        /// Its directory.
        path: PathBuf,
    },
    /// A file in it is not as it was written.
    #[error("{path} is damaged: {what}. Move it away, and find out what became of its request", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The disk failed.
    #[error("cannot {what} {path}", path = path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It holds as much as it may: finish some first.
    #[error(
        "the outbox is full: {intents} intents with {bytes} bytes are not finished; allowed are {max_intents} \
         with {max_bytes} bytes"
    )]
    Full {
        /// How many there are.
        intents: usize,
        /// How large they are together.
        bytes: usize,
        /// How many there may be.
        max_intents: usize,
        /// How large they may be together.
        max_bytes: usize,
    },
    /// The name belongs to another request that is not finished.
    #[error("an intent of this name was begun with another {what}, and is not finished")]
    Differs {
        /// Method, target, body or header.
        what: &'static str,
    },
    /// The name is empty, or longer than 1024 bytes.
    #[error("an intent's name has 1 to 1024 bytes; this one has {len}")]
    Name {
        /// How long it is.
        len: usize,
    },
    /// The request cannot be made.
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
    /// No key could be made.
    #[error("no key could be made")]
    Key(#[from] KeyError),
    /// The request has a field that cannot be kept.
    #[error("the field {field} cannot be kept: {why}")]
    Field {
        /// Its name.
        field: String,
        /// Why.
        why: &'static str,
    },
}

const MAX_NAME: usize = 1024;

impl Outbox {
    /// In this process's memory.
    pub fn in_memory() -> Self {
        Self {
            shared: Arc::default(),
        }
    }

    /// In a directory, which is made if it is not there.
    ///
    /// # Errors
    /// [`OutboxError::InUse`], [`OutboxError::Damaged`], [`OutboxError::Io`].
    #[cfg(feature = "file")]
    pub async fn open(directory: impl Into<PathBuf>) -> Result<Self, OutboxError> {
        let directory = directory.into();
        let path = directory.clone();
        let (disk, found) = blocking(&path, move || disk::Disk::open(directory)).await?;
        let mut index = Index::default();
        for kept in found {
            index.count += 1;
            index.bytes += kept.size();
            index.intents.insert(kept.name.clone(), Arc::new(kept));
        }
        Ok(Self {
            shared: Arc::new(Shared {
                index: Mutex::new(index),
                disk: Some(disk),
                ..Shared::default()
            }),
        })
    }

    /// How many intents it may hold, and how many bytes they may have together. 10,000 and 64 MiB unless set;
    /// each is held in memory too.
    #[must_use]
    pub fn with_limits(self, intents: usize, bytes: usize) -> Self {
        let mut index = self.shared.index.lock();
        (index.max_count, index.max_bytes) = (intents, bytes);
        drop(index);
        self
    }

    /// Begins an intent, or finds the one that was begun under this name and is not finished.
    ///
    /// `request` makes the request for the intent's key. It puts the key where the service expects it; if it
    /// does not, the key is put into the field `Idempotency-Key`, or where the [`Retry`](crate::Retry) that sends it wants it.
    /// A request that has another key in that field is refused, by this or by the `Retry`. For an intent that was begun
    /// before it is called with that one's key, to see that the same is meant; what is sent
    /// is the request that was kept.
    ///
    /// # Errors
    /// [`OutboxError`]. Nothing was begun then, or something else: [`OutboxError::Differs`].
    pub async fn begin<B: Into<Bytes>>(
        &self,
        name: &str,
        request: impl FnOnce(&Key) -> http::Result<Request<B>>,
    ) -> Result<Intent, OutboxError> {
        let len = name.len();
        if len == 0 || len > MAX_NAME {
            return Err(OutboxError::Name { len });
        }
        let turn = self.shared.turn(name).await;
        if let Some(intent) = self.get(name) {
            let key = intent.key();
            intent.kept.check(request(key)?.map(B::into))?;
            return Ok(intent);
        }
        let key = new_key()?;
        let request = request(&key)?.map(B::into);
        let kept = Arc::new(Kept::new(name, key, request)?);
        self.shared.reserve(&kept)?;
        self.shared.clone().keep(kept.clone(), turn).await?;
        Ok(self.intent(kept))
    }

    /// What was begun and is not finished, the oldest first.
    pub fn pending(&self) -> Vec<Intent> {
        let index = self.shared.index.lock();
        let mut pending: Vec<_> = index.intents.values().cloned().collect();
        drop(index);
        pending.sort_by(|a, b| (a.keyed.begun, &a.name).cmp(&(b.keyed.begun, &b.name)));
        pending.into_iter().map(|kept| self.intent(kept)).collect()
    }

    /// The intent that was begun under this name and is not finished.
    pub fn get(&self, name: &str) -> Option<Intent> {
        let kept = self.shared.index.lock().intents.get(name).cloned();
        kept.map(|kept| self.intent(kept))
    }

    fn intent(&self, kept: Arc<Kept>) -> Intent {
        let outbox = self.clone();
        Intent { kept, outbox }
    }
}

impl Shared {
    async fn turn(&self, name: &str) -> OwnedMutexGuard<()> {
        let hash = self.hasher.hash_one(name) % self.turns.len() as u64;
        let turn = &self.turns[usize::try_from(hash).unwrap_or_default()];
        turn.clone().lock_owned().await
    }

    fn reserve(&self, kept: &Kept) -> Result<(), OutboxError> {
        let mut index = self.index.lock();
        let (intents, bytes) = (index.count, index.bytes);
        let (max_intents, max_bytes) = (index.max_count, index.max_bytes);
        if intents >= max_intents || bytes.saturating_add(kept.size()) > max_bytes {
            return Err(OutboxError::Full {
                intents,
                bytes,
                max_intents,
                max_bytes,
            });
        }
        index.count += 1;
        index.bytes += kept.size();
        Ok(())
    }

    fn free(&self, kept: &Kept) {
        let mut index = self.index.lock();
        index.count -= 1;
        index.bytes -= kept.size();
    }

    /// Goes to its end also if its caller does not wait for it, and its turn lasts until then.
    async fn keep(
        self: Arc<Self>,
        kept: Arc<Kept>,
        turn: OwnedMutexGuard<()>,
    ) -> Result<(), OutboxError> {
        #[cfg(feature = "file")]
        if self.disk.is_some() {
            return self
                .on_disk(turn, move |shared, disk| {
                    let written = disk.write(&kept);
                    match &written {
                        Ok(()) => shared.insert(kept),
                        Err(_) => shared.free(&kept),
                    }
                    written
                })
                .await;
        }
        self.insert(kept);
        drop(turn);
        Ok(())
    }

    fn insert(&self, kept: Arc<Kept>) {
        self.index.lock().intents.insert(kept.name.clone(), kept);
    }

    async fn forget(self: Arc<Self>, kept: Arc<Kept>) -> Result<(), OutboxError> {
        let turn = self.turn(&kept.name).await;
        let known = self.index.lock().intents.get(&kept.name).cloned();
        // Finished before, and the name perhaps begun anew.
        if known.is_none_or(|known| !Arc::ptr_eq(&known, &kept)) {
            return Ok(());
        }
        #[cfg(feature = "file")]
        if self.disk.is_some() {
            return self
                .on_disk(turn, move |shared, disk| {
                    disk.remove(&kept)?;
                    shared.remove(&kept);
                    Ok(())
                })
                .await;
        }
        self.remove(&kept);
        drop(turn);
        Ok(())
    }

    fn remove(&self, kept: &Kept) {
        self.index.lock().intents.remove(&kept.name);
        self.free(kept);
    }

    #[cfg(feature = "file")]
    async fn on_disk(
        self: Arc<Self>,
        turn: OwnedMutexGuard<()>,
        change: impl FnOnce(&Self, &disk::Disk) -> Result<(), OutboxError> + Send + 'static,
    ) -> Result<(), OutboxError> {
        let Some(path) = self.disk.as_ref().map(|disk| disk.directory.clone()) else {
            return Ok(());
        };
        blocking(&path, move || {
            let changed = self
                .disk
                .as_ref()
                .map_or(Ok(()), |disk| change(&self, disk));
            drop(turn);
            changed
        })
        .await
    }
}

/// Runs what waits for the disk where it may. It runs to its end also if nobody waits for that.
#[cfg(feature = "file")]
async fn blocking<T: Send + 'static>(
    path: &std::path::Path,
    work: impl FnOnce() -> Result<T, OutboxError> + Send + 'static,
) -> Result<T, OutboxError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(OutboxError::Io {
            what: "use",
            path: path.to_owned(),
            source: error.into(),
        }),
    }
}
