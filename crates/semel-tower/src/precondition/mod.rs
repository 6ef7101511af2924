//! `If-Match`, `If-None-Match` and `ETag` (RFC 9110, section 13.1) for versioned records.
//!
//! A version's entity tag is its number in quotes: `ETag: "7"`. A client that read it sends it back
//! as `If-Match: "7"`, and its write happens only where the record is still in that version; with
//! `If-None-Match: *` only where there is none. Anything else is answered 412.
//!
//! With [`IdempotencyLayer`](crate::IdempotencyLayer) outside, a retry is replayed before its
//! precondition is looked at, as it has to be: its first attempt has changed the version.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use http::HeaderMap;
//! use semel::Scope;
//! use semel::versioned::{MemoryVersioned, NaturalKey, VersionedStore};
//! use semel_tower::precondition::{Precondition, Rejection, etag};
//!
//! /// What a handler does with its request's fields and body.
//! async fn put(
//!     store: &impl VersionedStore,
//!     fields: &HeaderMap,
//!     body: &str,
//! ) -> Result<http::HeaderValue, Rejection> {
//!     let key = NaturalKey::new(Scope::new(["notes"]), "note-1");
//!     let precondition = Precondition::from_headers(fields)?.required()?;
//!     let version = precondition.write(store, &key, body.to_owned().into()).await?;
//!     Ok(etag(version))
//! }
//!
//! let store = MemoryVersioned::default();
//! let mut fields = HeaderMap::new();
//! let refused = put(&store, &fields, "first").await.unwrap_err();
//! assert_eq!(refused.status(), 428);
//!
//! fields.insert("if-none-match", "*".parse()?);
//! assert_eq!(put(&store, &fields, "first").await.unwrap(), "\"1\"");
//! let refused = put(&store, &fields, "second").await.unwrap_err();
//! assert_eq!(refused.status(), 412);
//! # Ok(()) }
//! ```

#[cfg(feature = "axum")]
mod extract;
mod reject;
mod tags;

use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use semel::Backoff;
use semel::versioned::{Expected, NaturalKey, Version, VersionedStore, WriteError};
use tokio::time::sleep;

pub use self::reject::{Code, Rejection};
use self::tags::{Comparison, Tags};

/// How often a record is looked at that changes between look and write; half a second of pauses.
const LOOKS: usize = 16;
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The preconditions of a request on a record.
///
/// With axum (feature `axum`) an extractor: malformed fields are answered 400. [`Required`] is the
/// same for operations that must not be asked for without one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Precondition {
    matches: Option<Tags>,
    matches_none: Option<Tags>,
}

/// A [`Precondition`] that there is: with axum a request without one is answered 428.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Required(pub Precondition);

/// The entity tag of a version: its number in quotes, a strong validator.
pub fn etag(version: Version) -> HeaderValue {
    let digits = format!("\"{version}\"");
    HeaderValue::try_from(digits).expect("digits in quotes are a field's value")
}

/// The version that an answer shows as its `ETag`. With axum a part of a response, as in
/// `(ETag(version), body)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ETag(pub Version);

impl Precondition {
    /// Reads `If-Match` and `If-None-Match`, each `*` or a list of entity tags, in one field line or
    /// several.
    ///
    /// `If-Match` compares strongly: a weak tag (`W/"7"`) never matches. `If-None-Match` compares
    /// weakly. A well-formed tag that is no version's is one that no version has.
    ///
    /// # Errors
    /// [`Malformed`](Rejection::Malformed): to ignore the field would be to write unconditionally.
    pub fn from_headers(fields: &HeaderMap) -> Result<Self, Rejection> {
        let read = |name: HeaderName, comparison| {
            let lines = fields.get_all(&name).iter().map(HeaderValue::as_bytes);
            Tags::parse(lines, comparison).map_err(|reason| Rejection::Malformed {
                field: name,
                reason,
            })
        };
        Ok(Self {
            matches: read(IF_MATCH, Comparison::Strong)?,
            matches_none: read(IF_NONE_MATCH, Comparison::Weak)?,
        })
    }

    /// Whether the request has none.
    pub const fn is_none(&self) -> bool {
        self.matches.is_none() && self.matches_none.is_none()
    }

    /// The same, where there is one.
    ///
    /// # Errors
    /// [`Required`](Rejection::Required) where there is none.
    pub fn required(self) -> Result<Self, Rejection> {
        if self.is_none() {
            return Err(Rejection::Required);
        }
        Ok(self)
    }

    /// What a write is to expect, where that can be said without looking at the record: not for
    /// `If-Match: *`, for several tags, and for `If-None-Match` with tags.
    pub fn without_looking(&self) -> Option<Expected> {
        match (&self.matches, &self.matches_none) {
            (None, None) => Some(Expected::Any),
            (None, Some(Tags::Any)) => Some(Expected::Absent),
            (Some(Tags::These(tags)), None) if tags.len() == 1 => Some(Expected::Version(tags[0])),
            _ => None,
        }
    }

    /// What a write is to expect where the record is in this version, or not there.
    ///
    /// # Errors
    /// [`Failed`](Rejection::Failed) where that does not meet the precondition.
    pub fn of_found(&self, found: Option<Version>) -> Result<Expected, Rejection> {
        // In this order (RFC 9110, section 13.2.2).
        let met = self.matches.as_ref().is_none_or(|tags| tags.include(found))
            && !self
                .matches_none
                .as_ref()
                .is_some_and(|tags| tags.include(found));
        if !met {
            return Err(Rejection::Failed { found });
        }
        Ok(match (self.is_none(), found) {
            (true, _) => Expected::Any,
            (false, Some(version)) => Expected::Version(version),
            (false, None) => Expected::Absent,
        })
    }

