//! Events: what a broker delivers, at least once.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::{Fingerprint, Identity, IdentityDigest, Key, Scope};

/// What every event's identity calls its operation.
pub(super) const OPERATION: &str = "event";

/// One delivery of an event. Cloning shares its parts.
///
/// The id names the event within its source, in every delivery: the producer's own id, or the
/// broker's number of the message where the producer gives none (then what the producer sends
/// twice are two events). Ids are treated as keys are: `Debug` shows the start of one only (R12).
#[derive(Clone)]
pub struct Event {
    source: Arc<str>,
    id: Arc<str>,
    body: Bytes,
    delivery: Option<u32>,
    fingerprint: Option<Fingerprint>,
}

impl Event {
    /// The event `id` of `source`: a stream, a queue, a topic with its partition. Any text; an empty
    /// id is refused when the event is received.
    pub fn new(source: impl AsRef<str>, id: impl AsRef<str>, body: impl Into<Bytes>) -> Self {
        Self {
            source: source.as_ref().into(),
            id: id.as_ref().into(),
            body: body.into(),
            delivery: None,
            fingerprint: None,
        }
    }

    /// The same with the broker's own count of its deliveries, from 1. See
    /// [`Inbox::with_deliveries_counted`](super::Inbox::with_deliveries_counted).
    #[must_use]
    pub const fn with_delivery(mut self, delivery: u32) -> Self {
        self.delivery = Some(delivery);
        self
    }

    /// The same with a digest of one's own of what it says, where the body is not the same in every
    /// delivery: a producer or a broker that writes the time of sending into it.
    #[must_use]
    pub const fn with_fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Where it comes from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What names it within its source. Do not log it (R12).
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What it says.
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Which delivery this is by the broker's count, from 1, where it counts.
    pub const fn delivery(&self) -> Option<u32> {
        self.delivery
    }

    /// What makes two deliveries of one id the same.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
            .unwrap_or_else(|| Fingerprint::of(&self.body))
    }

    /// Consumer, source and id, as the store looks them up; `None` for an empty id.
    pub(super) fn identity(&self, consumer: &str) -> Option<Identity> {
        if self.id.is_empty() {
            return None;
        }
        let (scope, key) = match Key::new(&self.id) {
            Ok(key) => (Scope::new(["inbox", consumer, &self.source]), key),
            // Too long for a key, or with control characters: by its digest, and in a scope of its
            // own, so that no id is taken for another's digest.
            Err(_) => {
                let digest: [u8; 32] = Sha256::digest(self.id.as_bytes()).into();
                let digest = IdentityDigest::from_bytes(digest).to_string();
                let scope = Scope::new(["inbox", consumer, &self.source, "sha256"]);
                (scope, Key::new(&digest).ok()?)
            }
        };
        Some(Identity::new(scope, OPERATION, key))
    }

    fn hint(&self) -> String {
        let shown = self.id.chars().count().div_euclid(2).min(8);
        self.id.chars().take(shown).collect()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("source", &self.source)
            .field("id", &format_args!("{}…", self.hint()))
            .field("bytes", &self.body.len())
            .field("delivery", &self.delivery)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(source: &str, id: &str) -> IdentityDigest {
        *Event::new(source, id, "")
            .identity("billing")
            .unwrap()
            .digest()
    }

    #[test]
    fn it_says_its_source_and_hints_at_its_id() {
        let event = Event::new("orders", "order-12345", "");
        assert_eq!(event.source(), "orders");
        let shown = format!("{event:?}");
        assert!(shown.contains("order…"), "{shown}");
        assert!(!shown.contains("12345"), "{shown}");
    }

    #[test]
    fn every_id_has_an_identity_of_its_own() {
        let long = "x".repeat(300);
        let hashed = IdentityDigest::from_bytes(Sha256::digest(&long).into()).to_string();
        let all = [
            digest("a", "1"),
            digest("b", "1"),
            digest("a", &long),
            digest("a", &hashed),
            digest("a", "1\n"),
            digest("a", "1\0"),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other != one));
        }
        assert!(Event::new("a", "", "").identity("billing").is_none());
        let other = Event::new("a", "1", "").identity("shipping").unwrap();
        assert_ne!(*other.digest(), all[0]);
    }

    #[test]
    fn debug_shows_neither_the_id_nor_the_body() {
        let shown = format!("{:?}", Event::new("orders", "8e03978e-40d5", "secret"));
        assert!(
            !shown.contains("8e03978e-40d5") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
