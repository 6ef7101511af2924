//! Planted bugs: ways in which a consumer gets this wrong.

use serde::{Deserialize, Serialize};

macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $bug:ident = $name:literal,)+) => {
        /// What is wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Bug {
            $($(#[doc = $what])+ $bug,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)+];

            /// The name for `--bug`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }
        }
    };
}

bugs! {
    /// Each delivery counts as an event of its own.
    NoInbox = "no-inbox",
    /// Effects and record are committed apart, and an event whose consumer died is run again.
    CommitsApart = "commits-apart",
    /// A commit without an answer counts as rolled back, and the work runs again; that the records
    /// are completed by then is overlooked.
    RunsAgain = "runs-again",
    /// The callback for dead letters answers before it has kept the event.
    KeepsLater = "keeps-later",
    /// An event of which a delivery is refused is set aside, and goes on to be tried.
    ShelvesRefused = "shelves-refused",
    /// A versioned record is written over, whatever its version is by then.
    Overwrites = "overwrites",
}

impl Bug {
    /// The bug of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name)
    }
}
