//! One call: who asks, under which key, for what, and since when.

use std::fmt;

use super::content::Content;
use crate::{KeyError, Timestamp};

/// A part of the caller that keys can belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part(&'static str);

impl Part {
    /// Whose data it is.
    pub const TENANT: Self = Self("tenant");
    /// Which of their accounts.
    pub const ACCOUNT: Self = Self("account");
    /// Who asks.
    pub const USER: Self = Self("user");
    /// In which session.
    pub const SESSION: Self = Self("session");

    /// Another one: a desk, a portfolio, a device.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// Who asks, as the application knows it: take it from what was authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller(Vec<(Part, Box<str>)>);

impl Caller {
    /// A caller of whom nothing is known.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The same with this part; a value that it had before is replaced. Any text will do: it is
    /// kept apart from its neighbours by lengths. Empty is the same as missing.
    #[must_use]
    pub fn with(mut self, part: Part, value: impl Into<Box<str>>) -> Self {
        self.0.retain(|(known, _)| *known != part);
        self.0.push((part, value.into()));
        self
    }

    pub(super) fn value(&self, part: Part) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| *known == part);
        found
            .map(|(_, value)| &**value)
            .filter(|value| !value.is_empty())
    }
}

/// One call of an operation. The same for every retry of one intent.
#[derive(Clone, Default)]
pub struct Call {
    caller: Caller,
    key: Option<Box<str>>,
    content: Content,
    made_at: Option<Timestamp>,
}

impl Call {
    /// A call by this caller, without a key and without fields.
    pub fn by(caller: &Caller) -> Self {
        Self {
            caller: caller.clone(),
            ..Self::default()
        }
    }

    /// The client's key, if it sent one. It is checked by the operation's rule.
    #[must_use]
    pub fn key(mut self, key: Option<&str>) -> Self {
        self.key = key.map(Into::into);
        self
    }

    /// Adds a field of what is asked, as it is written. Give numbers as integers: floating point is
    /// written in more ways than one. A name may come again; then the order of its values counts.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.content.add(name, value.to_string().into_bytes());
        self
    }

    /// Adds a field of bytes: a body, a file's digest.
    #[must_use]
    pub fn bytes(mut self, name: &str, value: &[u8]) -> Self {
        self.content.add(name, value.into());
        self
    }

    /// When the intent was made: decided once, and carried with every retry. Never the
    /// time of the retry.
    #[must_use]
    pub const fn made_at(mut self, intent: Timestamp) -> Self {
        self.made_at = Some(intent);
        self
    }

    pub(super) const fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(super) fn client_key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(super) const fn content(&self) -> &Content {
        &self.content
    }

    pub(super) const fn intent_time(&self) -> Option<Timestamp> {
        self.made_at
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the key (R12) nor what is asked.
        f.debug_struct("Call")
            .field("caller", &self.caller)
            .field("has_key", &self.key.is_some())
            .field("made_at", &self.made_at)
            .finish_non_exhaustive()
    }
}

/// A call does not have what its operation needs. Nothing ran, and the store was not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The client's key breaks the operation's rule.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The caller does not have a part of the operation's scope, or has it empty.
    #[error("the operation's keys belong to a {0}, and the caller has none")]
    MissingPart(&'static str),
    /// The call does not have a field of the operation's key.
    #[error("the operation's key is made of the field {0:?}, and the call has none")]
    MissingField(&'static str),
    /// The operation has aligned windows, and the call does not say when its intent was made.
    #[error(
        "the operation happens once in a window, and the call does not say when its intent was made"
    )]
    MissingTime,
}
