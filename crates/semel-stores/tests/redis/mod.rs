//! Redis: what the suite does not ask, on servers that are broken on purpose.

mod cluster;
mod faults;
mod keys;
mod memory;
mod probe;
mod tls;
mod trips;
mod urls;
mod waiting;

use std::net::SocketAddr;
use std::time::Duration;

use ::redis::{Cmd, Value};
use semel::store::{Acquired, Claim, ClaimRequest, Fenced, Nonce, Retention, StoreExt as _, Token};
use semel::{
    Fingerprint, Identity, IdentityDigest, Key, Outcome, Scope, Store as _, StoreError,
    StoreErrorKind,
};
use semel_stores::{RedisOptions, RedisStore};

const LEASE: Duration = Duration::from_secs(30);

fn unique() -> String {
    let nonce = Nonce::random().unwrap();
    format!("{:032x}", u128::from_be_bytes(*nonce.as_bytes()))
}

/// A prefix that nobody else has.
fn options() -> RedisOptions {
    RedisOptions::new()
        .prefix(format!("test:{}:", unique()))
        .for_tests()
}

fn identity(key: &str) -> Identity {
    Identity::new(
        Scope::new(["tenant", &unique()]),
        "POST /orders",
        Key::new(key).unwrap(),
    )
}

fn request() -> ClaimRequest {
    ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b"payload"), LEASE)
}

fn outcome() -> Outcome {
    Outcome::success(b"done")
}

fn acquired(claim: Claim) -> Acquired {
    match claim {
        Claim::Acquired(acquired) => acquired,
        other => panic!("not acquired: {other:?}"),
    }
}

async fn claim(store: &RedisStore, identity: &Identity) -> Acquired {
    acquired(store.claim(identity, &request()).await.unwrap())
}

#[track_caller]
fn failed<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: StoreErrorKind) -> StoreError {
    match result {
        Err(error) if error.kind() == kind => error,
        other => panic!("wanted {kind:?}: {other:?}"),
    }
}

/// Asks a server directly.
async fn ask(address: SocketAddr, command: &Cmd) -> Value {
    let client = ::redis::Client::open(format!("redis://{address}/")).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    command.query_async(&mut connection).await.unwrap()
}

async fn tell(address: SocketAddr, words: &[&str]) -> Value {
    let mut command = ::redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    ask(address, &command).await
}

async fn complete(
    store: &RedisStore,
    digest: &IdentityDigest,
    token: &Token,
) -> Result<Fenced, StoreError> {
    let outcome = outcome();
    store
        .complete(digest, token, &outcome, Retention::ORDER)
        .await
}
