//! What is done with bytes: compressed where that pays, encrypted, and bound to their place.
//!
//! # Byte form
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version, `0xa1` |
//! | 8 | the key's name, filled up with zeros |
//! | 1 | `0` as it was, `1` compressed: then 4 bytes of length, big-endian, are encrypted before it |
//! | 12 | nonce |
//! | the rest | AES-256-GCM-SIV, the tag last |
//!
//! Bound to it, as associated data, are all bytes before the nonce, the record's identity, and the
//! place: what was moved to another record, or within one, cannot be opened.
//!
//! The nonce is that of the attempt or the resolution that writes, so the same step sent again has the
//! same bytes, which stores compare. GCM-SIV takes a nonce that comes again for other bytes.

use std::cell::RefCell;
use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce as AeadNonce, UnboundKey};
use aws_lc_rs::error::Unspecified;

use crate::keyring::{self, KeyName, KeysError, Named};
use crate::store::Nonce;
use crate::wire::Reader;
use crate::{IdentityDigest, StoreError, StoreErrorKind};

/// The keys of a store that seals: the first seals, all of them open.
pub struct Keys(Vec<(KeyName, LessSafeKey)>);

/// What part of a record it is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Note,
    Outcome,
    /// Behind so many bytes of steps, as the store has them: whoever cannot read those knows it, too.
    Step(u32),
}

impl Place {
    pub(super) fn step(kept: usize) -> Self {
        Self::Step(u32::try_from(kept).unwrap_or(u32::MAX))
    }
}

/// Why it cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Its key is not among those given.
    #[error("it is encrypted with the key `{0}`, which is not among the keys given")]
    NoKey(KeyName),
    /// The bytes are not what was sealed here, or not with this key.
    #[error(
        "it cannot be decrypted: the bytes, or the key of this name, are not those it was written with"
    )]
    Damaged,
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        let what = format!("what is kept of the operation cannot be read: {error}");
        Self::new(StoreErrorKind::Corrupt, what).with_source(error)
    }
}

const VERSION: u8 = 0xa1;
const HEAD: usize = 1 + KeyName::LEN + 1;
const NONCE: usize = 12;
/// How many bytes more than what they hold are sealed bytes that are not compressed.
pub(super) const MORE: usize = HEAD + NONCE + 16;
/// From here on answers are compressed, if that makes them smaller.
const COMPRESSED_FROM: usize = 1 << 10;
/// Notes have little room where they are kept.
const NOTES_FROM: usize = 512;
const LEVEL: i32 = 1;

impl Keys {
    /// Reads keys from a text: a line each, a name and 32 random bytes as base64, the one in use
    /// first. Empty lines are left out, and those that begin with `#`.
    ///
    /// # Errors
    /// Which line is wrong.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let read = keyring::read(text, None)?;
        let key = |(name, key): Named| {
            let key = UnboundKey::new(&AES_256_GCM_SIV, &key?).ok()?;
            Some((name, LessSafeKey::new(key)))
        };
        let keys: Option<Vec<_>> = read.into_iter().map(key).collect();
        keys.filter(|keys| !keys.is_empty())
            .map(Self)
            .ok_or(KeysError::Empty)
    }

    /// What they are called, the one in use first.
    pub fn names(&self) -> impl ExactSizeIterator<Item = KeyName> {
        self.0.iter().map(|(name, _)| *name)
    }

    /// The key that these bytes are sealed with; `None` where they are not.
    pub(super) fn name_of(sealed: &[u8]) -> Option<KeyName> {
        let mut from = Reader(sealed);
        let is_ours = from.u8() == Some(VERSION);
        let name = KeyName::from_bytes(from.array()?)?;
        let is_whole = from.u8()? <= 1 && from.0.len() >= NONCE + 16;
        (is_ours && is_whole).then_some(name)
    }

    pub(super) fn seal(
        &self,
        bytes: &[u8],
        identity: &IdentityDigest,
        place: Place,
        nonce: &Nonce,
    ) -> Result<Vec<u8>, StoreError> {
        self.try_seal(bytes, identity, place, nonce)
            .map_err(|error| {
                StoreError::new(StoreErrorKind::NotApplied, "it could not be encrypted")
                    .with_source(error)
            })
    }

    fn try_seal(
        &self,
        bytes: &[u8],
        identity: &IdentityDigest,
        place: Place,
        nonce: &Nonce,
    ) -> Result<Vec<u8>, Unspecified> {
        let (name, key) = self.0.first().ok_or(Unspecified)?;
        let compressed = match place {
            Place::Outcome if bytes.len() >= COMPRESSED_FROM => compressed(bytes),
            Place::Note if bytes.len() >= NOTES_FROM => compressed(bytes),
            _ => None,
        };
        let mut sealed = Vec::with_capacity(MORE + bytes.len());
        sealed.push(VERSION);
        sealed.extend_from_slice(name.as_bytes());
        sealed.push(u8::from(compressed.is_some()));
        let bound = bound(&sealed, identity, place);
        let nonce = nonce_of(nonce, place);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(compressed.as_deref().unwrap_or(bytes));
        let nonce = AeadNonce::assume_unique_for_key(nonce);
        let tag =
            key.seal_in_place_separate_tag(nonce, Aad::from(bound), &mut sealed[HEAD + NONCE..])?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    pub(super) fn open(
        &self,
        sealed: &[u8],
        identity: &IdentityDigest,
        place: Place,
    ) -> Result<Vec<u8>, OpenError> {
        let name = Self::name_of(sealed).ok_or(OpenError::Damaged)?;
        let key = self.0.iter().find(|key| key.0 == name);
        let (_, key) = key.ok_or(OpenError::NoKey(name))?;
        let (head, rest) = sealed.split_at(HEAD);
        let (nonce, rest) = rest.split_first_chunk().ok_or(OpenError::Damaged)?;
        let nonce = AeadNonce::assume_unique_for_key(*nonce);
        let mut opened = rest.to_vec();
        let len = key
            .open_in_place(nonce, Aad::from(bound(head, identity, place)), &mut opened)
            .map_err(|_| OpenError::Damaged)?
            .len();
        opened.truncate(len);
        match head[HEAD - 1] {
            0 => Ok(opened),
            _ => decompressed(&opened).ok_or(OpenError::Damaged),
        }
    }
}

