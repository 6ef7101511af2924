//! Every operation happens once: asked for at the same time, later, after a kill, in any order.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use semel::guard::Done;
use tempfile::TempDir;
use trading::domain::{AccountId, Opened, Refusal};
use trading::once::{Answered, Asking, Error, Settings, Trading};

mod domain;
mod killed;
mod once;
mod random;
mod web;

const BALANCE: i64 = 1_000_000;

/// A folder in memory where there is one: what is tested here is not the disk.
fn folder() -> (TempDir, PathBuf) {
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => TempDir::new_in(memory),
        false => TempDir::new(),
    };
    let folder = folder.unwrap();
    let file = folder.path().join("trading.db");
    (folder, file)
}

fn open(file: &Path) -> Trading {
    let settings = Settings {
        balance: BALANCE,
        lease: Duration::from_secs(5),
    };
    Trading::open(file, &settings).unwrap()
}

fn asking<'a>(user: &'a str, key: &'a str) -> Asking<'a> {
    let key = Some(key);
    Asking { user, key }
}

/// A portfolio of the user's, with its first account.
async fn portfolio(trading: &Trading, user: &str) -> Opened {
    let key = format!("portfolio of {user}");
    first(trading.open_account(asking(user, &key)).await)
}

/// The answer to a call that ran.
#[track_caller]
fn first<T: std::fmt::Debug>(answered: Answered<T>) -> T {
    match answered.unwrap() {
        Done::Fresh(answer) => answer,
        other => panic!("not the first: {other:?}"),
    }
}

/// The answer to a call that did not run.
#[track_caller]
fn replayed<T: std::fmt::Debug>(answered: Answered<T>) -> T {
    match answered.unwrap() {
        Done::Replayed(answer) => answer,
        other => panic!("not replayed: {other:?}"),
    }
}

/// What was refused, in this call or before.
#[track_caller]
fn refused<T: std::fmt::Debug>(answered: Answered<T>) -> Refusal {
    match answered.unwrap_err() {
        Error::Refused { refusal, .. } => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

const NOBODYS: AccountId = AccountId(4711);
