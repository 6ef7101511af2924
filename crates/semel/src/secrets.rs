//! Identities and fingerprints under a secret.
//!
//! Digests that need no secret can be guessed where what they are made of can: all card numbers are
//! tried in minutes. With [`Secrets`] what a store, a log or an upstream sees is HMAC-SHA-256 of the
//! digest, and says nothing to whoever does not have the secret.
//!
//! # Rotation
//!
//! A secret *A* is replaced by *B* with lists of two, the one that names new records first: *A*, then
//! *A B*, then *B A*, then *B*; each in all programs before the next. *B* alone comes last, when no record
//! is left that was made before all programs had *B A* and what others had sent had arrived; and *B* is a
//! secret that no record has at the start. The line `plain` in place of a secret stands for records without one.
//!
//! With two secrets an operation has two names in the store. Under a name *nothing stands* if there is
//! no record, or one that was released without finished steps; it is *open* if an attempt is in flight or
//! unknown; it may have *steps*, finished or begun under keys that were given out; or be *done*, which it
//! is until its retention and tombstone end. A claim:
//!
//! 1. reads both names, and goes on with the one that stands further: done before steps, steps before
//!    open, open before nothing. Of two that stand equally far it is the one first claimed; where nothing
//!    stands, the first secret's.
//! 2. claims that name as if the policy were to hold, so that it gets only what is free. Only if it does
//!    not, the policy is to retry, and not both names are open, it claims again, under another nonce, to take
//!    a lost attempt over. A claim under the second secret's name says in its note that it runs nothing but
//!    further steps: without steps, nothing stands there for others.
//! 3. if it got the claim, reads the *other* name again. It runs if nothing stands there; also if that is
//!    open, and its own name has steps. It does not run under the second secret's name if nothing stood
//!    under that before.
//! 4. otherwise runs nothing, gives the claim back, and begins anew. It does not give back a claim under
//!    which there may be something to lose: one that took over. Such a claim looks again for a while; then
//!    it lapses, and its caller is told that an attempt is in flight.
//!
//! Say that a name is *taken* from the moment at which an attempt under it read the other name and was to
//! run, until the attempts under it are released without steps, or its retention ends. Then:
//!
//! * **At most one name is taken.** A name that is taken stands at least open: the claim came before the
//!   look, and what step 4 gives back under a name that is taken is a claim on its steps, which stay. A name
//!   that has steps is taken. So whoever holds the other name, which is not taken and has no steps, finds
//!   something there when it looks, and does not run; and what is open beside a name with steps is not
//!   taken. That is all that must hold: no two attempts run under two names, none after a completion, and
//!   none beside a lost one. Under one name the store sees to that, as ever.
//! * **Lost attempts are judged by their policy.** What is open is claimed under its own name, and answers
//!   `Unknown` or is taken over. A claim whose program died before it looked is like one whose program
//!   died before it began. If such a one stands beside a lost attempt, nobody can tell which of them
//!   ran: that is unknown even if the policy is to retry, until an operator resolves either.
//! * **Names stay.** Steps, their keys and fences go on where they were. Only after an attempt that was
//!   released without steps may the next one have the other name, with fences of its own; a service that
//!   refuses stale fences by `Idempotency-Id` then knows nothing of the earlier ones.
//! * **One list beside two.** Programs with *A* only do not look. Beside them all others have *A B*, and run
//!   under *B* only where something stands there: nothing does. Programs with *B* only stand
//!   beside *B A*, which run under *A* only where something stands, and nothing does by then.
//! * **Transactions** are begun after the claim is stored, so what is open in them is seen.
//!
//! It needs of a store that what was acknowledged is seen by every later call, as all of them promise; and
//! that a nonce is one call's: of two calls with the same nonce the one may give back what the other was told
//! to run. So the claim API makes nonces of its own while there are two secrets.

use std::fmt;
use std::sync::Arc;

use hmac::digest::KeyInit as _;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::keyring::{self, KeyName, KeysError, Named};
use crate::{Fingerprint, IdentityDigest};

/// The secrets that name records: one, or two while one replaces the other. The first names new records.
#[derive(Clone)]
pub struct Secrets(Arc<[Secret]>);

struct Secret {
    name: KeyName,
    /// None: what is made without one.
    mac: Option<Hmac<Sha256>>,
}

/// The line for what was made without a secret.
const PLAIN: &str = "plain";
const MOST: usize = 2;

impl Secrets {
    /// Reads them from a text: a line each, a name and 32 random bytes as base64, or `plain`.
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

    /// What they are called, the first one first.
    pub fn names(&self) -> impl ExactSizeIterator<Item = KeyName> {
        self.0.iter().map(|secret| secret.name)
    }

    /// Under each; twice the same where there is one.
    pub(crate) fn digests(&self, plain: &[u8; 32]) -> [IdentityDigest; 2] {
        let under = |nth| IdentityDigest::from_bytes(self.under(nth, b"identity", plain));
        let first = under(0);
        [first, if self.0.len() > 1 { under(1) } else { first }]
    }

    pub(crate) fn fingerprint(&self, nth: usize, plain: Fingerprint) -> Fingerprint {
        let mut bytes = plain.to_bytes();
        if let Some((_, digest)) = bytes.split_first_chunk_mut::<1>()
            && let Ok(digest) = <&mut [u8; 32]>::try_from(digest)
        {
            *digest = self.under(nth, b"fingerprint", digest);
        }
        Fingerprint::from_bytes(bytes)
    }

    fn under(&self, nth: usize, what: &[u8], plain: &[u8; 32]) -> [u8; 32] {
        let Some(mac) = self.0.get(nth).and_then(|secret| secret.mac.as_ref()) else {
            return *plain;
        };
        let mut mac = mac.clone();
        mac.update(what);
        mac.update(plain);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
