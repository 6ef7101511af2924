//! What an attempt has finished so far: the results of its steps, kept under the record, so that a
//! takeover goes on after the last of them.
//!
//! # Byte form
//!
//! One step after the other: the name behind a 2-byte length, the result behind a 4-byte length,
//! both lengths big-endian. Nothing at all is no step. A store appends a step's bytes to those kept.
//!
//! Six zero bytes, an empty name and an empty result, are no step but a mark: see
//! [`FinishedStep::in_transaction`]. So is an empty name with a result of one byte:
//! [`FinishedStep::keys_given`]. Every step takes more bytes than the first mark.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::wire::Reader;
use crate::{DecodeError, StoreError, keyring};

/// The results of an attempt's finished steps, in their order. Cloning shares them.
#[derive(Clone, Default)]
pub struct Progress {
    bytes: Option<Arc<[u8]>>,
    // How many of the steps a store that seals has as they are. No part of them, but a help for it.
    unsealed: usize,
}

/// A step that is finished: its name and its result, at most [`Progress::MAX_BYTES`] together.
#[derive(Clone)]
pub struct FinishedStep {
    bytes: Arc<[u8]>,
    // How many sealed steps are before it, as far as is known. No part of it, but a help for a store that
    // seals.
    place: usize,
}

/// A step's name and result, or all steps of a record together, take too many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the results of a record's steps would take {bytes} bytes; at most {max} are kept", max = Progress::MAX_BYTES)]
pub struct ProgressTooLarge {
    /// How many they would take.
    pub bytes: usize,
}

impl Progress {
    /// The most bytes that the steps of one record take, names and lengths among them.
    pub const MAX_BYTES: usize = 64 << 10;

    /// The most bytes that a store keeps of them: more, for what sealing adds to each step.
    pub const MAX_STORED: usize = Self::MAX_BYTES + Self::MAX_BYTES / 4;

    /// The most bytes of a record under which no step is finished: those of the mark. See
    /// [`is_bare`](Self::is_bare).
    pub const BARE_BYTES: usize = MARK.len();

    /// Nothing finished.
    pub const EMPTY: Self = Self {
        bytes: None,
        unsealed: 0,
    };

    /// Whether nothing is kept.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_none()
    }

    /// Whether no step is finished: nothing is kept, or only the mark of
    /// [`FinishedStep::in_transaction`]. What the protocol makes of finished steps it makes of a
    /// record that is not bare.
    pub fn is_bare(&self) -> bool {
        self.as_bytes().len() <= Self::BARE_BYTES
    }

    /// Whether [`FinishedStep::in_transaction`] is kept.
    pub fn is_in_transaction(&self) -> bool {
        self.kept()
            .any(|(name, result)| name.is_empty() && result.is_empty())
    }

    /// These, unless one of them is encrypted: a store that seals opens them, if it has the key.
    ///
    /// # Errors
    /// [`Corrupt`](crate::StoreErrorKind::Corrupt), with the name of the key that is missing.
    pub fn readable(&self) -> Result<&Self, StoreError> {
        // The first byte of what is sealed. A result of a guard's begins with another.
        let mut sealed = self
            .kept()
            .filter(|(name, result)| name.is_empty() && result.first() == Some(&0xa1));
        match sealed.next() {
            Some((_, sealed)) => Err(keyring::unopened(sealed)),
            None => Ok(self),
        }
    }

    /// The steps, in the order in which they were finished: names and results.
    pub fn steps(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.kept().filter(|kept| !is_mark(*kept))
    }

    /// The steps, and the marks.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = Reader(self.as_bytes());
        // Checked when the bytes came in.
        std::iter::from_fn(move || one(&mut rest))
    }

    /// The byte form.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }

    /// Reads the byte form.
    ///
    /// # Errors
    /// [`DecodeError::Damaged`] for bytes that [`as_bytes`](Self::as_bytes) never returned.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut rest = Reader(bytes);
        while !rest.0.is_empty() {
            one(&mut rest).ok_or(DecodeError::Damaged)?;
        }
        Ok(Self {
            bytes: (!bytes.is_empty()).then(|| bytes.into()),
            unsealed: 0,
        })
    }

    /// The same, of which the store has so many steps as they are.
    #[cfg(feature = "sealed")]
    pub(crate) fn with_unsealed(self, unsealed: usize) -> Self {
        Self { unsealed, ..self }
    }

    /// These steps and one more.
    ///
    /// # Errors
    /// [`ProgressTooLarge`] where they take more than [`MAX_BYTES`](Self::MAX_BYTES) together.
    pub fn with(&self, step: &FinishedStep) -> Result<Self, ProgressTooLarge> {
        within_bounds(self.as_bytes().len() + step.as_bytes().len())?;
        Ok(self.joined(step))
    }

    /// What a store has to keep then; `None` where that is too much.
    pub(crate) fn stored_with(&self, step: &FinishedStep) -> Option<Self> {
        let all = self.as_bytes().len() + step.as_bytes().len();
        (all <= Self::MAX_STORED).then(|| self.joined(step))
    }

    fn joined(&self, step: &FinishedStep) -> Self {
        Self {
            bytes: Some([self.as_bytes(), step.as_bytes()].concat().into()),
            unsealed: self.unsealed,
        }
    }
}

