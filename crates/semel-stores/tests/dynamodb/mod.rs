//! The store on DynamoDB, against an emulator: moto, one request at a time.
//!
//! Tests that count requests, or break the server, have one of their own; the others share one and
//! have a table each.

#![expect(
    clippy::print_stderr,
    reason = "how long a wake-up took is printed, not asserted"
)]

mod answers;
mod faults;
mod leases;
mod requests;
mod schema;
mod versioned;
mod waiting;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel::store::{
    Acquired, Claim, ClaimRequest, Fenced, Nonce, OnLost, Retention, Store, StoreExt as _, Token,
};
use semel::{Fingerprint, Identity, Key, Outcome, Scope};
use semel_stores::{DynamoDbOptions, DynamoDbStore, Schema};
use semel_testkit::servers::{Kind, shared};

const LONG: Duration = Duration::from_secs(3600);
const DAY: Retention = Retention::ORDER;

/// The name of a table that nobody else has.
fn table() -> String {
    static TABLES: AtomicU64 = AtomicU64::new(0);
    let number = TABLES.fetch_add(1, Ordering::Relaxed);
    format!("test-{}-{number}", std::process::id())
}

/// A table at this URL's server.
fn at(url: &str, table: &str) -> String {
    url.replacen("dynamodb://semel?", &format!("dynamodb://{table}?"), 1)
}

fn options(url: &str) -> DynamoDbOptions {
    // The emulator is slow, and has this machine's cores to share.
    DynamoDbOptions::from_url(url)
        .unwrap()
        .timeout(Duration::from_secs(30))
        .for_tests()
}

/// The URL of a table of one's own on the shared server, which is not there yet.
fn url() -> String {
    at(&shared(Kind::DynamoDb).unwrap(), &table())
}

/// A store on a table of its own.
async fn store() -> DynamoDbStore {
    create(options(&url())).await
}

async fn create(options: DynamoDbOptions) -> DynamoDbStore {
    options.schema(Schema::Create).open().await.unwrap()
}

/// An identity of this name.
fn identity(name: &str) -> Identity {
    Identity::new(Scope::new(["test"]), "op", Key::new(name).unwrap())
}

fn request(lease: Duration, on_lost: OnLost) -> ClaimRequest {
    ClaimRequest::new(
        Nonce::random().unwrap(),
        Fingerprint::of(b"the request"),
        lease,
    )
    .with_on_lost(on_lost)
}

async fn claim(store: &impl Store, identity: &Identity, request: &ClaimRequest) -> Claim {
    store.claim(identity, request).await.unwrap()
}

#[track_caller]
fn acquired(claim: Claim) -> Acquired {
    match claim {
        Claim::Acquired(acquired) => acquired,
        other => panic!("wanted Acquired, found {other:?}"),
    }
}

#[track_caller]
fn applied(fenced: Fenced) {
    assert_eq!(fenced, Fenced::Applied);
}

async fn complete(store: &impl Store, identity: &Identity, token: &Token, retention: Retention) {
    let outcome = outcome();
    let done = store.complete(identity.digest(), token, &outcome, retention);
    applied(done.await.unwrap());
}

fn outcome() -> Outcome {
    Outcome::success(b"done")
}

/// How many requests the emulator there has taken, of one operation or of all.
fn taken(server: SocketAddr, operation: Option<&str>) -> u64 {
    let mut stream = TcpStream::connect(server).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let json = answer.rsplit("\r\n\r\n").next().unwrap();
    // {"UpdateItem": 3, "GetItem": 1}
    json.trim_matches(['{', '}'])
        .split(", ")
        .filter_map(|entry| entry.split_once(": "))
        .filter(|(name, _)| operation.is_none_or(|wanted| name.trim_matches('"') == wanted))
        .map(|(_, count)| count.parse::<u64>().unwrap())
        .sum()
}
