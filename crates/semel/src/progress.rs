//! What an attempt has finished so far: the results of its steps, kept under the record, so that a
//! takeover goes on after the last of them.
//!
//! # Byte form
//!
//! One step after the other: the name behind a 2-byte length, the result behind a 4-byte length,
//! both lengths big-endian. Nothing at all is no step. A store appends a step's bytes to those kept.

use std::fmt;
use std::sync::Arc;

use crate::DecodeError;
use crate::wire::Reader;

/// The results of an attempt's finished steps, in their order. Cloning shares them.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Progress(Option<Arc<[u8]>>);

/// A step that is finished: its name and its result, at most [`Progress::MAX_BYTES`] together.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FinishedStep(Arc<[u8]>);

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

    /// Nothing finished.
    pub const EMPTY: Self = Self(None);

    /// Whether no step is finished.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The steps, in the order in which they were finished: names and results.
    pub fn steps(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = Reader(self.as_bytes());
        // Checked when the bytes came in.
        std::iter::from_fn(move || one(&mut rest))
    }

    /// The byte form.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
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
        Ok(Self((!bytes.is_empty()).then(|| bytes.into())))
    }

    /// These steps and one more.
    ///
    /// # Errors
    /// [`ProgressTooLarge`] where they take more than [`MAX_BYTES`](Self::MAX_BYTES) together.
    pub fn with(&self, step: &FinishedStep) -> Result<Self, ProgressTooLarge> {
        let all = [self.as_bytes(), step.as_bytes()].concat();
        within_bounds(all.len())?;
        Ok(Self(Some(all.into())))
    }
}

impl FinishedStep {
    /// A finished step.
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
        Ok(Self(step.into()))
    }

    /// The bytes that a store appends.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
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
        write!(f, "FinishedStep({} bytes)", self.0.len())
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
        let most = Progress::MAX_BYTES - 6;
        let step = FinishedStep::new("", &vec![0; most]).unwrap();
        let one_more = Progress::MAX_BYTES + 1;
        assert_eq!(
            FinishedStep::new("", &vec![0; most + 1]),
            Err(ProgressTooLarge { bytes: one_more })
        );
        let full = Progress::EMPTY.with(&step).unwrap();
        let bytes = Progress::MAX_BYTES + 6;
        let empty = FinishedStep::new("", b"").unwrap();
        assert_eq!(full.with(&empty), Err(ProgressTooLarge { bytes }));
    }
}
