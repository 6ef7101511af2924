//! *semel* (Latin: once) makes an operation happen once, however often it is asked for.
//!
//! This crate is the protocol: it does no I/O of its own and knows neither HTTP nor a database.
//! Stores on disk and on servers are in `semel-stores`, the HTTP middleware in `semel-tower`.
//!
//! `use semel::prelude::*` brings what a program needs.
//!
//! | to | use |
//! |---|---|
//! | name what is done once | [`Key`], [`Scope`], [`Identity`] |
//! | keep apart the services that share a store | [`Service`] |
//! | say what makes two requests the same | [`Fingerprint`] |
//! | say what is replayed | [`Outcome`] |
//! | say what operators find with a record | [`Note`] |
//! | say how a call's parts become an identity | an [`Operation`](operation::Operation) |
//! | keep records | a [`Store`], for instance [`MemoryStore`](memory::MemoryStore) |
//! | run work once | a [`Guard`](guard::Guard) |
//! | commit work and its record together | [`Guard::transact`](guard::Guard::transact) |
//! | handle each event of a queue or stream once | [`Inbox`](inbox::Inbox) |
//! | remove what is past its retention | a [`Purger`](purge::Purger) |
//! | know how a record may change | [`record`] |
//! | write with an expected version, upsert by natural key | [`versioned`] |
//! | write a store | a [`Backend`](backend::Backend) |
//! | keep digests from being guessed | [`secrets`] |
//! | compress and encrypt what is kept | `sealed`, behind the feature of that name |
//! | check a store | `conformance`, behind the feature of that name |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod any;
pub mod backend;
mod backoff;
#[cfg(feature = "conformance")]
pub mod conformance;
mod delegate;
mod entry;
mod error;
mod fingerprint;
pub mod guard;
mod identity;
pub mod inbox;
mod key;
mod keyring;
pub mod memory;
mod note;
pub mod operation;
mod outcome;
pub mod prelude;
mod progress;
mod protocol;
pub mod purge;
pub mod record;
#[cfg(feature = "sealed")]
pub mod sealed;
pub mod secrets;
mod service;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
pub mod store;
mod sync;
mod time;
pub mod transaction;
mod value;
pub mod versioned;
mod wire;

pub use any::AnyStore;
pub use backoff::Backoff;
pub use error::{StoreError, StoreErrorKind};
pub use fingerprint::{Fingerprint, FingerprintBuilder};
pub use identity::{Identity, IdentityDigest, Scope};
pub use key::{Key, KeyError, KeyRule};
pub use keyring::{KeyName, KeysError};
pub use note::Note;
pub use outcome::{DecodeError, Fields, Outcome, OutcomeBuilder, OutcomeKind};
pub use progress::{FinishedStep, Progress, ProgressTooLarge};
pub use record::{Record, State, StateKind};
pub use service::{Service, ServiceError};
pub use store::{Store, StoreExt};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};
#[cfg(feature = "json")]
pub use value::Json;
pub use value::Value;
