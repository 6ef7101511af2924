//! Values that can be kept as outcomes.

use bytes::Bytes;

use crate::{Outcome, OutcomeKind};

/// A value that can be kept as an outcome and made again from it.
///
/// `Result<T, E>` is one too: its error is kept as a failure, and replayed as it was. Work that
/// fails for good returns `Ok(Err(failure))`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kept as an outcome",
    note = "wrap it in `semel::Json` (feature `json`), or implement `semel::Value`"
)]
pub trait Value: Sized {
    /// The outcome that keeps it.
    fn to_outcome(&self) -> Outcome;

    /// The value that an outcome keeps; `None` where it is not one of this type.
    fn from_outcome(outcome: &Outcome) -> Option<Self>;
}

fn kept(outcome: &Outcome) -> Option<Bytes> {
    (outcome.kind() == OutcomeKind::Success).then(|| outcome.body())?
}

impl Value for () {
    fn to_outcome(&self) -> Outcome {
        Outcome::void()
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        let is_void = outcome.kind() == OutcomeKind::Success && outcome.body().is_none();
        is_void.then_some(())
    }
}

impl Value for Bytes {
    fn to_outcome(&self) -> Outcome {
        Outcome::success(self)
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        kept(outcome)
    }
}

impl Value for Vec<u8> {
    fn to_outcome(&self) -> Outcome {
        Outcome::success(self)
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        kept(outcome).map(Into::into)
    }
}

impl Value for String {
    fn to_outcome(&self) -> Outcome {
        Outcome::success(self.as_bytes())
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        Self::from_utf8(kept(outcome)?.into()).ok()
    }
}

impl<T: Value, E: Value> Value for Result<T, E> {
    fn to_outcome(&self) -> Outcome {
        match self {
            Ok(value) => value.to_outcome(),
            Err(error) => error.to_outcome().with_kind(OutcomeKind::Failure),
        }
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        match outcome.kind() {
            // Of an error only the text was kept, which is no value.
            OutcomeKind::Failure if outcome.code() == Outcome::TEXT => None,
            OutcomeKind::Failure => {
                let success = outcome.clone().with_kind(OutcomeKind::Success);
                E::from_outcome(&success).map(Err)
            }
            _ => T::from_outcome(outcome).map(Ok),
        }
    }
}

/// Any value that serde knows, kept as JSON.
///
/// ```
/// # #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// # struct Receipt { charge: String }
/// use semel::{Json, Value};
///
/// let receipt = Json(Receipt { charge: "ch_1".into() });
/// assert_eq!(Json::from_outcome(&receipt.to_outcome()), Some(receipt));
/// ```
#[cfg(feature = "json")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Json<T>(pub T);

#[cfg(feature = "json")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Value for Json<T> {
    /// A value that JSON cannot say (a map whose keys are no text) is recorded as done, without it.
    fn to_outcome(&self) -> Outcome {
        match serde_json::to_vec(&self.0) {
            Ok(json) => Outcome::success(&json),
            Err(_) => Outcome::builder(OutcomeKind::Omitted).void(),
        }
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        serde_json::from_slice(&kept(outcome)?).ok().map(Self)
    }
}
