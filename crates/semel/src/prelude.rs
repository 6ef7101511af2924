//! What a program that makes operations happen once imports: `use semel::prelude::*`.
//!
//! Stores on disk and on servers come from `semel-stores`, the HTTP middleware from `semel-tower`,
//! which exports what its users need beside it.

#[cfg(feature = "json")]
#[doc(no_inline)]
pub use crate::Json;
#[doc(no_inline)]
pub use crate::{
    Fingerprint, Identity, Key, KeyRule, Scope, Service, Store, StoreError, StoreExt, Value,
    guard::{
        Asked, Attempt, AttemptInfo, Done, Guard, OnError, OnPanic, OnStoreError, Policy, Ran,
        RunError, StepError, TransactOptions,
    },
    inbox::{Event, Inbox, InboxError, Receipt},
    memory::MemoryStore,
    operation::{Call, Caller, KeyFrom, Operation, Part},
    purge::Purger,
    store::{OnLost, Retention},
    transaction::Lent,
};