/// The place is in the nonce, too: parts that one attempt writes have one each.
fn nonce_of(nonce: &Nonce, place: Place) -> [u8; NONCE] {
    let mut bytes = [0; NONCE];
    bytes.copy_from_slice(&nonce.as_bytes()[..NONCE]);
    let number = match place {
        Place::Note => u32::MAX,
        Place::Outcome => u32::MAX - 1,
        Place::Step(behind) => behind,
    };
    for (byte, place) in bytes.iter_mut().zip(number.to_be_bytes()) {
        *byte ^= place;
    }
    bytes
}

fn bound(head: &[u8], identity: &IdentityDigest, place: Place) -> [u8; HEAD + 32 + 5] {
    let (kind, behind) = match place {
        Place::Note => (b'n', 0),
        Place::Outcome => (b'o', 0),
        Place::Step(behind) => (b's', behind),
    };
    let mut bound = [0; HEAD + 32 + 5];
    bound[..HEAD].copy_from_slice(head);
    bound[HEAD..HEAD + 32].copy_from_slice(identity.as_bytes());
    bound[HEAD + 32] = kind;
    bound[HEAD + 33..].copy_from_slice(&behind.to_be_bytes());
    bound
}

type Compressor = zstd::bulk::Compressor<'static>;
type Decompressor = zstd::bulk::Decompressor<'static>;

// Making one costs more than compressing a small answer.
thread_local! {
    static COMPRESSOR: RefCell<Option<Compressor>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor>> = const { RefCell::new(None) };
}

/// With its length in front; `None` where it does not get smaller.
fn compressed(bytes: &[u8]) -> Option<Vec<u8>> {
    let len = u32::try_from(bytes.len()).ok()?;
    COMPRESSOR.with_borrow_mut(|compressor| {
        let compressor = match compressor {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(LEVEL).ok()?),
        };
        // What does not fit into less is not worth it.
        let mut to = vec![0; bytes.len() - bytes.len() / 8];
        let (head, rest) = to.split_first_chunk_mut()?;
        *head = len.to_be_bytes();
        let written = compressor.compress_to_buffer(bytes, rest).ok()?;
        to.truncate(4 + written);
        Some(to)
    })
}

fn decompressed(bytes: &[u8]) -> Option<Vec<u8>> {
    let (len, rest) = bytes.split_first_chunk()?;
    // What it was when it was sealed: nobody else can have written it.
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        let decompressor = match decompressor {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new().ok()?),
        };
        let plain = decompressor.decompress(rest, len).ok()?;
        (plain.len() == len).then_some(plain)
    })
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
