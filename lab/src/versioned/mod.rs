//! The same storm on versioned records: every event changes the record of one of 500 assets.
//!
//! For every other asset the record is written inside the inbox's transaction; the others are
//! changed by [`semel::versioned::update`] without an inbox, and know by what is in them which
//! events they had. No update may be lost, and no version given twice or left out.

mod judge;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use semel::Scope;
use semel::transaction::Lent;
use semel::versioned::{
    Expected, NaturalKey, Retries, UpdateError, Version, Versioned, VersionedIn, WriteError,
};
use serde::{Deserialize, Serialize};

use crate::base::Base;
use crate::crash::failpoints::Failpoints;
use crate::crash::point::Point;
use crate::events::Kind;
use crate::events::apply::Tables;
use crate::events::consumer::{Consumer, Failed};
use crate::events::plan::{ASSETS, Asset, Happening};

pub(crate) use judge::judge;

/// What is in the record of an asset.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Content {
    state: u64,
    last: u64,
    loads: u64,
    /// The events that it had, in their order.
    had: Vec<u64>,
}

impl Content {
    fn of(found: Option<&Versioned>) -> Result<Self, serde_json::Error> {
        match found {
            Some(found) => serde_json::from_slice(&found.value),
            None => Ok(Self::default()),
        }
    }

    pub(crate) fn asset(&self) -> Asset {
        Asset {
            state: self.state,
            last: self.last,
            loads: self.loads,
            events: self.had.len() as u64,
        }
    }

    fn after(mut self, event: &Happening) -> Result<Bytes, serde_json::Error> {
        let after = self.asset().after(event);
        (self.state, self.last, self.loads) = (after.state, after.last, after.loads);
        self.had.push(event.number);
        Ok(serde_json::to_vec(&self)?.into())
    }
}

fn key(run: &str, asset: u64) -> NaturalKey {
    NaturalKey::new(Scope::new(["lab", run]), &format!("asset-{asset}"))
}

/// Every record that there is, by its asset.
pub(crate) async fn read<B: Base + VersionedIn>(
    store: &B,
    run: &str,
) -> Result<BTreeMap<u64, (Version, Content)>> {
    let mut records = BTreeMap::new();
    for asset in 0..ASSETS {
        if let Some(found) = store.read(&key(run, asset)).await? {
            let content = Content::of(Some(&found)).context("a record's content")?;
            records.insert(asset, (found.version, content));
        }
    }
    Ok(records)
}

/// What a change inside a transaction needs.
pub(crate) struct Change<B> {
    pub(crate) store: Arc<B>,
    pub(crate) run: String,
    pub(crate) tables: Tables,
    /// The planted bug.
    pub(crate) overwrites: bool,
}

impl<B: Base + VersionedIn> Change<B> {
    /// Changes the records of these events, and writes down which versions that made.
    pub(crate) async fn all(
        &self,
        mut tx: Lent<B::Transaction>,
        events: Vec<Happening>,
        points: &Failpoints,
    ) -> Result<(), Failed<B::Error>> {
        for event in &events {
            let version = self.one(&mut tx, event).await?;
            points.pass(Point::BetweenStatements).await;
            let record = self.tables.record(event, version.0);
            B::execute(&mut tx, record).await.map_err(Failed::Driver)?;
        }
        Ok(())
    }

    async fn one(
        &self,
        tx: &mut B::Transaction,
        event: &Happening,
    ) -> Result<Version, Failed<B::Error>> {
        let key = key(&self.run, event.asset);
        loop {
            let found = match self.overwrites {
                // Without the lock that goes with reading inside the transaction.
                true => self.store.read(&key).await?,
                false => self.store.read_in(tx, &key).await?,
            };
            let content = Content::of(found.as_ref()).and_then(|content| content.after(event));
            let content = content.expect("a record holds what was put into it");
            let expected = match &found {
                _ if self.overwrites => Expected::Any,
                Some(found) => Expected::Version(found.version),
                None => Expected::Absent,
            };
            match self.store.write_in(tx, &key, expected, content).await {
                // Somebody else made the record first; what there is now can be read, and locked.
                Err(WriteError::ConcurrentModification {
                    expected: Expected::Absent,
                    ..
                }) => {}
                written => return Ok(written?),
            }
        }
    }
}

/// Why a record is not changed.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the record had this event")]
    Had,
    #[error("the record holds something else")]
    Content(#[from] serde_json::Error),
}

/// Changes a record without a transaction. Whether it had the event before is in the record itself.
pub(crate) async fn update<B: Base + VersionedIn>(
    consumer: &Consumer<B>,
    event: &Happening,
) -> Result<Kind, String> {
    consumer.points.pass(Point::Random).await;
    let key = key(consumer.run(), event.asset);
    let store = &*consumer.store;
    if consumer.overwrites() {
        return overwrite(store, &key, event).await;
    }
    let change = |found: Option<&Versioned>| {
        let content = Content::of(found)?;
        match content.had.contains(&event.number) {
            true => Err(Refused::Had),
            false => Ok(content.after(event)?),
        }
    };
    match semel::versioned::update(store, &key, Retries::default(), change).await {
        Ok(_) => {
            consumer.points.pass(Point::Committed).await;
            Ok(Kind::Handled)
        }
        Err(UpdateError::Refused(Refused::Had)) => Ok(Kind::Duplicate),
        Err(error) => Err(error.to_string()),
    }
}

/// Of a planted bug.
async fn overwrite<B: VersionedIn>(
    store: &B,
    key: &NaturalKey,
    event: &Happening,
) -> Result<Kind, String> {
    let found = store.read(key).await.map_err(|error| error.to_string())?;
    let content = Content::of(found.as_ref()).map_err(|error| error.to_string())?;
    if content.had.contains(&event.number) {
        return Ok(Kind::Duplicate);
    }
    let value = content.after(event).map_err(|error| error.to_string())?;
    let written = store.write(key, Expected::Any, value).await;
    written
        .map(|_| Kind::Handled)
        .map_err(|error| error.to_string())
}
