//! The SQLite store, on files.

mod app;
mod capacity;
mod clock;
mod crash;
mod damage;
mod locks;
mod opening;
mod processes;
mod steps;
mod transact;
mod transact_steps;
mod transaction;
mod versioned;
mod waits;

use std::path::{Path, PathBuf};
use std::time::Duration;

use semel::store::{Acquired, Claim, ClaimRequest, Fenced, Nonce, Retention, StoreExt as _, Token};
use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store};
use semel_stores::{Schema, SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// Leases and retention that do not end here.
const LONG: Duration = Duration::from_hours(1);

fn options() -> SqliteOptions {
    SqliteOptions::new().schema(Schema::Create).for_tests()
}

fn open(path: &Path) -> SqliteStore {
    options().open(path).unwrap()
}

/// A file that is not there yet, in a directory that is.
fn file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    (directory, path)
}

/// Another program's connection.
fn foreign(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

fn identity(key: &str) -> Identity {
    Identity::new(Scope::new(["tests"]), "order", Key::new(key).unwrap())
}

fn request() -> ClaimRequest {
    ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b"request"), LONG)
}

async fn acquire(store: &SqliteStore, key: &str) -> Acquired {
    match store.claim(&identity(key), &request()).await.unwrap() {
        Claim::Acquired(acquired) => acquired,
        other => panic!("{key} was not acquired but {other:?}"),
    }
}

async fn complete(store: &SqliteStore, key: &str, token: &Token, body: &[u8]) {
    let (identity, outcome) = (identity(key), Outcome::success(body));
    let done = store.complete(identity.digest(), token, &outcome, Retention::new(LONG));
    assert_eq!(done.await.unwrap(), Fenced::Applied, "{key}");
}

async fn replayed(store: &SqliteStore, key: &str) -> Outcome {
    match store.claim(&identity(key), &request()).await.unwrap() {
        Claim::Completed { outcome, .. } => outcome,
        other => panic!("{key} was not completed but {other:?}"),
    }
}
