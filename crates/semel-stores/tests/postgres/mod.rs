//! The PostgreSQL store, on real servers.

#![expect(clippy::print_stdout, reason = "what tests measured")]

mod faults;
mod fences;
mod hosts;
mod locks;
mod pooler;
mod probe;
mod push;
mod races;
mod schema;
#[cfg(feature = "postgres-sqlx")]
mod sqlx;
mod steps;
mod tls;
mod transact;
mod transact_steps;
mod trips;
mod versioned;

use std::time::Duration;

use semel::store::{
    Acquired, Claim, ClaimRequest, Fence, Fenced, Nonce, Retention, StoreExt as _, Token,
};
use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store as _};
use semel_stores::{PostgresOptions, PostgresStore, Schema};
use semel_testkit::servers::{Kind, shared};

/// A table's name that nobody else has.
pub(crate) fn table() -> String {
    let nonce = Nonce::random().unwrap();
    format!("t_{}", hex::encode(nonce.as_bytes()))
}

/// The URL of the server that tests share, with a table of one's own.
pub(crate) fn url() -> String {
    format!("{}?table={}", shared(Kind::Postgres).unwrap(), table())
}

async fn open(url: &str) -> PostgresStore {
    let options = PostgresOptions::from_url(url).unwrap();
    options
        .schema(Schema::Create)
        .for_tests()
        .open()
        .await
        .unwrap()
}

/// A bare connection, to see and do what the store does not.
pub(crate) async fn client(url: &str) -> tokio_postgres::Client {
    let url = url.split('?').next().unwrap();
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

fn identity(key: &str) -> Identity {
    Identity::new(Scope::new(["tenant", "7"]), "order", Key::new(key).unwrap())
}

fn request() -> ClaimRequest {
    ClaimRequest::new(
        Nonce::random().unwrap(),
        Fingerprint::of(b"body"),
        Duration::from_secs(60),
    )
}

async fn acquire(store: &PostgresStore, key: &str) -> Acquired {
    acquire_as(store, key, &request()).await
}

async fn acquire_as(store: &PostgresStore, key: &str, request: &ClaimRequest) -> Acquired {
    match store.claim(&identity(key), request).await.unwrap() {
        Claim::Acquired(acquired) => acquired,
        other => panic!("{key}: {other:?}"),
    }
}

async fn complete(store: &PostgresStore, key: &str, token: &Token) -> Fenced {
    let (identity, outcome) = (identity(key), Outcome::success(key.as_bytes()));
    let done = store.complete(identity.digest(), token, &outcome, Retention::ORDER);
    done.await.unwrap()
}

/// The body that a claim replays.
async fn replayed(store: &PostgresStore, key: &str) -> bytes::Bytes {
    match store.claim(&identity(key), &request()).await.unwrap() {
        Claim::Completed { outcome, .. } => outcome.body().unwrap(),
        other => panic!("{key}: {other:?}"),
    }
}

/// A token that was never given out.
fn forged(fence: u64) -> Token {
    Token {
        fence: Fence(fence),
        nonce: Nonce::random().unwrap(),
    }
}
