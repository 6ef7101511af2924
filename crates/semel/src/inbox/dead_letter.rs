//! Events that are not to hold up the others: handed to the application, and set aside.

use std::error::Error as StdError;
use std::pin::Pin;

use crate::inbox::Event;

/// An event that is about to be set aside.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The event, as it was delivered last.
    pub event: Event,
    /// Why.
    pub reason: Reason,
    /// How many attempts failed. 0 for a mismatch.
    pub attempts: u32,
    /// What they failed with, the latest last, each cut to a length that all of them have room
    /// for. Fewer than `attempts` where some ended without a word, as a process does that is killed.
    pub errors: Vec<String>,
}

/// Why an event is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// As many attempts failed as the inbox allows.
    Failed,
    /// An event with the same id and another content came before. That one's record stays as it is.
    Mismatch,
}

/// What a callback fails with.
pub(super) type CallbackError = Box<dyn StdError + Send + Sync>;

type Answer = Pin<Box<dyn Future<Output = Result<(), CallbackError>> + Send>>;

/// The application's callback.
pub(super) type Callback = dyn Fn(DeadLetter) -> Answer + Send + Sync;
