//! What a store's module gives so that it can be opened by URL.

use std::future::Future;
use std::pin::Pin;

use semel::AnyStore;

use crate::{OpenError, OpenOptions};

/// What opening does about the tables (or the bucket) that a store on a server needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Schema {
    /// Uses what is there, and says what to run where it is missing or of another version.
    #[default]
    Expect,
    /// Makes it where there is none. Never changes one that is there.
    Create,
    /// Makes it, or brings it to this version.
    Migrate,
}

/// What a migration found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// The version found; `None` where there was nothing.
    pub from: Option<u32>,
    /// The version that is there now.
    pub to: u32,
    /// What was done, as sentences; empty where nothing was.
    pub done: Vec<String>,
}

impl Migrated {
    /// For a store that keeps records without preparation.
    pub(crate) const fn nothing() -> Self {
        Self {
            from: Some(1),
            to: 1,
            done: Vec::new(),
        }
    }
}

/// A store that is being opened.
pub(crate) type Opening<'a> =
    Pin<Box<dyn Future<Output = Result<AnyStore, OpenError>> + Send + 'a>>;

/// A schema that is being brought to this version.
pub(crate) type Migrating<'a> =
    Pin<Box<dyn Future<Output = Result<Migrated, OpenError>> + Send + 'a>>;

/// The ways into a store's module, each given the whole URL.
#[derive(Clone, Copy)]
pub(crate) struct Driver {
    /// Whether the URL is understood. Reaches no server.
    pub(crate) check: fn(&str) -> Result<(), OpenError>,
    /// Opens the store.
    pub(crate) open: for<'a> fn(&'a str, &'a OpenOptions) -> Opening<'a>,
    /// Makes its tables, or brings them to this version.
    pub(crate) migrate: for<'a> fn(&'a str, &'a OpenOptions) -> Migrating<'a>,
}
