//! The assets in the database, and the transaction of one event.
//!
//! An asset's version is the number of its last event. An event whose turn it is makes the next
//! version; one that is early waits in a table, and is applied in the transaction of the event
//! before it. So the order of deliveries changes nothing. Where one cannot be handled and is set aside,
//! the ones after it wait until another event comes with its number: whether they make sense without
//! it is for a person to say.

use std::path::Path;

use anyhow::Result;
use semel::Scope;
use semel::inbox::DeadLetter;
use semel::versioned::{
    Expected, NaturalKey, Version, VersionedIn as _, VersionedStore as _, WriteError,
};
use semel_stores::sqlite::rusqlite::{self, Connection, OptionalExtension as _};
use semel_stores::{SqliteStore, SqliteTransaction};

use crate::asset::{Asset, Event};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS assets (name TEXT PRIMARY KEY) STRICT;
    CREATE TABLE IF NOT EXISTS early (
        asset TEXT NOT NULL, number INTEGER NOT NULL, event TEXT NOT NULL,
        PRIMARY KEY (asset, number)
    ) STRICT;
    CREATE TABLE IF NOT EXISTS refused (
        asset TEXT NOT NULL, number INTEGER NOT NULL, why TEXT NOT NULL,
        PRIMARY KEY (asset, number)
    ) STRICT;
    CREATE TABLE IF NOT EXISTS set_aside (
        source TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL, reason TEXT NOT NULL,
        errors TEXT NOT NULL,
        PRIMARY KEY (source, id, body)
    ) STRICT;";

/// How many events of an asset wait, where the one whose turn it is was set aside.
const HELD_UP: &str = "
    SELECT count(*) FROM early WHERE asset = ?1 AND EXISTS (
        SELECT 1 FROM set_aside WHERE CASE
            WHEN json_valid(body) THEN body ->> 'asset' = ?1 AND body ->> 'number' = ?2
        END)";

/// Why an event cannot be handled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("this is no event: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("{asset} has another event with the number {number}")]
    NumberTaken { asset: String, number: u64 },
    #[error("the database failed")]
    Store(#[from] semel::StoreError),
    #[error("the database failed")]
    Write(#[from] WriteError),
    #[error("the database failed: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// Makes the tables that are beside semel's.
pub(crate) fn create(path: &Path) -> rusqlite::Result<()> {
    Connection::open(path)?.execute_batch(TABLES)
}

fn key(asset: &str) -> NaturalKey {
    NaturalKey::new(Scope::new(["assets"]), asset)
}

/// Applies an event, and those that waited for it; or lets it wait.
pub(crate) async fn apply(
    store: &SqliteStore,
    tx: &mut SqliteTransaction,
    mut event: Event,
) -> Result<(), Error> {
    let key = key(&event.asset);
    // Locked until the commit: the events of an asset are applied one after the other.
    let (mut asset, mut version) = match store.read_in(tx, &key).await? {
        Some(found) => (serde_json::from_slice(&found.value)?, found.version),
        None => {
            let name = event.asset.clone();
            let note = "INSERT OR IGNORE INTO assets VALUES (?1)";
            tx.call(move |on| on.execute(note, [name])).await?;
            (Asset::default(), Version(0))
        }
    };
    if event.number <= version.0 {
        return Err(taken(event));
    }
    if event.number > version.0 + 1 {
        return wait(tx, event).await;
    }
    loop {
        asset = match asset.after(&event.change) {
            Ok(next) => next,
            Err(refusal) => {
                let note = "INSERT INTO refused VALUES (?1, ?2, ?3)";
                let row = (event.asset.clone(), bits(event.number), refusal.to_string());
                tx.call(move |on| on.execute(note, row)).await?;
                asset
            }
        };
        let expected = match version {
            Version(0) => Expected::Absent,
            version => Expected::Version(version),
        };
        let value = serde_json::to_vec(&asset)?.into();
        version = store.write_in(tx, &key, expected, value).await?;
        match waiting(tx, event.asset, version.next()).await? {
            Some(next) => event = next,
            None => return Ok(()),
        }
    }
}

fn taken(event: Event) -> Error {
    let Event { asset, number, .. } = event;
    Error::NumberTaken { asset, number }
}

async fn wait(tx: &mut SqliteTransaction, event: Event) -> Result<(), Error> {
    let text = serde_json::to_string(&event)?;
    let row = (event.asset.clone(), bits(event.number), text);
    let note = "INSERT OR IGNORE INTO early VALUES (?1, ?2, ?3)";
    match tx.call(move |on| on.execute(note, row)).await? {
        0 => Err(taken(event)),
        _ => Ok(()),
    }
}

/// As SQLite keeps numbers.
const fn bits(number: u64) -> i64 {
    number.cast_signed()
}

/// Takes the event that waits for its turn.
async fn waiting(
    tx: &mut SqliteTransaction,
    asset: String,
    turn: Version,
) -> Result<Option<Event>, Error> {
    let take = "DELETE FROM early WHERE asset = ?1 AND number = ?2 RETURNING event";
    let event: Option<String> = tx
        .call(move |on| {
            let taken = on.query_row(take, (asset, bits(turn.0)), |row| row.get(0));
            taken.optional()
        })
        .await?;
    Ok(event.as_deref().map(serde_json::from_str).transpose()?)
}

/// Keeps an event that cannot be handled, for a person to look at. Again for one that it was called
/// for before.
pub(crate) fn set_aside(path: &Path, letter: &DeadLetter) -> Result<()> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    let event = &letter.event;
    let body = String::from_utf8_lossy(event.body());
    let reason = format!("{:?}", letter.reason);
    let errors = serde_json::to_string(&letter.errors)?;
    let note = "INSERT OR REPLACE INTO set_aside VALUES (?1, ?2, ?3, ?4, ?5)";
    connection.execute(note, (event.source(), event.id(), body, reason, errors))?;
    Ok(())
}

/// All that there is to say, a line each: the assets, then what is not as it should be.
pub(crate) async fn report(store: &SqliteStore, path: &Path) -> Result<Vec<String>> {
    let connection = Connection::open(path)?;
    let list = |sql: &str| -> rusqlite::Result<Vec<String>> {
        let mut statement = connection.prepare(sql)?;
        statement.query_map([], |row| row.get(0))?.collect()
    };
    let mut report = Vec::new();
    for name in list("SELECT name FROM assets ORDER BY name")? {
        let mut turn = Version::FIRST;
        if let Some(found) = store.read(&key(&name)).await? {
            let asset: Asset = serde_json::from_slice(&found.value)?;
            let (asset, version) = (serde_json::to_string(&asset)?, found.version);
            report.push(format!("{name} after {version} events: {asset}"));
            turn = version.next();
        }
        let waiting = (&name, bits(turn.0));
        let waiting: i64 = connection.query_row(HELD_UP, waiting, |row| row.get(0))?;
        if waiting > 0 {
            report.push(format!(
                "held up: {name}, {waiting} events wait for event {turn}, which was set aside"
            ));
        }
    }
    for sql in [
        "SELECT format('refused: %s, event %d: %s', asset, number, why) FROM refused
         ORDER BY asset, number",
        "SELECT format('early: %s, event %d', asset, number) FROM early ORDER BY asset, number",
        "SELECT format('set aside (%s): %s', reason, body) FROM set_aside ORDER BY body",
    ] {
        report.extend(list(sql)?);
    }
    Ok(report)
}
