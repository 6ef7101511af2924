//! What the NATS store promises beyond the suite: round trips, faults, its bucket.

#![allow(clippy::print_stdout, reason = "what was measured is shown")]

mod bucket;
mod cluster;
mod faults;
mod kills;
mod listing;
mod trips;
mod url;
mod waiting;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use semel::store::{
    Acquired, Claim, ClaimRequest, Fenced, Nonce, OnLost, Result, Retention, StoreExt as _, Token,
};
use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store};
use semel_stores::{NatsOptions, NatsStore, Schema};
use tempfile::TempDir;

const LONG: Duration = Duration::from_hours(1);

/// A name that nobody else has.
fn unique(what: &str) -> String {
    let nonce = Nonce::random().unwrap();
    format!("{what}_{}", hex::encode(nonce.as_bytes()))
}

fn identity(name: &str) -> Identity {
    let key = Key::new(&format!("{name}-0123456789abcdef")).unwrap();
    Identity::new(Scope::new(["test"]), "test", key)
}

fn request(lease: Duration) -> ClaimRequest {
    ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b"request"), lease)
        .with_on_lost(OnLost::Retry)
}

/// The URL of a server, with another bucket.
fn with_bucket(url: &str, bucket: &str) -> String {
    url.replace("/semel", &format!("/{bucket}"))
}

fn options(url: &str) -> NatsOptions {
    NatsOptions::from_url(url)
        .unwrap()
        .schema(Schema::Create)
        .for_tests()
}

async fn open(url: &str) -> NatsStore {
    options(url).open().await.unwrap()
}

async fn acquire(store: &NatsStore, identity: &Identity, lease: Duration) -> Token {
    match store.claim(identity, &request(lease)).await.unwrap() {
        Claim::Acquired(Acquired { token, .. }) => token,
        other => panic!("not acquired: {other:?}"),
    }
}

async fn complete(store: &NatsStore, identity: &Identity, token: &Token) -> Result<Fenced> {
    let outcome = Outcome::success(b"done");
    let retention = Retention::new(LONG);
    store
        .complete(identity.digest(), token, &outcome, retention)
        .await
}

/// A server with settings of its own, stopped when it is dropped.
pub(crate) struct Own {
    process: Child,
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

impl Own {
    /// `settings` take `DATA` for a folder.
    pub(crate) fn start(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let data = folder.path().join("data").display().to_string();
        let file = folder.path().join("nats.conf");
        let settings = format!("listen: {address}\n{}", settings.replace("DATA", &data));
        std::fs::write(&file, settings).unwrap();
        let process = Command::new("nats-server")
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "nats-server does not start"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Self {
            process,
            address,
            _folder: folder,
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
