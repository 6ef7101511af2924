//! Identities: scope + operation + key, joined so that no two lists collide.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use sha2::{Digest as _, Sha256};

use crate::secrets::Secrets;
use crate::{Fingerprint, Key};

/// Who and what a key belongs to: tenant, account, session… as ordered segments.
///
/// Segments may hold any text: they are joined with their lengths in front, so `["a:b", "c"]`,
/// `["a", "b:c"]` and `["a:b:c"]` are three scopes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Arc<[Box<str>]>);

impl Scope {
    /// A scope of these segments, in this order.
    pub fn new<S: AsRef<str>>(segments: impl IntoIterator<Item = S>) -> Self {
        Self(segments.into_iter().map(|s| s.as_ref().into()).collect())
    }

    /// The scope of callers without a principal.
    pub fn anonymous() -> Self {
        static ANONYMOUS: LazyLock<Scope> = LazyLock::new(|| Scope::new(["anonymous"]));
        ANONYMOUS.clone()
    }

    /// The segments, in order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|s| &**s)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

/// What a store looks up: SHA-256 over scope, operation and key with their lengths.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityDigest([u8; 32]);

impl IdentityDigest {
    /// From bytes read back from a store.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest's bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses the 64 hexadecimal digits that `Display` prints.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(hex, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl fmt::Display for IdentityDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0; 64];
        hex::encode_to_slice(self.0, &mut digits).map_err(|_| fmt::Error)?;
        f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for IdentityDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Scope + operation + key: what is done once.
///
/// An operation that changes the account while it runs leaves the account out of its scope; the
/// completion is pinned by the claim's token, not by the scope.
///
/// Cloning shares the parts: an identity is made once per request and cloned cheaply.
#[derive(Clone)]
pub struct Identity {
    parts: Arc<Parts>,
    // Under which of the secrets.
    nth: usize,
    // A store that seals keeps the start of the key elsewhere.
    has_hint: bool,
}

struct Parts {
    // As it is named under each secret.
    digests: [IdentityDigest; 2],
    secrets: Option<Secrets>,
    // Of scope, operation and key together: stores that count bytes need not walk them.
    len: usize,
    scope: Scope,
    // Shared by all identities of a layer.
    operation: Arc<str>,
    key: Key,
}

impl Identity {
    /// The identity of `key`, used for `operation` within `scope`.
    pub fn new(scope: Scope, operation: &str, key: Key) -> Self {
        Self::keyed(scope, operation, key, None)
    }

    /// The same under `secrets`: what a store, a log or an upstream sees of it, and of the
    /// fingerprint that is kept with it, says nothing to whoever does not have them.
    ///
    /// ```
    /// # use semel::{Identity, Key, Scope};
    /// use semel::secrets::Secrets;
    ///
    /// let secrets = Secrets::parse("2026 AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
    /// let card = Key::new("4111111111111111")?;
    /// let plain = Identity::new(Scope::new(["acme"]), "charge", card.clone());
    /// let keyed = Identity::keyed(Scope::new(["acme"]), "charge", card, Some(&secrets));
    /// assert_ne!(keyed.digest(), plain.digest());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn keyed(
        scope: Scope,
        operation: impl Into<Arc<str>>,
        key: Key,
        secrets: Option<&Secrets>,
    ) -> Self {
        let operation = operation.into();
        let plain = digest_of(&scope, &operation, &key);
        let digests = match secrets {
            Some(secrets) => secrets.digests(plain.as_bytes()),
            None => [plain; 2],
        };
        let names: usize = scope.segments().map(str::len).sum();
        let parts = Parts {
            digests,
            secrets: secrets.cloned(),
            len: names + operation.len() + key.as_str().len(),
            scope,
            operation,
            key,
        };
        Self {
            parts: Arc::new(parts),
            nth: 0,
            has_hint: true,
        }
    }

    /// The same under the other secret, where [two are in use](crate::secrets).
    pub fn other(&self) -> Option<Self> {
        let secrets = self.parts.secrets.as_ref()?;
        (secrets.names().len() > 1).then(|| Self {
            nth: 1 - self.nth,
            ..self.clone()
        })
    }

    /// A fingerprint as it is kept under this identity.
    pub fn fingerprint(&self, plain: Fingerprint) -> Fingerprint {
        match &self.parts.secrets {
            Some(secrets) => secrets.fingerprint(self.nth, plain),
            None => plain,
        }
    }

    /// What a store looks up.
    pub fn digest(&self) -> &IdentityDigest {
        &self.parts.digests[self.nth]
    }

    /// What a store keeps of the key: its [`hint`](Key::hint), or nothing.
    pub fn hint(&self) -> &str {
        match self.has_hint {
            true => self.parts.key.hint(),
            false => "",
        }
    }

    /// The same, for a store that is not to keep the hint.
    #[cfg(feature = "sealed")]
    pub(crate) fn without_hint(&self) -> Self {
        Self {
            has_hint: false,
            ..self.clone()
        }
    }

    // How many bytes of text it holds.
    pub(crate) fn text_len(&self) -> usize {
        self.parts.len
    }

    /// Who and what the key belongs to.
    pub fn scope(&self) -> &Scope {
        &self.parts.scope
    }

    /// The name of what is done.
    pub fn operation(&self) -> &str {
        &self.parts.operation
    }

    /// The key. Stores keep its [`hint`](Key::hint), never the whole of it.
    pub fn key(&self) -> &Key {
        &self.parts.key
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.digest() == other.digest()
            && self.key() == other.key()
            && self.scope() == other.scope()
            && self.operation() == other.operation()
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest().hash(state);
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("scope", self.scope())
            .field("operation", &self.operation())
            .field("key", self.key())
            .finish_non_exhaustive()
    }
}

// Every variable part is preceded by its length, and the number of segments by a count: the
// encoding can be parsed back in one way only, so two different identities never hash the same
// bytes.
fn digest_of(scope: &Scope, operation: &str, key: &Key) -> IdentityDigest {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(b"semel/identity/1");
    part(&(scope.0.len() as u64).to_be_bytes());
    for segment in &*scope.0 {
        part(segment.as_bytes());
    }
    part(operation.as_bytes());
    part(key.as_str().as_bytes());
    IdentityDigest(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(scope: &[&str], operation: &str, key: &str) -> IdentityDigest {
        *Identity::new(Scope::new(scope), operation, Key::new(key).unwrap()).digest()
    }

    #[test]
    fn no_two_lists_of_parts_collide() {
        let all = [
            identity(&["a:b"], "op", "c"),
            identity(&["a", "b"], "op", "c"),
            identity(&["a"], "op", "b:c"),
            identity(&["a"], "b:op", "c"),
            identity(&[], "a", "op:b:c"),
            identity(&["a", "b", "op"], "c", "c"),
            identity(&["a", ""], "op", "c"),
            identity(&["", "a"], "op", "c"),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn hexadecimal_round_trip() {
        let digest = identity(&["a"], "op", "k");
        assert_eq!(IdentityDigest::from_hex(&digest.to_string()), Some(digest));
        assert_eq!(IdentityDigest::from_hex("zz"), None);
        assert_eq!(IdentityDigest::from_hex(&"g".repeat(64)), None);
    }
}
