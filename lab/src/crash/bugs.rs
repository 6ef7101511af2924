//! Planted bugs: ways in which an application, or a guard, gets this wrong.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::point::Work;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bug {
    /// The effects are committed, and the record is completed after that.
    CompletesAfter,
    /// The work commits by itself, and the record is completed in another transaction.
    CommitsFirst,
    /// A commit without an answer counts as failed, and its caller asks again under another key.
    NewKey,
    /// A commit without an answer counts as rolled back, and the work runs again; that the record
    /// is completed by then is overlooked.
    RunsAgain,
    /// The caller is answered, and the transaction committed after that.
    AnswersFirst,
    /// A step gets a new key in each attempt.
    RandomStepKey,
    /// A finished step is acknowledged and not kept.
    ForgetsSteps,
    /// A step's result is kept before its call is made.
    KeepsFirst,
}

impl Bug {
    /// The work that has it.
    pub const fn work(self) -> Work {
        match self {
            Self::RandomStepKey | Self::ForgetsSteps | Self::KeepsFirst => Work::Steps,
            _ => Work::Transaction,
        }
    }
}
