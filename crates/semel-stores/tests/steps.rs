//! Steps that tests of stores on disk begin with.

use std::time::Duration;

use semel::store::{Acquired, Claim, ClaimRequest, Fenced, Nonce, Retention, StoreExt as _, Token};
use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store};

/// Leases that do not end here.
pub(crate) const LONG: Duration = Duration::from_hours(1);

pub(crate) fn identity(key: &str) -> Identity {
    Identity::new(Scope::new(["tenant", "7"]), "order", Key::new(key).unwrap())
}

pub(crate) fn request() -> ClaimRequest {
    ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b"request"), LONG)
}

pub(crate) async fn acquire(store: &impl Store, key: &str) -> Acquired {
    match store.claim(&identity(key), &request()).await.unwrap() {
        Claim::Acquired(acquired) => acquired,
        other => panic!("{key} was not acquired but {other:?}"),
    }
}

pub(crate) async fn complete(store: &impl Store, key: &str, token: &Token, body: &[u8]) {
    let (identity, outcome) = (identity(key), Outcome::success(body));
    let done = store.complete(identity.digest(), token, &outcome, Retention::ORDER);
    assert_eq!(done.await.unwrap(), Fenced::Applied, "{key}");
}

/// The body that a claim replays.
pub(crate) async fn replayed(store: &impl Store, key: &str) -> bytes::Bytes {
    match store.claim(&identity(key), &request()).await.unwrap() {
        Claim::Completed { outcome, .. } => outcome.body().unwrap(),
        other => panic!("{key} was not completed but {other:?}"),
    }
}