impl FinishedStep {
    /// A finished step. With an empty name and a result of at most one byte it would be a mark.
    ///
    /// # Errors
    /// [`ProgressTooLarge`] where name and result take more than a record keeps.
    pub fn new(name: &str, result: &[u8]) -> Result<Self, ProgressTooLarge> {
        let bytes = 2 + name.len() + 4 + result.len();
        within_bounds(bytes)?;
        let too_large = ProgressTooLarge { bytes };
        let mut step = Vec::with_capacity(bytes);
        let length = u16::try_from(name.len()).map_err(|_| too_large)?;
        step.extend_from_slice(&length.to_be_bytes());
        step.extend_from_slice(name.as_bytes());
        let length = u32::try_from(result.len()).map_err(|_| too_large)?;
        step.extend_from_slice(&length.to_be_bytes());
        step.extend_from_slice(result);
        Ok(Self::from(step))
    }

    /// The same, known to stand behind these.
    pub(crate) fn behind(mut self, kept: &Progress) -> Self {
        self.place = kept.steps().count().saturating_sub(kept.unsealed);
        self
    }

    /// How many sealed steps are before it, if it was said.
    #[cfg(feature = "sealed")]
    pub(crate) const fn place(&self) -> usize {
        self.place
    }

    /// Whether it is no step but a mark, which stores understand.
    #[cfg(feature = "sealed")]
    pub(crate) fn is_mark(&self) -> bool {
        one(&mut Reader(&self.bytes)).is_some_and(is_mark)
    }

    /// A nameless step of any size, which is no mark.
    #[cfg(feature = "sealed")]
    pub(crate) fn sealed(sealed: &[u8]) -> Self {
        let mut step = Vec::with_capacity(MARK.len() + sealed.len());
        step.extend_from_slice(&[0, 0]);
        crate::wire::put_long(&mut step, sealed);
        Self::from(step)
    }

    /// No step, but a mark that is kept like one: the attempt does its work in a transaction, and
    /// whatever is not committed did not happen. It stays as steps do, but no step is finished by it:
    /// a record that keeps nothing else is [bare](Progress::is_bare).
    pub fn in_transaction() -> Self {
        Self::from(MARK.to_vec())
    }

    /// No step, but a mark: the attempt gave step keys to its work before it released the identity.
    /// The record is kept as one with finished steps, so that the next attempt has the same keys.
    pub fn keys_given() -> Self {
        Self::from(vec![0, 0, 0, 0, 0, 1, b'k'])
    }

    /// The bytes that a store appends.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Vec<u8>> for FinishedStep {
    fn from(bytes: Vec<u8>) -> Self {
        let bytes = bytes.into();
        Self { bytes, place: 0 }
    }
}

