//! The seam between the store and its storage engine: a few operations on ordered bytes.

use std::ops::ControlFlow;

use bytes::Bytes;
use semel::store::Result;

use crate::common::disk;

/// Puts (`Some`) and deletes (`None`) that are applied together. No key occurs twice.
#[derive(Debug, Default)]
pub struct Batch {
    /// The operations.
    pub operations: Vec<(Bytes, Option<Bytes>)>,
    /// How many bytes of keys and values there are.
    pub bytes: u64,
}

impl Batch {
    /// Adds a put.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) {
        self.push(key.as_ref(), Some(value.into()));
    }

    /// Adds a delete.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.push(key.as_ref(), None);
    }

    /// Whether there is nothing in it.
    pub const fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    fn push(&mut self, key: &[u8], value: Option<Bytes>) {
        self.bytes += (key.len() + value.as_ref().map_or(0, Bytes::len)) as u64;
        self.operations.push((Bytes::copy_from_slice(key), value));
    }
}

/// An ordered map of bytes on disk.
///
/// One thread calls [`apply`](Self::apply); the other methods are called from any thread, also
/// while it runs.
pub trait Engine: Send + Sync + 'static {
    /// The value under `key`. May show a batch that is being applied and is not on disk yet.
    ///
    /// # Errors
    /// Not [`Unknown`](semel::StoreErrorKind::Unknown): reading changes nothing.
    /// [`Corrupt`](semel::StoreErrorKind::Corrupt) where the stored bytes are damaged.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// Applies a batch, all of it or nothing. When this returns `Ok` it is on disk.
    ///
    /// # Errors
    /// After an error the batch may or may not be there, and the engine is dropped: another one is
    /// opened. The error's message is shown to operators.
    fn apply(&self, batch: Batch) -> Result<()>;

    /// Visits the keys in `from..to` in ascending order until the visitor breaks.
    ///
    /// # Errors
    /// [`Corrupt`](semel::StoreErrorKind::Corrupt) where the stored bytes are damaged.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()>;

    /// Removes from the files what has no key any more. Takes its time, while others read and write.
    ///
    /// # Errors
    /// Some of it may be there still.
    fn scrub(&self) -> Result<()>;

    /// At most how many bytes of batches lie in the log only, so that a loss there loses them.
    fn log_bytes(&self) -> u64;

    /// How much room is left on the disk, where that can be known.
    fn free_bytes(&self) -> Option<u64>;
}

/// Sees one key and its value.
pub type Visit<'a> = dyn FnMut(&[u8], Bytes) -> ControlFlow<()> + 'a;

/// Why new claims are refused now, if they are: a full disk in the middle of a commit would close the store for
/// a while.
pub(super) fn short(engine: &dyn Engine, reserve_bytes: u64) -> Option<String> {
    disk::short(engine.free_bytes(), reserve_bytes, "store")
}
