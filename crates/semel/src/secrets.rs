//! Identities and fingerprints under a secret.
//!
//! Digests that need no secret can be guessed where what they are made of can: all card numbers are
//! tried in minutes. With [`Secrets`] what a store, a log or an upstream sees is HMAC-SHA-256 of the
//! digest, and says nothing to whoever does not have the secret.
//!
//! A secret lasts as long as the records that were made under it: one that is changed finds none of
//! them, and operations run again. Two at once, for a change while records last, are not offered.

use std::fmt;
use std::sync::Arc;

use hmac::digest::KeyInit as _;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::keyring::{self, KeyName, KeysError};
use crate::{Fingerprint, IdentityDigest};

/// The secret that names records.
#[derive(Clone)]
pub struct Secrets(Arc<(KeyName, Hmac<Sha256>)>);

impl Secrets {
    /// Reads it from a text: a line with a name and 32 random bytes as base64.
    ///
    /// # Errors
    /// Which line is wrong; and where there are more.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let all = keyring::read(text)?;
        let [(name, key)] = all[..] else {
            return Err(KeysError::TooMany(all.len(), 1));
        };
        // Filled up with zeros, as HMAC does.
        let mut block = [0; 64];
        block[..key.len()].copy_from_slice(&key);
        Ok(Self(Arc::new((name, Hmac::new(&block.into())))))
    }

    /// What it is called.
    pub fn name(&self) -> KeyName {
        self.0.0
    }

    pub(crate) fn digest(&self, plain: &[u8; 32]) -> IdentityDigest {
        IdentityDigest::from_bytes(self.of(b"identity", plain))
    }

    pub(crate) fn fingerprint(&self, plain: Fingerprint) -> Fingerprint {
        let mut bytes = plain.to_bytes();
        if let Some((_, digest)) = bytes.split_first_chunk_mut::<1>()
            && let Ok(digest) = <&mut [u8; 32]>::try_from(digest)
        {
            *digest = self.of(b"fingerprint", digest);
        }
        Fingerprint::from_bytes(bytes)
    }

    fn of(&self, what: &[u8], plain: &[u8; 32]) -> [u8; 32] {
        let mut mac = self.0.1.clone();
        mac.update(what);
        mac.update(plain);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secrets").field(&self.0.0).finish()
    }
}