impl PartialEq for Progress {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Progress {}

impl Hash for Progress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl PartialEq for FinishedStep {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for FinishedStep {}

impl Hash for FinishedStep {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

/// The lengths of an empty name and of an empty result.
const MARK: [u8; 6] = [0; 6];

const fn is_mark((name, result): (&str, &[u8])) -> bool {
    name.is_empty() && result.len() <= 1
}

fn one<'a>(from: &mut Reader<'a>) -> Option<(&'a str, &'a [u8])> {
    let length = from.u16()?;
    let name = std::str::from_utf8(from.take(length.into())?).ok()?;
    Some((name, from.long()?))
}

const fn within_bounds(bytes: usize) -> Result<(), ProgressTooLarge> {
    if bytes > Progress::MAX_BYTES {
        return Err(ProgressTooLarge { bytes });
    }
    Ok(())
}

// Results are the application's: not for logs.
impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.steps().map(|(name, result)| (name, result.len()));
        f.debug_map().entries(sizes).finish()
    }
}

impl fmt::Debug for FinishedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FinishedStep({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_back_in_their_order() {
        let charge = FinishedStep::new("charge", b"ch_1").unwrap();
        let ship = FinishedStep::new("ship é", b"").unwrap();
        let all = Progress::EMPTY.with(&charge).unwrap().with(&ship).unwrap();
        let expected: [(&str, &[u8]); 2] = [("charge", b"ch_1"), ("ship é", b"")];
        assert_eq!(all.steps().collect::<Vec<_>>(), expected);
        assert_eq!(Progress::from_bytes(all.as_bytes()), Ok(all));
        assert_eq!(Progress::from_bytes(b""), Ok(Progress::EMPTY));
    }

    #[test]
    fn damage_is_told() {
        let step = FinishedStep::new("charge", b"ch_1").unwrap();
        for cut in 1..step.as_bytes().len() {
            let cut = &step.as_bytes()[..cut];
            assert_eq!(Progress::from_bytes(cut), Err(DecodeError::Damaged));
        }
        let not_text = [0, 1, 0xff, 0, 0, 0, 0];
        assert_eq!(Progress::from_bytes(&not_text), Err(DecodeError::Damaged));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let most = Progress::MAX_BYTES - 7;
        let step = FinishedStep::new("s", &vec![0; most]).unwrap();
        let one_more = Progress::MAX_BYTES + 1;
        assert_eq!(
            FinishedStep::new("s", &vec![0; most + 1]),
            Err(ProgressTooLarge { bytes: one_more })
        );
        let full = Progress::EMPTY.with(&step).unwrap();
        let bytes = Progress::MAX_BYTES + 6;
        let mark = FinishedStep::in_transaction();
        assert_eq!(full.with(&mark), Err(ProgressTooLarge { bytes }));
    }

    #[test]
    fn the_mark_is_kept_and_is_no_step() {
        let mark = FinishedStep::in_transaction();
        assert_eq!(mark.as_bytes(), [0; 6], "stored: it never changes");
        let step = FinishedStep::new("s", b"").unwrap();
        let marked = Progress::EMPTY.with(&mark).unwrap();
        let both = marked.with(&step).unwrap();
        let stepped = Progress::EMPTY.with(&step).unwrap();
        for (progress, steps, bare, in_transaction) in [
            (&Progress::EMPTY, 0, true, false),
            (&marked, 0, true, true),
            (&both, 1, false, true),
            (&stepped, 1, false, false),
            (&stepped.with(&mark).unwrap(), 1, false, true),
        ] {
            assert_eq!(progress.steps().count(), steps, "{progress:?}");
            assert_eq!(progress.is_bare(), bare, "{progress:?}");
            assert_eq!(progress.is_in_transaction(), in_transaction, "{progress:?}");
            assert_eq!(
                &Progress::from_bytes(progress.as_bytes()).unwrap(),
                progress
            );
        }
    }
}
