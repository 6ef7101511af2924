//! Outcomes: what is kept and replayed, and its versioned byte form.
//!
//! # Byte form, version 1
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version, `1` |
//! | 1 | kind: `1` success, `2` kept failure, `3` done but omitted |
//! | 2 | code, big-endian (an HTTP status; `0` where there is none) |
//! | 2 | number of fields, big-endian |
//! | each field | name: 2-byte length and bytes; value: 4-byte length and bytes |
//! | 1 | `0` void, `1` a body follows and takes all that is left |
//!
//! # Byte form, version 2: sealed
//!
//! The first 7 bytes as in version 1, of an outcome without code, fields and body, with version `2`
//! and the real kind; then what `semel::sealed` made of the byte form of version 1.
//!
//! # Byte form, version 3: kept elsewhere
//!
//! The first 7 bytes as in version 1, of an outcome without fields and body, with version `3` and the
//! real kind and code (no code where it is sealed); then what [`Outcome::stand_in`] was given.
//!
//! A version that this program does not know is an error, never an empty outcome.

use std::fmt;

use bytes::Bytes;

use crate::wire::Reader;
use crate::{StoreError, StoreErrorKind, keyring};

/// What kind of result an outcome keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutcomeKind {
    /// The operation succeeded.
    Success,
    /// The operation failed, and the failure is its lasting answer.
    Failure,
    /// The operation is done, but its answer was too large (or a stream) and was not kept.
    Omitted,
}

/// What is kept and replayed: kind, code, fields and body, as one immutable run of bytes.
///
/// Cloning shares the bytes, and nobody can change them: a replay never shares writable memory
/// with a caller. The body may be absent ("void"), which is not the same as empty.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    encoded: Bytes,
    // Where the body starts; the void flag stands just before it.
    body_at: usize,
}

/// Up to the body of an outcome that has no fields.
const HEAD: usize = 7;

/// Why bytes are not an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A version of the byte form that this program does not know.
    #[error("version {found} of the byte form is not known; known is {known}")]
    Version {
        /// The version found.
        found: u8,
        /// The version that this program reads.
        known: u8,
    },
    /// The bytes end early, or hold a value that the form does not have.
    #[error("the stored bytes are damaged")]
    Damaged,
}

impl Outcome {
    /// The version of the byte form that this program writes.
    pub const VERSION: u8 = 1;
    const SEALED: u8 = 2;
    const STAND_IN: u8 = 3;

    /// The code of a failure of which only the text is kept, as a guard keeps an error.
    pub(crate) const TEXT: u16 = 1;

    /// The most fields an outcome can have.
    pub const MAX_FIELDS: usize = u16::MAX as usize;

    /// Starts an outcome of this kind.
    pub fn builder(kind: OutcomeKind) -> OutcomeBuilder {
        let kind = match kind {
            OutcomeKind::Success => 1,
            OutcomeKind::Failure => 2,
            OutcomeKind::Omitted => 3,
        };
        OutcomeBuilder {
            encoded: Vec::new(),
            kind,
            code: 0,
            fields: 0,
        }
    }

    /// A success without a value.
    pub fn void() -> Self {
        Self::builder(OutcomeKind::Success).void()
    }

    /// A success with this body.
    pub fn success(body: &[u8]) -> Self {
        Self::builder(OutcomeKind::Success).body(body)
    }

    /// A failure that is kept, with this body.
    pub fn failure(body: &[u8]) -> Self {
        Self::builder(OutcomeKind::Failure).body(body)
    }

    /// The same as a success or a failure; what is omitted stays so.
    pub(crate) fn with_kind(&self, kind: OutcomeKind) -> Self {
        let mut encoded = self.encoded.to_vec();
        if self.kind() != OutcomeKind::Omitted {
            encoded[1] = if kind == OutcomeKind::Failure { 2 } else { 1 };
        }
        Self {
            encoded: encoded.into(),
            ..self.clone()
        }
    }

