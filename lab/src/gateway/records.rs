//! What a run leaves behind: the calls of the clients, and the upstream's ledger. Both are files of
//! [lines](crate::lines).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;

/// The calls' file in a run's folder.
pub(super) const CALLS: &str = "calls";
/// The ledger's.
pub(super) const LEDGER: &str = "upstream";

/// What a call asks for once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) service: u8,
    /// 0 sends no `Authorization`.
    pub(super) principal: u8,
    pub(super) key: u32,
}

impl Identity {
    /// As it stands in a request's path and field.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        Some(Self {
            service: parts.next()?.parse().ok()?,
            principal: parts.next()?.parse().ok()?,
            key: parts.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.service, self.principal, self.key)
    }
}

/// One call of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Call {
    /// Its number; the upstream's ledger knows it.
    pub(super) id: u64,
    pub(super) identity: Identity,
    /// Digest of its body.
    pub(super) body: u64,
    pub(super) gateway: usize,
    pub(super) http2: bool,
    pub(super) sent: Nanos,
    pub(super) answered: Nanos,
    pub(super) said: Said,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Said {
    /// An answer that names an execution.
    Answer(Answer),
    /// A problem of the gateway or its layer.
    Problem { status: u16, code: String },
    /// Another answer of the upstream: it refused or failed, and did nothing that it promises.
    Failed { status: u16 },
    /// No answer: the connection was refused, or broke.
    Broken(String),
    /// The client did not wait for the answer.
    Left,
}

/// An answer that an execution gave, or that looks like one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) execution: u64,
    pub(super) replayed: bool,
    /// `Idempotency-Body-Omitted`.
    pub(super) omitted: bool,
    /// Digest of status and fields.
    pub(super) head: u64,
    /// Digest of the body and of what describes it.
    pub(super) body: u64,
}

impl Said {
    pub(super) fn is_problem(&self, which: &str) -> bool {
        matches!(self, Self::Problem { code, .. } if code == which)
    }

    pub(super) const fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Answer(answer) => Some(answer),
            _ => None,
        }
    }

    /// Whether it answers an operation that this call ran.
    pub(super) fn is_new(&self) -> bool {
        self.answer().is_some_and(|answer| !answer.replayed)
    }

    /// The name in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Answer(answer) if answer.replayed => "replayed".into(),
            Self::Answer(_) => "answered".into(),
            Self::Problem { code, .. } => code.clone(),
            Self::Failed { status } => format!("upstream-{status}"),
            Self::Broken(_) => "broken".into(),
            Self::Left => "left".into(),
        }
    }
}

/// A line of the upstream's ledger: a request as it arrived, and what was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) at: Nanos,
    /// `Idempotency-Id`.
    pub(super) id: String,
    /// `Idempotency-Fence`.
    pub(super) fence: u64,
    /// Whose request it was: its identity, its number, and its body's digest, as they arrived.
    pub(super) identity: Identity,
    pub(super) call: u64,
    pub(super) body: u64,
    pub(super) done: Done,
}

/// What the upstream did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Done {
    /// The effect, and the digests of the answer that it was given.
    Executed { number: u64, head: u64, body: u64 },
    /// Nothing: the fence was lower than one that was seen, or closed.
    Refused,
    /// Nothing: it answered this instead.
    Failed { status: u16 },
    /// A reconciler was told that this fence's attempt did not happen: it is refused from now on.
    Closed,
}
