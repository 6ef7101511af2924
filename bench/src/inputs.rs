//! What callers bring, the same in every topic.

use std::time::Duration;

use semel::store::{ClaimRequest, Nonce};
use semel::{Fingerprint, Identity, Key, Outcome, Scope};
use semel_bench_load::{answer, key};

pub(crate) fn identity(index: usize) -> Identity {
    let key = Key::new(&key(index)).expect("a valid key");
    Identity::new(Scope::new(["tenant-1"]), "place_order", key)
}

pub(crate) fn outcome(index: usize) -> Outcome {
    Outcome::success(&answer(index))
}

/// A claim with a nonce of its own, as every attempt makes one.
pub(crate) fn request(fingerprint: Fingerprint) -> ClaimRequest {
    ClaimRequest::new(
        Nonce::random().expect("the system has randomness"),
        fingerprint,
        Duration::from_secs(30),
    )
}
