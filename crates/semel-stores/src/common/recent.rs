//! A map by identity that forgets what was not used for long.

use std::collections::HashMap;

use semel::IdentityDigest;

/// How many of the latest are kept at least; at most twice as many.
const KEPT: usize = 16_384;

/// Two generations: when the young are [`KEPT`] they become the old, and the old are dropped.
pub(crate) struct Recent<T> {
    young: HashMap<IdentityDigest, T>,
    old: HashMap<IdentityDigest, T>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<T> Recent<T> {
    /// What is looked at is young again.
    pub(crate) fn get(&mut self, identity: &IdentityDigest) -> Option<&mut T> {
        if let Some(value) = self.old.remove(identity) {
            self.insert(identity, value);
        }
        self.young.get_mut(identity)
    }

    pub(crate) fn insert(&mut self, identity: &IdentityDigest, value: T) {
        self.old.remove(identity);
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(*identity, value);
    }

    pub(crate) fn remove(&mut self, identity: &IdentityDigest) -> Option<T> {
        let young = self.young.remove(identity);
        young.or_else(|| self.old.remove(identity))
    }

    /// Whether much can be put in before anything is forgotten.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn has_room(&self) -> bool {
        self.young.len() < KEPT / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_what_is_looked_at_stays() {
        let numbered = |n: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            IdentityDigest::from_bytes(bytes)
        };
        let mut recent = Recent::default();
        for n in 0..5 * KEPT {
            recent.insert(&numbered(n), n);
            if n % KEPT == 0 {
                assert_eq!(recent.get(&numbered(0)), Some(&mut 0));
            }
        }
        assert_eq!(recent.get(&numbered(KEPT)), None);
        assert!(recent.young.len() + recent.old.len() <= 2 * KEPT);
    }
}