    /// The same code and fields, marked as done with the body omitted.
    #[must_use]
    pub fn to_omitted(&self) -> Self {
        let mut encoded = self.encoded[..self.body_at].to_vec();
        encoded[0] = Self::VERSION;
        encoded[1] = 3;
        encoded[self.body_at - 1] = 0;
        Self {
            encoded: encoded.into(),
            body_at: self.body_at,
        }
    }

    /// What kind of result this is.
    pub fn kind(&self) -> OutcomeKind {
        match self.encoded[1] {
            1 => OutcomeKind::Success,
            2 => OutcomeKind::Failure,
            _ => OutcomeKind::Omitted,
        }
    }

    /// The code given by the application; `0` where none was.
    pub fn code(&self) -> u16 {
        u16::from_be_bytes([self.encoded[2], self.encoded[3]])
    }

    /// The fields, in the order in which they were added. Names may repeat.
    pub fn fields(&self) -> Fields<'_> {
        Fields {
            rest: Reader(&self.encoded[6..self.body_at - 1]),
        }
    }

    /// The body; `None` where the outcome is void or omitted. Shares the outcome's memory.
    pub fn body(&self) -> Option<Bytes> {
        (self.encoded[self.body_at - 1] == 1).then(|| self.encoded.slice(self.body_at..))
    }

    /// Whether it is encrypted: then it has no code, no field and no body. A store that seals
    /// (feature `sealed`) opens it; without its key it stays so, and is never replayed.
    pub fn is_sealed(&self) -> bool {
        self.encoded[0] == Self::SEALED
    }

    /// The outcome whose byte form this is.
    #[cfg(feature = "sealed")]
    pub(crate) fn sealed(&self, sealed: &[u8]) -> Self {
        let head = [Self::SEALED, self.encoded[1], 0, 0, 0, 0, 0];
        Self {
            encoded: [&head, sealed].concat().into(),
            body_at: HEAD,
        }
    }

    /// What [`sealed`](Self::sealed) was given.
    #[cfg(feature = "sealed")]
    pub(crate) fn as_sealed(&self) -> Option<&[u8]> {
        self.is_sealed().then(|| &self.encoded[HEAD..])
    }

    /// Stands for this outcome, which is kept elsewhere, with its kind and code. `place` says where,
    /// to whoever keeps it. A store gives it back as it is; a guard never replays it.
    #[must_use]
    pub fn stand_in(&self, place: &[u8]) -> Self {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&self.encoded[..4]);
        head[0] = Self::STAND_IN;
        Self {
            encoded: [&head, place].concat().into(),
            body_at: HEAD,
        }
    }

    /// Where the outcome is kept that this one stands for, as [`stand_in`](Self::stand_in) was told.
    pub fn place(&self) -> Option<&[u8]> {
        (self.encoded[0] == Self::STAND_IN).then(|| &self.encoded[HEAD..])
    }

    /// This outcome, unless it [is sealed](Self::is_sealed) or [kept elsewhere](Self::place): then all that
    /// it would show is missing, and whoever reads it has to be told so.
    ///
    /// # Errors
    /// [`Corrupt`](StoreErrorKind::Corrupt), with the name of the key that is missing.
    pub fn readable(&self) -> Result<&Self, StoreError> {
        if self.is_sealed() {
            return Err(keyring::unopened(&self.encoded[HEAD..]));
        }
        if self.place().is_some() {
            let what =
                "the answer is kept as an object outside the store, and cannot be read from there";
            return Err(StoreError::new(StoreErrorKind::Corrupt, what));
        }
        Ok(self)
    }

    /// The versioned byte form. Shares the outcome's memory.
    pub const fn as_bytes(&self) -> &Bytes {
        &self.encoded
    }

    /// Reads the versioned byte form, and keeps it without copying.
    ///
    /// # Errors
    /// [`DecodeError::Version`] for a form of another version, [`DecodeError::Damaged`] for bytes
    /// that [`as_bytes`](Self::as_bytes) never returned.
    pub fn from_bytes(encoded: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader(&encoded);
        let version = reader.u8().ok_or(DecodeError::Damaged)?;
        if version == Self::SEALED || version == Self::STAND_IN {
            // One that is sealed has no code.
            let absent = if version == Self::SEALED { 2 } else { 4 };
            let is_whole = encoded.len() > HEAD
                && (1..=3).contains(&encoded[1])
                && encoded[absent..HEAD].iter().all(|byte| *byte == 0);
            let body_at = HEAD;
            return is_whole
                .then_some(Self { encoded, body_at })
                .ok_or(DecodeError::Damaged);
        }
        if version != Self::VERSION {
            return Err(DecodeError::Version {
                found: version,
                known: Self::VERSION,
            });
        }
        let body_at = body_start(&mut reader, encoded.len()).ok_or(DecodeError::Damaged)?;
        Ok(Self { encoded, body_at })
    }
}

