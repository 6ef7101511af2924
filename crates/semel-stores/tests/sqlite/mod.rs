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

use semel_stores::{Schema, SqliteOptions, SqliteStore};
use tempfile::TempDir;

use crate::steps::{LONG, acquire, complete, identity, replayed, request};

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
