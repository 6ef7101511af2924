//! Where a worker is killed.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::base::Place;

/// What the work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Effects in one transaction with the completion.
    Transaction,
    /// Steps that call a service outside.
    Steps,
    /// Steps outside, and one between them whose effects are in a transaction with its result.
    Mixed,
}

/// How a worker dies at a point, or what it loses there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// It stands still there until it is killed.
    Stand,
    /// It goes on, and is killed within a few milliseconds, wherever it then is.
    Race,
    /// What it sends goes on to the server. The answer does not come back, and it is killed.
    Swallow,
    /// What it sends stands still on the way. It is killed, and what it sent arrives afterwards.
    Hold,
    /// What it sends goes on to the server, and the connection is cut. It lives, and must find out.
    Cut,
    /// The same, and it is killed while it finds out.
    CutThenStand,
    /// The server is killed around it, and starts again. It lives, and must find out.
    Restart,
}

impl Strike {
    /// Whether it needs a network between worker and server.
    pub const fn on_the_wire(self) -> bool {
        !matches!(self, Self::Stand | Self::Race)
    }

    /// Whether the worker dies of it.
    pub const fn kills(self) -> bool {
        !matches!(self, Self::Cut | Self::Restart)
    }
}

macro_rules! points {
    ($($(#[doc = $what:literal])+ $point:ident = $name:literal $strike:ident $(in $part:ident)?,)+) => {
        /// A moment of an attempt.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Point {
            $($(#[doc = $what])+ $point,)+
        }

        impl Point {
            /// All of them, in the order of an attempt.
            pub const ALL: &[Self] = &[$(Self::$point,)+];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)+
                }
            }

            /// What happens there.
            pub const fn strike(self) -> Strike {
                match self {
                    $(Self::$point => Strike::$strike,)+
                }
            }

            const fn part(self) -> Option<Part> {
                match self {
                    $(Self::$point => points!(@part $($part)?),)+
                }
            }
        }
    };
    (@part $part:ident) => { Some(Part::$part) };
    (@part) => { None };
}

/// To which part of the work a point belongs that not all work comes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Transaction,
    Steps,
    DeadLetter,
}

points! {
    /// Before the claim is sent.
    BeforeClaim = "before-claim" Stand,
    /// The claim was sent, its answer not read.
    ClaimLost = "claim-lost" Swallow,
    /// The claim was answered.
    Claimed = "claimed" Stand,
    /// The transaction has begun.
    Begun = "begun" Stand in Transaction,
    /// Between two statements of the work.
    BetweenStatements = "between-statements" Stand in Transaction,
    /// After the work, before the statement that completes the record, or keeps the step.
    BeforeCompleting = "before-completing" Stand in Transaction,
    /// After that statement.
    Completing = "completing" Stand in Transaction,
    /// Before `COMMIT` is sent.
    BeforeCommit = "before-commit" Stand in Transaction,
    /// While it commits.
    WhileCommitting = "while-committing" Race in Transaction,
    /// `COMMIT` was sent and done, its answer not read.
    CommitLost = "commit-lost" Swallow in Transaction,
    /// `COMMIT` was sent, and arrives after the worker's end.
    CommitLate = "commit-late" Hold in Transaction,
    /// `COMMIT` was sent and done, and the connection cut.
    CommitCut = "commit-cut" Cut in Transaction,
    /// The same, and killed while it asks the record.
    ReadingBack = "reading-back" CutThenStand in Transaction,
    /// `COMMIT` is sent, and the server killed at some moment until it is done and its answer lost.
    ServerRestarts = "server-restarts-at-commit" Restart in Transaction,
    /// After the commit, before its caller has the answer.
    Committed = "committed" Stand in Transaction,
    /// In the work of an event that kills its consumer, whenever it is tried.
    Poisonous = "poisonous" Stand in DeadLetter,
    /// A failed event is to be handed to the callback for dead letters.
    HandingOver = "handing-over" Stand in DeadLetter,
    /// The callback has kept it, and has not answered.
    HandedOver = "handed-over" Stand in DeadLetter,
    /// Before a step's call of the service.
    BeforeCall = "before-call" Stand in Steps,
    /// While the service is called.
    WhileCalling = "while-calling" Race in Steps,
    /// The service has done it; the step is not kept.
    Called = "called" Stand in Steps,
    /// While the step is kept.
    WhileKeeping = "while-keeping" Race in Steps,
    /// The step was sent and kept, the answer not read.
    KeepLost = "keep-lost" Swallow in Steps,
    /// The step was sent, and arrives after the worker's end.
    KeepLate = "keep-late" Hold in Steps,
    /// The step is kept.
    Kept = "kept" Stand in Steps,
    /// Between two steps.
    BetweenSteps = "between-steps" Stand in Steps,
    /// After all steps, before the completion is sent.
    BeforeCompletion = "before-completion" Stand in Steps,
    /// The completion was sent and done, its answer not read.
    CompletionLost = "completion-lost" Swallow in Steps,
    /// After the completion, before its caller has the answer.
    Completed = "completed" Stand in Steps,
    /// At a random moment after the call began.
    Random = "random" Race,
}

impl Point {
    /// Those that this work comes by at this place.
    pub fn of(work: Work, place: &Place) -> Vec<Self> {
        let comes_by = |point: &Self| {
            let part = match point.part() {
                None => true,
                Some(Part::Transaction) => work != Work::Steps,
                Some(Part::Steps) => work != Work::Transaction,
                Some(Part::DeadLetter) => false,
            };
            part && point.is_at(place)
        };
        Self::ALL.iter().copied().filter(comes_by).collect()
    }

    /// Whether it can happen at this place.
    pub fn is_at(self, place: &Place) -> bool {
        match self.strike() {
            Strike::Restart => place.is_own_server(),
            strike => !strike.on_the_wire() || place.database.is_server(),
        }
    }

    /// The point of this name.
    ///
    /// # Errors
    /// Where there is none.
    pub fn from_name(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|point| point.name() == name);
        found
            .copied()
            .with_context(|| format!("there is no point {name:?}"))
    }

    /// Whether it is one of a transaction's.
    pub const fn is_inside(self) -> bool {
        matches!(self.part(), Some(Part::Transaction))
    }

    /// What an attempt that is killed there leaves of its transaction: all of it, nothing, or
    /// either.
    pub const fn leaves(self) -> Option<bool> {
        match self {
            Self::Begun
            | Self::BetweenStatements
            | Self::BeforeCompleting
            | Self::Completing
            | Self::BeforeCommit => Some(false),
            Self::CommitLost | Self::ReadingBack | Self::Committed => Some(true),
            _ => None,
        }
    }

    /// In how many places of one attempt it is.
    pub const fn places(self, work: Work) -> u32 {
        let outside = match work {
            Work::Mixed => super::steps::STEPS - 1,
            _ => super::steps::STEPS,
        };
        match self {
            Self::BetweenStatements => super::transaction::STATEMENTS - 1,
            Self::BetweenSteps => super::steps::STEPS - 1,
            Self::BeforeCall
            | Self::WhileCalling
            | Self::Called
            | Self::WhileKeeping
            | Self::KeepLost
            | Self::KeepLate
            | Self::Kept => outside,
            _ => 1,
        }
    }
}
