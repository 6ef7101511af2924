//! The embedded store.

mod crash;
mod damage;
mod engine;
mod fake;
mod life;
mod place;
mod reopen;

use std::time::Duration;

use semel::store::{Acquired, Claim, ClaimRequest, Fenced, Nonce, Retention, StoreExt as _, Token};
use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store};
use semel_stores::{FileOptions, FileStore};

pub(crate) fn identity(key: &str) -> Identity {
    Identity::new(Scope::new(["tenant", "7"]), "order", Key::new(key).unwrap())
}

pub(crate) fn request() -> ClaimRequest {
    ClaimRequest::new(
        Nonce::random().unwrap(),
        Fingerprint::of(b"body"),
        Duration::from_secs(60),
    )
}

pub(crate) fn open(path: &std::path::Path) -> FileStore {
    FileOptions::new().open(path).unwrap()
}

pub(crate) async fn acquire(store: &FileStore, key: &str) -> Acquired {
    match store.claim(&identity(key), &request()).await.unwrap() {
        Claim::Acquired(acquired) => acquired,
        other => panic!("{key}: {other:?}"),
    }
}

pub(crate) async fn complete(store: &FileStore, key: &str, token: &Token, body: &[u8]) {
    let fenced = store
        .complete(
            identity(key).digest(),
            token,
            &Outcome::success(body),
            Retention::ORDER,
        )
        .await;
    assert_eq!(fenced.unwrap(), Fenced::Applied);
}

pub(crate) async fn settle(store: &FileStore, key: &str) -> Token {
    let token = acquire(store, key).await.token;
    complete(store, key, &token, key.as_bytes()).await;
    token
}

/// The body that a claim replays, if it does.
pub(crate) async fn replayed(store: &FileStore, key: &str) -> Option<bytes::Bytes> {
    match store.claim(&identity(key), &request()).await.unwrap() {
        Claim::Completed { outcome, .. } => outcome.body(),
        _ => None,
    }
}
