//! Identities and fingerprints under a secret.
//!
//! Digests that need no secret can be guessed where what they are made of can: all card numbers are
//! tried in minutes. With [`Secrets`] what a store, a log or an upstream sees is HMAC-SHA-256 of the
//! digest, and says nothing to whoever does not have the secret.
//!
//! # Rotation
//!
//! A record has the name that the secret of its claim gave it. While two secrets are in use, a claim
//! is made under the first, and *then* the name under the second is looked at. Where a record stands
//! there, the claim is given back, nothing ran, and that record answers. Why nothing runs twice:
//!
//! 1. Programs with the lists *A B* and *B A* may run at the same time. Whoever runs an operation
//!    holds a claim under one name, and found nothing under the other after it was made.
//! 2. Of two programs that claim under different names, let the claim that the store made first be
//!    *a*, the other *b*. Whoever made *b* looks at *a*'s name after *b*, so after *a*: it finds *a*,
//!    or what became of it, and steps back. Both may find each other; then both step back, and both
//!    callers are told that an attempt is in flight.
//! 3. What *a* became stays to be found for as long as it has to: a completed record until its
//!    retention ends, one in flight, lapsed or unknown for ever (R8). One that was released ran
//!    nothing, and does not count, unless it has finished steps.
//! 4. Whoever takes over a lapsed record under the second name does it while holding the first; so at
//!    no time two attempts run. Of the two records it keeps one, the one with finished steps, and gives
//!    the other back; if that fails, it runs nothing.
//!
//! This needs of a store that what was acknowledged is seen by every later call, as all of them
//! promise. A change from *A* straight to *B*, or to *B A* beside programs that know *A* only, is not
//! safe: the second secret comes last at first (*A B*), in all programs; then first; and *A* goes
//! when the retention of all that was made under it is over. Without a second secret nothing is looked
//! at, and a claim is one call.
//!
//! A mark for records that were made without a secret is the line `plain`.

use std::fmt;
use std::sync::Arc;

use hmac::digest::KeyInit as _;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::keyring::{self, KeyName, KeysError, Named};
use crate::{Fingerprint, IdentityDigest};

/// One or two secrets: the first names new records.
#[derive(Clone)]
pub struct Secrets(Arc<[Secret]>);

#[derive(Clone)]
struct Secret {
    name: KeyName,
    /// `None`: what is made without one.
    mac: Option<Hmac<Sha256>>,
}

/// The line for what was made without a secret.
const PLAIN: &str = "plain";
const MOST: usize = 2;

impl Secrets {
    /// Reads them from a text: a line each, a name and 32 random bytes as base64, the one in use
    /// first. The line `plain` stands for none.
    ///
    /// # Errors
    /// Which line is wrong; and where there are more than two.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let all = keyring::read(text, Some(PLAIN))?;
        if all.len() > MOST {
            return Err(KeysError::TooMany(all.len(), MOST));
        }
        let secret = |(name, key): Named| Secret {
            name,
            mac: key.map(|key| {
                // Filled up with zeros, as HMAC does.
                let mut block = [0; 64];
                block[..key.len()].copy_from_slice(&key);
                Hmac::new(&block.into())
            }),
        };
        Ok(Self(all.into_iter().map(secret).collect()))
    }

    /// What they are called, the one in use first.
    pub fn names(&self) -> impl ExactSizeIterator<Item = KeyName> {
        self.0.iter().map(|secret| secret.name)
    }

    pub(crate) fn digest(&self, nth: usize, plain: &[u8; 32]) -> Option<IdentityDigest> {
        let secret = self.0.get(nth)?;
        Some(IdentityDigest::from_bytes(secret.of(b"identity", plain)))
    }

    pub(crate) fn fingerprint(&self, nth: usize, plain: Fingerprint) -> Fingerprint {
        let Some(secret) = self.0.get(nth) else {
            return plain;
        };
        let mut bytes = plain.to_bytes();
        if let Some((_, digest)) = bytes.split_first_chunk_mut::<1>()
            && let Ok(digest) = <&mut [u8; 32]>::try_from(digest)
        {
            *digest = secret.of(b"fingerprint", digest);
        }
        Fingerprint::from_bytes(bytes)
    }
}

impl Secret {
    fn of(&self, what: &[u8], plain: &[u8; 32]) -> [u8; 32] {
        match &self.mac {
            None => *plain,
            Some(mac) => {
                let mut mac = mac.clone();
                mac.update(what);
                mac.update(plain);
                mac.finalize().into_bytes().into()
            }
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
