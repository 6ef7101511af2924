//! Fingerprints: what makes two requests "the same".

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Digest of what was asked, with the version of the algorithm that made it.
///
/// It is saved with the claim (protocol rule R3) and compared in constant time. Fingerprints of
/// different versions are never equal: an unknown version fails closed, as a mismatch.
#[derive(Clone, Copy)]
pub struct Fingerprint {
    version: u8,
    digest: [u8; 32],
}

impl Fingerprint {
    /// The version that [`FingerprintBuilder`] makes: SHA-256 over named, length-prefixed parts.
    pub const VERSION: u8 = 1;

    /// Length of [`to_bytes`](Self::to_bytes).
    pub const LEN: usize = 33;

    /// Starts a fingerprint.
    pub fn builder() -> FingerprintBuilder {
        FingerprintBuilder(Sha256::new())
    }

    /// The fingerprint of one opaque payload.
    pub fn of(payload: &[u8]) -> Self {
        Self::builder().part("payload", payload).finish()
    }

    /// The fingerprint of a value as JSON. The order of its fields and of its maps does not count;
    /// numbers count as serde writes them, all digits of large integers among them.
    ///
    /// ```
    /// # use semel::Fingerprint;
    /// #[derive(serde::Serialize)]
    /// struct Job<'a> { card: &'a str, cents: u64 }
    ///
    /// let asked = Fingerprint::of_json(&Job { card: "tok_1", cents: 900 })?;
    /// # #[derive(serde::Serialize)]
    /// # struct Reordered<'a> { cents: u64, card: &'a str }
    /// # assert_eq!(asked, Fingerprint::of_json(&Reordered { cents: 900, card: "tok_1" })?);
    /// # Ok::<_, serde_json::Error>(())
    /// ```
    ///
    /// A `HashSet` has another order each time, and so another fingerprint; a number that is not finite
    /// is `null` in JSON.
    ///
    /// # Errors
    /// The value cannot be said in JSON, as a map whose keys are no text.
    #[cfg(feature = "json")]
    pub fn of_json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        let mut value = serde_json::to_value(value)?;
        // They are sorted unless some crate turned on serde_json's `preserve_order` for all.
        value.sort_all_objects();
        let json = serde_json::to_vec(&value)?;
        Ok(Self::builder().part("json", &json).finish())
    }

    /// The algorithm's version.
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// Version byte and digest, as stores keep them.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.version;
        bytes[1..].copy_from_slice(&self.digest);
        bytes
    }

    /// Reads back what [`to_bytes`](Self::to_bytes) wrote. Any version is accepted: one that this
    /// program does not make equals nothing it makes.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let mut digest = [0; 32];
        digest.copy_from_slice(&bytes[1..]);
        Self {
            version: bytes[0],
            digest,
        }
    }
}

// Compared word by word: byte by byte takes as long as finding the record.
fn words(digest: &[u8; 32]) -> [u64; 4] {
    let (words, _) = digest.as_chunks::<8>();
    [words[0], words[1], words[2], words[3]].map(u64::from_ne_bytes)
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        let digests = words(&self.digest).ct_eq(&words(&other.digest));
        (self.version.ct_eq(&other.version) & digests).into()
    }
}

impl Eq for Fingerprint {}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the digest: bodies with little entropy could be guessed from it.
        write!(f, "Fingerprint(v{})", self.version)
    }
}

/// Collects the parts of a [`Fingerprint`]. Parts are named and length-prefixed, so that moving
/// bytes from one part to the next changes the digest.
#[derive(Clone)]
pub struct FingerprintBuilder(Sha256);

impl FingerprintBuilder {
    /// Adds one named part. The order of the calls matters.
    #[must_use]
    pub fn part(mut self, name: &str, value: &[u8]) -> Self {
        for bytes in [name.as_bytes(), value] {
            self.0.update((bytes.len() as u64).to_be_bytes());
            self.0.update(bytes);
        }
        self
    }

    /// The digest of the parts added so far.
    pub fn finish(self) -> Fingerprint {
        Fingerprint {
            version: Fingerprint::VERSION,
            digest: self.0.finalize().into(),
        }
    }
}

impl fmt::Debug for FingerprintBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FingerprintBuilder").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let ab_c = Fingerprint::builder().part("x", b"ab").part("y", b"c");
        let a_bc = Fingerprint::builder().part("x", b"a").part("y", b"bc");
        assert_ne!(ab_c.finish(), a_bc.finish());
    }

    #[test]
    fn another_version_is_never_equal() {
        let one = Fingerprint::of(b"body");
        let mut bytes = one.to_bytes();
        assert_eq!(Fingerprint::from_bytes(bytes), one);
        bytes[0] = 0;
        assert_ne!(Fingerprint::from_bytes(bytes), one);
    }

    /// A large integer is not rounded to a double, under which two requests would be one.
    #[cfg(feature = "json")]
    #[test]
    fn json_counts_every_digit_and_not_the_order() {
        let of = |json: &str| {
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            Fingerprint::of_json(&value).unwrap()
        };
        assert_eq!(
            of(r#"{"a":{"x":1,"y":2},"b":3}"#),
            of(r#"{"b":3,"a":{"y":2,"x":1}}"#)
        );
        assert_ne!(of("9007199254740993"), of("9007199254740992"));
        assert_ne!(of(r#"[1,2]"#), of(r#"[2,1]"#));
        assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":"1"}"#));
        assert_ne!(
            of(r#""a""#),
            Fingerprint::of(br#""a""#),
            "named as what it is"
        );
        let no_text = std::collections::BTreeMap::from([(vec![1], 1)]);
        assert!(Fingerprint::of_json(&no_text).is_err());
    }
}
