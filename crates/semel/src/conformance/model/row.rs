//! The model's records.

use crate::record::StateKind;

/// Where a record of the model stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// An attempt runs, or ran until its lease lapsed.
    Running,
    /// Nobody knows what became of it.
    Lost,
    /// It is done, with the outcome of this name.
    Done(u8),
    /// It is over without an effect.
    Free,
}

impl Phase {
    /// The state that a store shows for it.
    pub const fn kind(self) -> StateKind {
        match self {
            Self::Running => StateKind::InFlight,
            Self::Lost => StateKind::Unknown,
            Self::Done(_) => StateKind::Completed,
            Self::Free => StateKind::Released,
        }
    }
}

/// A record of the model. Times are microseconds since the model began; `None` is never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) phase: Phase,
    pub(super) fingerprint: u8,
    pub(super) claim: usize,
    pub(super) attempt: u32,
    pub(super) created: u64,
    pub(super) claimed: u64,
    pub(super) lapses: u64,
    pub(super) settled: Option<u64>,
    pub(super) expires: Option<u64>,
    pub(super) gone: Option<u64>,
    /// The names of the finished steps, and [`MARK`].
    pub(super) steps: Vec<u8>,
}

/// Takes the place of a step's name: the mark that is none.
pub(super) const MARK: u8 = 2;

const RELEASED_FOR: u64 = 60_000_000;
const RELEASED_WITH_STEPS_FOR: u64 = 7 * 24 * 3_600_000_000;

impl Row {
    pub(super) fn is_gone(&self, now: u64) -> bool {
        self.gone.is_some_and(|at| now >= at)
    }

    /// Whether no step is finished.
    pub(super) fn is_bare(&self) -> bool {
        matches!(*self.steps, [] | [MARK])
    }

    pub(super) fn settle(
        &mut self,
        phase: Phase,
        now: u64,
        expires: Option<u64>,
        gone: Option<u64>,
    ) {
        self.phase = phase;
        self.settled = Some(now);
        self.expires = expires;
        self.gone = gone;
    }

    pub(super) fn done(&mut self, outcome: u8, now: u64, replay: u64, tombstone: u64) {
        self.steps.clear();
        let expires = now + replay;
        let gone = Some(expires + tombstone);
        self.settle(Phase::Done(outcome), now, Some(expires), gone);
    }

    pub(super) fn free(&mut self, now: u64) {
        let end = Some(match self.is_bare() {
            true => now + RELEASED_FOR,
            false => now + RELEASED_WITH_STEPS_FOR,
        });
        self.settle(Phase::Free, now, end, end);
    }

    pub(super) fn lost(&mut self, now: u64) {
        self.settle(Phase::Lost, now, None, None);
    }
}
