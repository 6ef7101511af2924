//! The names of versioned records.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::WriteError;
use crate::{Scope, StoreError, StoreErrorKind};

/// What the application itself calls a record: an account's number, a SKU, a path. Any text.
///
/// Not a client's secret, unlike an idempotency [`Key`](crate::Key): stores keep it in clear, for
/// whoever reads the table.
///
/// Cloning shares the parts.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NaturalKey(Arc<Parts>);

#[derive(PartialEq, Eq, Hash)]
struct Parts {
    digest: [u8; 32],
    scope: Scope,
    name: Box<str>,
}

impl NaturalKey {
    /// The most bytes of scope and name together that a store takes.
    pub const MAX_BYTES: usize = 4096;

    /// The record that is called `name` within `scope`.
    pub fn new(scope: Scope, name: &str) -> Self {
        Self(Arc::new(Parts {
            digest: digest_of(&scope, name),
            scope,
            name: name.into(),
        }))
    }

    /// What a store looks up: SHA-256 over scope and name with their lengths.
    pub fn digest(&self) -> &[u8; 32] {
        &self.0.digest
    }

    /// Whom and what the name belongs to.
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether a store takes it, for those who implement one.
    ///
    /// # Errors
    /// [`TooLarge`](StoreErrorKind::TooLarge), without the name.
    pub fn check(&self) -> Result<(), WriteError> {
        let scope: usize = self.scope().segments().map(str::len).sum();
        let len = scope + self.name().len();
        if len <= Self::MAX_BYTES {
            return Ok(());
        }
        Err(WriteError::Store(StoreError::new(
            StoreErrorKind::TooLarge,
            format!(
                "the record's scope and name have {len} bytes; {} are kept",
                Self::MAX_BYTES
            ),
        )))
    }
}

impl fmt::Debug for NaturalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NaturalKey")
            .field("scope", self.scope())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

// As identities are hashed: each part behind its length, the segments behind their number, all of
// it behind a name of its own.
fn digest_of(scope: &Scope, name: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(b"semel/natural-key/1");
    part(&(scope.segments().len() as u64).to_be_bytes());
    for segment in scope.segments() {
        part(segment.as_bytes());
    }
    part(name.as_bytes());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_lists_of_parts_collide() {
        let digest = |scope: &[&str], name| *NaturalKey::new(Scope::new(scope), name).digest();
        let all = [
            digest(&["a", "b"], "c"),
            digest(&["a"], "b:c"),
            digest(&["a:b"], "c"),
            digest(&[], "c"),
            digest(&[""], "c"),
            digest(&["a", "b", "c"], ""),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
    }

    // What a store looks up must be found by every later version.
    #[test]
    fn the_digest_is_as_it_was() {
        let key = NaturalKey::new(Scope::new(["tenant-1", "accounts"]), "DE-4711");
        let hex = hex::encode(key.digest());
        assert_eq!(
            hex,
            "3b2e216879317a8661c89d333b8938236a42a90c19823b9b7e4167fbf43b6b8a"
        );
    }

    #[test]
    fn what_is_too_long_is_told_without_the_name() {
        let long = "n".repeat(NaturalKey::MAX_BYTES);
        assert!(NaturalKey::new(Scope::new([""]), &long).check().is_ok());
        let error = NaturalKey::new(Scope::new(["s"]), &long)
            .check()
            .unwrap_err();
        assert!(error.to_string().contains("4097"), "{error}");
        assert!(!error.to_string().contains("nnn"), "{error}");
    }
}
