//! Connections that nobody uses, and what became of what was sent on one.

use std::time::Duration;

use semel::StoreError;
use tokio::time::Instant;

/// Why a step has no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It was never sent.
    Unsent(StoreError),
    /// The server refused it and rolled it back; sent again it may go through.
    RolledBack(StoreError),
    /// The server refused it and rolled it back.
    Refused(StoreError),
    /// The connection broke after it was sent.
    Lost(StoreError),
    /// The time ran out after it was sent.
    Late(StoreError),
    /// What came back cannot be read.
    Unreadable(StoreError),
}

/// Whether a connection can be used again.
pub(crate) trait Open {
    fn is_open(&self) -> bool;

    fn made(&self) -> Instant;
}

/// Connections that nobody uses.
pub(crate) struct Idle<L>(Vec<(L, Instant)>);

impl<L> Default for Idle<L> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<L: Open> Idle<L> {
    /// A connection is not used again after this long unused, and not for longer than this in all: its
    /// server, or what stands before it, may be another by then.
    const UNUSED: Duration = Duration::from_mins(5);
    const LONGEST: Duration = Duration::from_mins(30);

    pub(crate) fn push(&mut self, link: L) {
        self.0.push((link, Instant::now()));
        self.clean();
    }

    /// The one that was used last.
    pub(crate) fn pop(&mut self) -> Option<L> {
        self.clean();
        self.0.pop().map(|(link, _)| link)
    }

    pub(super) fn into_links(self) -> Vec<L> {
        self.0.into_iter().map(|(link, _)| link).collect()
    }

    fn clean(&mut self) {
        self.0.retain(|(link, since)| {
            link.is_open()
                && since.elapsed() < Self::UNUSED
                && link.made().elapsed() < Self::LONGEST
        });
    }
}
