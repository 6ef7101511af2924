//! Errors of a store, by whether the step may have happened.

use std::error::Error as StdError;
use std::fmt;

/// What a failed store call means for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The step did not happen; it may be tried again.
    NotApplied,
    /// Others changed the record, or had it locked, whenever the step was tried: it did not happen, and may be tried
    /// again. The store is there, so nobody runs without its protection (protocol rule R9).
    Contended,
    /// The step may have happened: a time-out, a broken connection, a failed sync. Trying again is
    /// safe with the same nonce or token only.
    Unknown,
    /// The store is full and refuses new claims. It never forgets to make room (protocol rule R8).
    Capacity,
    /// The outcome is larger than this store can keep. Nothing was changed; record it as omitted.
    TooLarge,
    /// What is stored cannot be read: a damaged file, an unknown format version.
    Corrupt,
    /// The store was closed, or cannot be used until it is opened again.
    Closed,
    /// The store cannot be used as asked: a wrong URL, a missing privilege, a path in use.
    Config,
}

/// An error of a store: its [`kind`](Self::kind), a message for people, and its cause.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Box<str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl StoreError {
    /// An error that says what was attempted, and what would be right.
    pub fn new(kind: StoreErrorKind, message: impl Into<Box<str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error of a step that is known not to have happened, whatever became of its answer:
    /// [`NotApplied`](StoreErrorKind::NotApplied) in place of [`Unknown`](StoreErrorKind::Unknown).
    #[must_use]
    pub fn known_not_applied(self) -> Self {
        match self.kind {
            StoreErrorKind::Unknown => {
                Self::new(StoreErrorKind::NotApplied, self.message.clone()).with_source(self)
            }
            _ => self,
        }
    }

    /// The same error of a step that had met others at the record before it failed: `kind` and message stay, and
    /// [`met_others`](Self::met_others) is true.
    #[must_use]
    pub fn having_met_others(self) -> Self {
        if self.met_others() {
            return self;
        }
        let (kind, message) = (self.kind, self.message.clone());
        let others = "others changed the record, or had it locked";
        let others = Self::new(StoreErrorKind::Contended, others).with_source(self);
        Self::new(kind, message).with_source(others)
    }

    /// What the failure means for the caller.
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether others were met at the record, whatever the step failed of in the end: this error or one of its causes is
    /// [`Contended`](StoreErrorKind::Contended).
    pub fn met_others(&self) -> bool {
        let causes = std::iter::successors(Some(self as &dyn StdError), |&error| error.source());
        causes
            .filter_map(|error| error.downcast_ref::<Self>())
            .any(|error| error.kind == StoreErrorKind::Contended)
    }

    /// Whether the store may do later what it did not do now.
    pub const fn is_retryable(&self) -> bool {
        use StoreErrorKind::{Capacity, Contended, NotApplied, Unknown};
        matches!(self.kind, NotApplied | Contended | Unknown | Capacity)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}