// Walks the whole form once, so that the accessors can rely on it.
fn body_start(reader: &mut Reader<'_>, total: usize) -> Option<usize> {
    let kind = reader.u8().filter(|k| (1..=3).contains(k))?;
    reader.u16()?;
    for _ in 0..reader.u16()? {
        let name = reader.u16()?;
        std::str::from_utf8(reader.take(name.into())?).ok()?;
        reader.long()?;
    }
    let body_at = match reader.u8()? {
        0 if reader.0.is_empty() => total,
        1 if kind != 3 => total - reader.0.len(),
        _ => return None,
    };
    Some(body_at)
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the body: answers hold personal data.
        f.debug_struct(if self.is_sealed() {
            "Sealed"
        } else {
            "Outcome"
        })
        .field("kind", &self.kind())
        .field("code", &self.code())
        .field("bytes", &self.encoded.len())
        .finish()
    }
}

/// The fields of an [`Outcome`]: pairs of name and value.
pub struct Fields<'a> {
    rest: Reader<'a>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = self.rest.u16()?;
        let name = std::str::from_utf8(self.rest.take(len.into())?).ok()?;
        Some((name, self.rest.long()?))
    }
}

impl fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fields").finish_non_exhaustive()
    }
}

/// Builds an [`Outcome`] in its byte form, with one allocation that grows.
pub struct OutcomeBuilder {
    // Empty, or with room for the head, which is written in the end.
    encoded: Vec<u8>,
    kind: u8,
    code: u16,
    fields: u16,
}

impl OutcomeBuilder {
    /// Makes room for `bytes` more bytes, where the caller knows how many will come.
    #[must_use]
    pub fn reserve(mut self, bytes: usize) -> Self {
        self.make_room(bytes);
        self
    }

    fn make_room(&mut self, bytes: usize) {
        if self.encoded.is_empty() {
            self.encoded.reserve_exact(HEAD - 1 + bytes);
            self.encoded.extend_from_slice(&[0; HEAD - 1]);
        } else {
            self.encoded.reserve(bytes);
        }
    }

    /// Sets the application's code, for instance an HTTP status.
    #[must_use]
    pub const fn code(mut self, code: u16) -> Self {
        self.code = code;
        self
    }

    /// Adds a field. Names may repeat; order is kept.
    ///
    /// # Panics
    /// If a name has more than 65,535 bytes, a value 4 GiB or more, or there are more than
    /// [`Outcome::MAX_FIELDS`] fields.
    #[must_use]
    pub fn field(mut self, name: &str, value: &[u8]) -> Self {
        let len = u16::try_from(name.len()).expect("field names are below 64 KiB");
        self.fields = self
            .fields
            .checked_add(1)
            .expect("an outcome has at most 65,535 fields");
        self.make_room(6 + name.len() + value.len());
        self.encoded.extend_from_slice(&len.to_be_bytes());
        self.encoded.extend_from_slice(name.as_bytes());
        crate::wire::put_long(&mut self.encoded, value);
        self
    }

