//! On MariaDB servers: faults, round trips, findings, migrations.

#![allow(clippy::print_stdout, reason = "what a run measured is of use")]

mod faults;
mod findings;
mod groups;
mod life;
mod locks;
mod schema;
mod transact;
mod transact_steps;
mod trips;
mod versioned;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::store::{
    Acquired, Claim, ClaimRequest, Fenced, Nonce, OnLost, Retention, StoreExt as _, Token,
};
use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store, StoreError};
use semel_stores::{MysqlOptions, MysqlStore, Schema};
use semel_testkit::servers::{Kind, MariaDb, shared};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection};

/// A server that nobody else uses.
async fn own(settings: &'static [&'static str]) -> MariaDb {
    let server = tokio::task::spawn_blocking(|| MariaDb::start(settings));
    server.await.unwrap().unwrap()
}

/// The URL of one that other tests use too.
pub(crate) async fn common() -> String {
    let url = tokio::task::spawn_blocking(|| shared(Kind::MariaDb));
    url.await.unwrap().unwrap()
}

/// A table's name that nobody else uses.
pub(crate) fn table() -> String {
    static TABLES: AtomicU32 = AtomicU32::new(0);
    let number = TABLES.fetch_add(1, Ordering::Relaxed);
    format!("test_{}_{number}", std::process::id())
}

/// How a store with a table of its own is opened there.
pub(crate) fn options(url: &str) -> MysqlOptions {
    let options = MysqlOptions::from_url(url).unwrap();
    options
        .table(&table())
        .unwrap()
        .schema(Schema::Create)
        .for_tests()
}

async fn open(url: &str) -> MysqlStore {
    options(url).open().await.unwrap()
}

/// A connection beside the store's.
pub(crate) async fn link(url: &str) -> MySqlConnection {
    MySqlConnection::connect(url).await.unwrap()
}

pub(crate) async fn ask(link: &mut MySqlConnection, sql: impl Into<String>) -> Vec<MySqlRow> {
    link.fetch_all(AssertSqlSafe(sql.into())).await.unwrap()
}

fn identity(key: &str) -> Identity {
    Identity::new(
        Scope::new(["tests", "of \0\n'mysql'"]),
        "test",
        Key::new(key).unwrap(),
    )
}

fn request(lease: Duration, on_lost: OnLost) -> ClaimRequest {
    ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b"request"), lease)
        .with_on_lost(on_lost)
}

const LONG: Duration = Duration::from_secs(60);

async fn claim(store: &MysqlStore, key: &str) -> Result<Claim, StoreError> {
    let request = request(LONG, OnLost::Hold);
    store.claim(&identity(key), &request).await
}

fn acquired(claim: Claim) -> Acquired {
    match claim {
        Claim::Acquired(acquired) => acquired,
        other => panic!("not acquired: {other:?}"),
    }
}

async fn acquire(store: &MysqlStore, key: &str) -> Token {
    acquired(claim(store, key).await.unwrap()).token
}

async fn complete(store: &MysqlStore, key: &str, token: &Token) -> Result<Fenced, StoreError> {
    let outcome = Outcome::success(key.as_bytes());
    let identity = identity(key);
    store
        .complete(identity.digest(), token, &outcome, Retention::ORDER)
        .await
}