    /// Writes the record where it meets the precondition: one call of the store, unless the record
    /// has to be looked at first.
    ///
    /// # Errors
    /// [`Failed`](Rejection::Failed) where it does not, [`Contended`](Rejection::Contended) where
    /// others changed it after each of 16 looks, and those of the store.
    pub async fn write<S: VersionedStore>(
        &self,
        store: &S,
        key: &NaturalKey,
        value: Bytes,
    ) -> Result<Version, Rejection> {
        self.change(store, key, |expected| {
            store.write(key, expected, value.clone())
        })
        .await
    }

    /// Deletes the record where it meets the precondition.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub async fn delete<S: VersionedStore>(
        &self,
        store: &S,
        key: &NaturalKey,
    ) -> Result<(), Rejection> {
        self.change(store, key, |expected| store.delete(key, expected))
            .await
    }

    /// Looks at the record where that is needed, and changes it where it is still as it was seen. Where
    /// it is not, the precondition may hold all the same, as `If-Match: *` does: another look.
    async fn change<S: VersionedStore, T, F>(
        &self,
        store: &S,
        key: &NaturalKey,
        change: impl Fn(Expected) -> F,
    ) -> Result<T, Rejection>
    where
        F: Future<Output = Result<T, WriteError>>,
    {
        if let Some(expected) = self.without_looking() {
            return Ok(change(expected).await?);
        }
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        for _ in 0..LOOKS {
            let expected = self.expected(store, key).await?;
            match change(expected).await {
                Err(WriteError::ConcurrentModification { .. }) => sleep(pauses.pause()).await,
                done => return Ok(done?),
            }
        }
        Err(Rejection::Contended)
    }

    /// What a write is to expect; looks at the record only where that is needed. The write itself
    /// finds out whether it is so. For writes in a transaction; else [`write`](Self::write).
    ///
    /// # Errors
    /// [`Failed`](Rejection::Failed) where the record does not meet the precondition, and those of
    /// reading it.
    pub async fn expected<S: VersionedStore>(
        &self,
        store: &S,
        key: &NaturalKey,
    ) -> Result<Expected, Rejection> {
        if let Some(expected) = self.without_looking() {
            return Ok(expected);
        }
        let found = store.read(key).await?;
        self.of_found(found.map(|found| found.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[(&'static str, &str)]) -> Result<Precondition, Rejection> {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        Precondition::from_headers(&map)
    }

    const V7: Option<Version> = Some(Version(7));

    #[test]
    fn what_needs_no_look_is_said_at_once() {
        for (fields, expected) in [
            (&[][..], Some(Expected::Any)),
            (&[("if-none-match", "*")], Some(Expected::Absent)),
            (
                &[("if-match", "\"7\"")],
                Some(Expected::Version(Version(7))),
            ),
            (&[("if-match", "*")], None),
            (&[("if-match", "\"7\", \"8\"")], None),
            (&[("if-match", "W/\"7\"")], None),
            (&[("if-match", "\"other\"")], None),
            (&[("if-none-match", "\"7\"")], None),
            (&[("if-match", "\"7\""), ("if-none-match", "*")], None),
        ] {
            assert_eq!(
                of(fields).unwrap().without_looking(),
                expected,
                "{fields:?}"
            );
        }
    }

    #[test]
    fn what_was_found_decides() {
        let at_7 = Ok(Expected::Version(Version(7)));
        let failed = Err(());
        for (fields, of_7, of_none) in [
            (&[][..], Ok(Expected::Any), Ok(Expected::Any)),
            (&[("if-match", "*")], at_7, failed),
            (&[("if-match", "\"7\"")], at_7, failed),
            (&[("if-match", "\"6\", \"7\"")], at_7, failed),
            (
                &[("if-match", "\"6\""), ("if-match", "\"7\"")],
                at_7,
                failed,
            ),
            (&[("if-match", "\"6\"")], failed, failed),
            // Strong comparison; 07 is not 7.
            (&[("if-match", "W/\"7\"")], failed, failed),
            (&[("if-match", "\"07\"")], failed, failed),
            (&[("if-match", "\"a,7\"")], failed, failed),
            (&[("if-none-match", "*")], failed, Ok(Expected::Absent)),
            (&[("if-none-match", "\"6\"")], at_7, Ok(Expected::Absent)),
            (&[("if-none-match", "\"7\"")], failed, Ok(Expected::Absent)),
            (
                &[("if-none-match", "W/\"7\"")],
                failed,
                Ok(Expected::Absent),
            ),
            (
                &[("if-match", "*"), ("if-none-match", "\"7\"")],
                failed,
                failed,
            ),
            (
                &[("if-match", "*"), ("if-none-match", "\"6\"")],
                at_7,
                failed,
            ),
        ] {
            let precondition = of(fields).unwrap();
            let decided = |found| precondition.of_found(found).map_err(drop);
            assert_eq!(decided(V7), of_7, "{fields:?} of version 7");
            assert_eq!(decided(None), of_none, "{fields:?} of nothing");
        }
    }

    #[test]
    fn a_tag_comes_back_as_the_version_that_it_is() {
        for version in [0, 1, 7, u64::MAX] {
            let tag = etag(Version(version));
            let read = of(&[("if-match", tag.to_str().unwrap())]).unwrap();
            let expected = Expected::Version(Version(version));
            assert_eq!(read.without_looking(), Some(expected));
        }
    }
}
