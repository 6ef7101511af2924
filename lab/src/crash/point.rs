//! Where a worker is killed.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::base::Place;

/// What the work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// To which part of the work a point belongs that not all work comes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Transaction,
    Steps,
    DeadLetter,
}

/// A moment of an attempt, in the order of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// Before the claim is sent.
    BeforeClaim,
    /// The claim was sent, its answer not read.
    ClaimLost,
    /// The claim was answered.
    Claimed,
    /// The transaction has begun.
    Begun,
    /// Between two statements of the work.
    BetweenStatements,
    /// After the work, before the statement that completes the record, or keeps the step.
    BeforeCompleting,
    /// After that statement.
    Completing,
    /// Before `COMMIT` is sent.
    BeforeCommit,
    /// While it commits.
    WhileCommitting,
    /// `COMMIT` was sent and done, its answer not read.
    CommitLost,
    /// `COMMIT` was sent, and arrives after the worker's end.
    CommitLate,
    /// `COMMIT` was sent and done, and the connection cut.
    CommitCut,
    /// The same, and killed while it asks the record.
    ReadingBack,
    /// `COMMIT` is sent, and the server killed at some moment until it is done and its answer lost.
    ServerRestartsAtCommit,
    /// After the commit, before its caller has the answer.
    Committed,
    /// In the work of an event that kills its consumer, whenever it is tried.
    Poisonous,
    /// A failed event is to be handed to the callback for dead letters.
    HandingOver,
    /// The callback has kept it, and has not answered.
    HandedOver,
    /// Before a step's call of the service.
    BeforeCall,
    /// While the service is called.
    WhileCalling,
    /// The service has done it; the step is not kept.
    Called,
    /// While the step is kept.
    WhileKeeping,
    /// The step was sent and kept, the answer not read.
    KeepLost,
    /// The step was sent, and arrives after the worker's end.
    KeepLate,
    /// The step is kept.
    Kept,
    /// Between two steps.
    BetweenSteps,
    /// After all steps, before the completion is sent.
    BeforeCompletion,
    /// The completion was sent and done, its answer not read.
    CompletionLost,
    /// After the completion, before its caller has the answer.
    Completed,
    /// At a random moment after the call began.
    Random,
}

impl Point {
    /// What happens there.
    pub const fn strike(self) -> Strike {
        match self {
            Self::WhileCommitting | Self::WhileCalling | Self::WhileKeeping | Self::Random => {
                Strike::Race
            }
            Self::ClaimLost | Self::CommitLost | Self::KeepLost | Self::CompletionLost => {
                Strike::Swallow
            }
            Self::CommitLate | Self::KeepLate => Strike::Hold,
            Self::CommitCut => Strike::Cut,
            Self::ReadingBack => Strike::CutThenStand,
            Self::ServerRestartsAtCommit => Strike::Restart,
            _ => Strike::Stand,
        }
    }

    /// To which part of the work it belongs, if not all work comes by.
    const fn part(self) -> Option<Part> {
        match self {
            Self::BeforeClaim | Self::ClaimLost | Self::Claimed | Self::Random => None,
            Self::Poisonous | Self::HandingOver | Self::HandedOver => Some(Part::DeadLetter),
            Self::BeforeCall
            | Self::WhileCalling
            | Self::Called
            | Self::WhileKeeping
            | Self::KeepLost
            | Self::KeepLate
            | Self::Kept
            | Self::BetweenSteps
            | Self::BeforeCompletion
            | Self::CompletionLost
            | Self::Completed => Some(Part::Steps),
            _ => Some(Part::Transaction),
        }
    }

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
        Self::value_variants()
            .iter()
            .copied()
            .filter(comes_by)
            .collect()
    }

    /// Whether it can happen at this place.
    pub fn is_at(self, place: &Place) -> bool {
        match self.strike() {
            Strike::Restart => place.is_own_server(),
            strike => !strike.on_the_wire() || place.database.is_server(),
        }
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
