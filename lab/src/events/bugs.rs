//! Planted bugs: ways in which a consumer gets this wrong.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bug {
    /// Each delivery counts as an event of its own.
    NoInbox,
    /// Effects and record are committed apart, and an event whose consumer died is run again.
    CommitsApart,
    /// A commit without an answer counts as rolled back, and the work runs again; that the records
    /// are completed by then is overlooked.
    RunsAgain,
    /// The callback for dead letters answers before it has kept the event.
    KeepsLater,
    /// An event of which a delivery is refused is set aside, and goes on to be tried.
    ShelvesRefused,
    /// A versioned record is written over, whatever its version is by then.
    Overwrites,
}
