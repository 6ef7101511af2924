//! Records with a version: upserts by natural key, and writes that fail where somebody else wrote
//! first.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::Scope;
//! use semel::versioned::{
//!     Expected, MemoryVersioned, NaturalKey, Version, VersionedStore, WriteError,
//! };
//!
//! let store = MemoryVersioned::default();
//! let pump = NaturalKey::new(Scope::new(["tenant-1", "assets"]), "pump-7");
//!
//! // An upsert: whatever is there. Doing it again leaves the same value.
//! let version = store.write(&pump, Expected::Any, "running".into()).await?;
//! assert_eq!(version, Version(1));
//!
//! // What was read is still there, or nothing is written.
//! let read = store.read(&pump).await?.expect("it was written");
//! let expected = Expected::Version(read.version);
//! store.write(&pump, expected, "stopped".into()).await?;
//! match store.write(&pump, expected, "broken".into()).await {
//!     Err(WriteError::ConcurrentModification { found, .. }) => {
//!         assert_eq!(found, Some(Version(2)));
//!     }
//!     other => panic!("{other:?}"),
//! }
//! # Ok(()) }
//! ```
//!
//! [`update`] reads, changes and writes, and does so again where somebody else was first.
//! [`VersionedIn`] has the same inside a transaction, so that a write is committed with the
//! operation that it belongs to, or not at all.

mod key;
mod memory;
pub mod rule;
#[cfg(feature = "conformance")]
pub mod suite;
mod types;
mod update;

use std::sync::Arc;

use bytes::Bytes;

pub use key::NaturalKey;
pub use memory::MemoryVersioned;
pub use types::{Expected, MAX_VALUE, Version, Versioned, WriteError, check_value};
pub use update::{Retries, UpdateError, update};

use crate::store::{Nonce, Result};
use crate::transaction::Transactional;

/// A store of versioned records.
///
/// Every change is one atomic step in the store: of any number of writers that expect the same
/// version, or no record, exactly one succeeds, and the others learn what they would find.
/// What was answered is as durable as the store's other steps. A read sees what was acknowledged
/// before it began.
///
/// A change whose answer was lost is sent again by the store itself, which knows its own by the
/// [`Nonce`] that is kept with each record. Where that does not tell either, the error is of kind
/// [`Unknown`](crate::StoreErrorKind::Unknown). A caller that wants to ask again by itself makes the
/// nonce, and calls [`write_as`](Self::write_as) with it again.
///
/// # Cancellation
/// Dropping a returned future may leave the change done or not done.
pub trait VersionedStore: Send + Sync + 'static {
    /// The record; `None` where there is none, or it was deleted.
    fn read(&self, key: &NaturalKey) -> impl Future<Output = Result<Option<Versioned>>> + Send;

    /// Writes the record where it is as expected. The answer is its new version.
    ///
    /// With [`Expected::Any`] an upsert: repeating it leaves the same value, though a higher version.
    ///
    /// # Errors
    /// [`ConcurrentModification`](WriteError::ConcurrentModification) where it is not as expected.
    /// [`TooLarge`](crate::StoreErrorKind::TooLarge) for a value of more than [`MAX_VALUE`] bytes.
    fn write(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Bytes,
    ) -> impl Future<Output = Result<Version, WriteError>> + Send {
        async move {
            let writer = Nonce::random()?;
            self.write_as(key, expected, value, writer).await
        }
    }

    /// Deletes the record where it is as expected. One that is not there is deleted already, unless
    /// a version was expected. The next write of the key continues to count versions.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    fn delete(
        &self,
        key: &NaturalKey,
        expected: Expected,
    ) -> impl Future<Output = Result<(), WriteError>> + Send {
        async move {
            let writer = Nonce::random()?;
            self.delete_as(key, expected, writer).await
        }
    }

    /// [`write`](Self::write) under a nonce of the caller's, one for each change. Called again with
    /// the same, after an error of kind [`Unknown`](crate::StoreErrorKind::Unknown), it answers with
    /// the version that the first call gave, as long as nobody has written since.
    ///
    /// A conflict then means that this call changed nothing. Whether the first one did follows from the
    /// version found: [`rule::never_happened`].
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    fn write_as(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Bytes,
        writer: Nonce,
    ) -> impl Future<Output = Result<Version, WriteError>> + Send {
        self.alter(key, expected, Some(value), writer)
    }

    /// [`delete`](Self::delete) under a nonce of the caller's.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    fn delete_as(
        &self,
        key: &NaturalKey,
        expected: Expected,
        writer: Nonce,
    ) -> impl Future<Output = Result<(), WriteError>> + Send {
        async move { self.alter(key, expected, None, writer).await.map(drop) }
    }

    /// What a store implements: [`write_as`](Self::write_as) with this value, or without one
    /// [`delete_as`](Self::delete_as).
    ///
    /// The methods above are made of it, and a store in an `Arc` is changed through it alone.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> impl Future<Output = Result<Version, WriteError>> + Send;
}

/// The same inside a transaction of the store's: nothing counts before its commit.
///
/// Inside [`Guard::transact`](crate::guard::Guard::transact) a write is committed with the completion
/// of its operation, and needs no nonce: the record tells whether all of it happened.
///
/// An error that comes from a conflict between transactions (a deadlock, a serialization failure)
/// has a [`Conflict`](crate::transaction::TransactionError::Conflict) among its sources, by which
/// `transact` knows to run the work again. A
/// [`ConcurrentModification`](WriteError::ConcurrentModification) is none: the transaction stays
/// usable, and what becomes of it is the work's decision.
pub trait VersionedIn: VersionedStore + Transactional {
    /// The record, locked until the transaction ends: nobody else changes it meanwhile. One that is
    /// not there cannot be locked everywhere: its creator expects [`Absent`](Expected::Absent).
    fn read_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &NaturalKey,
    ) -> impl Future<Output = Result<Option<Versioned>>> + Send;

    /// Writes the record where it is as expected, and locks it.
    ///
    /// # Errors
    /// Those of [`VersionedStore::write`]. Nothing was changed.
    fn write_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &NaturalKey,
        expected: Expected,
        value: Bytes,
    ) -> impl Future<Output = Result<Version, WriteError>> + Send {
        self.alter_in(transaction, key, expected, Some(value))
    }

    /// Deletes the record where it is as expected.
    ///
    /// # Errors
    /// Those of [`VersionedStore::delete`]. Nothing was changed.
    fn delete_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &NaturalKey,
        expected: Expected,
    ) -> impl Future<Output = Result<(), WriteError>> + Send {
        async move {
            let deleted = self.alter_in(transaction, key, expected, None);
            deleted.await.map(drop)
        }
    }

    /// What a store implements: [`write_in`](Self::write_in) with this value, or without one
    /// [`delete_in`](Self::delete_in).
    ///
    /// # Errors
    /// Those of [`VersionedStore::write`]. Nothing was changed.
    fn alter_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
    ) -> impl Future<Output = Result<Version, WriteError>> + Send;
}

impl<S: VersionedStore> VersionedStore for Arc<S> {
    async fn read(&self, key: &NaturalKey) -> Result<Option<Versioned>> {
        S::read(self, key).await
    }

    async fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> Result<Version, WriteError> {
        S::alter(self, key, expected, value, writer).await
    }
}

impl<S: VersionedIn> VersionedIn for Arc<S> {
    async fn read_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &NaturalKey,
    ) -> Result<Option<Versioned>> {
        S::read_in(self, transaction, key).await
    }

    async fn alter_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
    ) -> Result<Version, WriteError> {
        S::alter_in(self, transaction, key, expected, value).await
    }
}