    /// Ends with a body, which may be empty.
    pub fn body(mut self, body: &[u8]) -> Outcome {
        if self.kind == 3 {
            return self.void();
        }
        self.make_room(body.len() + 1);
        self.encoded.push(1);
        let body_at = self.encoded.len();
        self.encoded.extend_from_slice(body);
        self.finish(body_at)
    }

    /// Ends without a body.
    pub fn void(mut self) -> Outcome {
        self.make_room(1);
        self.encoded.push(0);
        let body_at = self.encoded.len();
        self.finish(body_at)
    }

    fn finish(mut self, body_at: usize) -> Outcome {
        self.encoded[..2].copy_from_slice(&[Outcome::VERSION, self.kind]);
        self.encoded[2..4].copy_from_slice(&self.code.to_be_bytes());
        self.encoded[4..6].copy_from_slice(&self.fields.to_be_bytes());
        Outcome {
            encoded: self.encoded.into(),
            body_at,
        }
    }
}

impl fmt::Debug for OutcomeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutcomeBuilder")
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn void_empty_and_omitted_are_three_things() {
        let void = Outcome::void();
        let empty = Outcome::success(b"");
        let omitted = Outcome::success(b"large").to_omitted();
        assert_eq!(void.body(), None);
        assert_eq!(empty.body(), Some(Bytes::new()));
        assert_eq!(omitted.body(), None);
        assert_eq!(omitted.kind(), OutcomeKind::Omitted);
        assert_ne!(void, empty);
        for outcome in [void, empty, omitted] {
            assert_eq!(Outcome::from_bytes(outcome.as_bytes().clone()), Ok(outcome));
        }
    }

    #[test]
    fn fields_keep_count_and_order() {
        let outcome = Outcome::builder(OutcomeKind::Success)
            .code(201)
            .field("link", b"<a>")
            .field("link", b"<b>")
            .field("etag", b"\xff\x00")
            .body(b"body");
        let fields: Vec<_> = outcome.fields().collect();
        assert_eq!(
            fields,
            [
                ("link", &b"<a>"[..]),
                ("link", b"<b>"),
                ("etag", b"\xff\x00")
            ]
        );
        assert_eq!((outcome.code(), outcome.body()), (201, Some("body".into())));
        let omitted = outcome.to_omitted();
        assert_eq!(omitted.fields().collect::<Vec<_>>(), fields);
        assert_eq!(omitted.code(), 201);
    }

    #[test]
    fn a_stand_in_has_kind_and_code_and_nothing_else() {
        let whole = Outcome::builder(OutcomeKind::Failure)
            .code(422)
            .field("a", b"b")
            .body(b"body");
        let stands = whole.stand_in(b"there");
        assert_eq!((stands.kind(), stands.code()), (whole.kind(), 422));
        assert_eq!((stands.fields().count(), stands.body()), (0, None));
        assert_eq!((stands.place(), whole.place()), (Some(&b"there"[..]), None));
        let bytes = stands.as_bytes();
        assert_eq!(Outcome::from_bytes(bytes.clone()), Ok(stands.clone()));
        for end in 0..=HEAD {
            let cut = Outcome::from_bytes(bytes.slice(..end));
            assert_eq!(cut, Err(DecodeError::Damaged));
        }
        let omitted = stands.to_omitted();
        assert_eq!(
            (omitted.kind(), omitted.place()),
            (OutcomeKind::Omitted, None)
        );
        assert_eq!(Outcome::from_bytes(omitted.as_bytes().clone()), Ok(omitted));
    }

    #[test]
    fn every_cut_and_every_other_version_is_an_error() {
        let whole = Outcome::builder(OutcomeKind::Failure)
            .code(422)
            .field("a", b"b")
            .void();
        let bytes = whole.as_bytes();
        for end in 0..bytes.len() {
            assert_eq!(
                Outcome::from_bytes(bytes.slice(..end)),
                Err(DecodeError::Damaged)
            );
        }
        let mut other = bytes.to_vec();
        other[0] = 9;
        assert_eq!(
            Outcome::from_bytes(other.into()),
            Err(DecodeError::Version { found: 9, known: 1 })
        );
    }
}
