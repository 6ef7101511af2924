//! The store of a gateway: opened, looked at, and watched while it is used.

mod health;
mod watched;

use std::sync::Arc;

use semel::memory::MemoryStore;
use semel::sealed::Sealed;
use semel::secrets::Secrets;
use semel::store::{Durability, Store as _};
use semel::{AnyStore, StoreError};
use semel_stores::objects::Offloaded;
use semel_stores::{OpenError, OpenOptions, Schema};

use crate::at_rest::{self, AtRest};
use crate::command::{FAILED, MISUSED};
use crate::config::StoreUrl;

pub use health::{Condition, Health};
pub(crate) use health::{PROBE_TIMEOUT, REMIND_EVERY, is_question};
pub use watched::Watched;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be opened.
    #[error("--store: {}", crate::command::with_causes(.0))]
    Open(#[from] OpenError),
    /// Keys or secrets cannot be used.
    #[error(transparent)]
    AtRest(#[from] at_rest::Error),
    /// It was opened, and does not work.
    #[error("the store does not work: {}", crate::command::with_causes(.0))]
    Probe(StoreError),
}

impl Error {
    /// The exit code of a program that ends for this.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Open(_) | Self::AtRest(_) => MISUSED,
            Self::Probe(_) => FAILED,
        }
    }
}

/// Opens the store as a gateway does, tries it, and logs what an operator should know.
///
/// # Errors
/// Why it cannot be opened, or does not work.
pub async fn open(url: &StoreUrl, at_rest: &AtRest) -> Result<Opened, Error> {
    let ready = at_rest.read().await?;
    let mut options = OpenOptions::default();
    // Where there is nothing yet nothing can be lost; an older version waits for `semel migrate`.
    options.schema = Schema::Create;
    let store = semel_stores::open(&url.0, &options).await?;
    for warning in warnings(&store).await? {
        tracing::warn!("store: {warning}");
    }
    for line in ready.lines() {
        tracing::info!("store: {line}");
    }
    if let Some(large) = &at_rest.large {
        tracing::info!("store: {large}");
    }
    Ok(ready.around(store).await?)
}

/// A store, with what is needed to read it.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The store, which opens what is sealed in it, and reads what it keeps elsewhere.
    pub store: AnyStore,
    /// The same with its keys, if it has some.
    pub sealed: Option<Sealed<AnyStore>>,
    /// The same with its large answers, if it keeps them elsewhere.
    pub offloaded: Option<Arc<Offloaded<AnyStore>>>,
    /// The secrets of its identities.
    pub secrets: Option<Secrets>,
}

/// Tries a store as a gateway would at its start, and says what was found. Makes nothing.
///
/// # Errors
/// Why a gateway would not start with it.
pub async fn look(url: &StoreUrl, at_rest: &AtRest) -> Result<Vec<String>, Error> {
    let ready = at_rest.read().await?;
    let mut options = OpenOptions::default();
    options.existing = true;
    let (store, mut found) = match semel_stores::open(&url.0, &options).await {
        Ok(store) => {
            let mut found = vec!["opened, and works".to_owned()];
            found.extend(ready.lines());
            found.extend(warnings(&store).await?);
            (store, found)
        }
        Err(error) if error.is_missing() => {
            let found = "not opened: there is nothing yet; `semel serve` makes it";
            (
                AnyStore::new(MemoryStore::default()),
                vec![found.to_owned()],
            )
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(large) = &at_rest.large {
        found.push(large.look(store.clone()).await?);
    }
    store.close().await.map_err(Error::Probe)?;
    Ok(found)
}

async fn warnings(store: &AnyStore) -> Result<Vec<String>, Error> {
    let probe = store.probe().await.map_err(Error::Probe)?;
    let mut warnings = Vec::new();
    if probe.durability == Durability::Process {
        warnings.push(format!(
            "the store `{}:` does not survive the end of this process: what ran before a restart \
             can run again after it",
            probe.store
        ));
    }
    warnings.extend(probe.warnings);
    Ok(warnings)
}
