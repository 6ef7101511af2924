//! What `semel run` says at its end: its own exit statuses, lines on stderr, a report.

use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use semel::IdentityDigest;
use semel::store::Fence;
use serde_json::{Map, Value};

use super::exits::{Ended, Meaning};

/// Exit statuses of `semel run`'s own. A command that ends with one of them is reported by the last.
pub(super) const MISUSED: u8 = 112;
const UNAVAILABLE: u8 = 113;
const IN_FLIGHT: u8 = 114;
const UNKNOWN: u8 = 115;
const MISMATCH: u8 = 116;
const EXPIRED: u8 = 117;
const LOST: u8 = 118;
const NOT_RECORDED: u8 = 119;
const NOT_STARTED: u8 = 120;
const RESERVED: u8 = 121;

/// How long a line of its own is waited for.
const SAID_WITHIN: Duration = Duration::from_secs(1);

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Result {
    Ran,
    Replayed,
    InFlight,
    Unknown,
    Mismatch,
    Expired,
    Unavailable,
    Lost,
    NotRecorded,
    NotStarted,
}

impl Result {
    const fn name(self) -> &'static str {
        match self {
            Self::Ran => "ran",
            Self::Replayed => "replayed",
            Self::InFlight => "in-flight",
            Self::Unknown => "unknown",
            Self::Mismatch => "mismatch",
            Self::Expired => "expired",
            Self::Unavailable => "unavailable",
            Self::Lost => "lost",
            Self::NotRecorded => "not-recorded",
            Self::NotStarted => "not-started",
        }
    }

    /// None: that of the command.
    const fn exit(self) -> Option<u8> {
        Some(match self {
            Self::Ran | Self::Replayed => return None,
            Self::InFlight => IN_FLIGHT,
            Self::Unknown => UNKNOWN,
            Self::Mismatch => MISMATCH,
            Self::Expired => EXPIRED,
            Self::Unavailable => UNAVAILABLE,
            Self::Lost => LOST,
            Self::NotRecorded => NOT_RECORDED,
            Self::NotStarted => NOT_STARTED,
        })
    }
}

/// What happened, as far as it applies.
pub(super) struct Report {
    pub(super) result: Result,
    /// How the command ended, now or in the run that is replayed.
    pub(super) ended: Option<Ended>,
    pub(super) recorded: Option<Meaning>,
    pub(super) is_omitted: Option<bool>,
    pub(super) id: IdentityDigest,
    pub(super) fence: Option<Fence>,
    pub(super) attempt: Option<u32>,
    pub(super) message: Option<String>,
}

impl Report {
    pub(super) const fn new(result: Result, id: IdentityDigest) -> Self {
        Self {
            result,
            ended: None,
            recorded: None,
            is_omitted: None,
            id,
            fence: None,
            attempt: None,
            message: None,
        }
    }

    pub(super) fn because(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Says it, and answers what to end with.
    pub(super) fn tell(mut self, file: Option<&Path>) -> u8 {
        let code = self.ended.map_or(0, Ended::code);
        let exit = match self.result.exit() {
            Some(exit) => exit,
            None if (MISUSED..=RESERVED).contains(&code) => {
                let note = format!(
                    "the command ended with status {code}, which is one of semel's own: {RESERVED} stands for it"
                );
                self.message = Some(match self.message {
                    Some(message) => format!("{message}; {note}"),
                    None => note,
                });
                RESERVED
            }
            None => code,
        };
        if let Some(file) = file
            && let Err(error) = std::fs::write(file, format!("{}\n", self.json(exit)))
        {
            say(&format!("--report: `{}`: {error}", file.display()));
        }
        if let Some(message) = &self.message {
            say(message);
        }
        exit
    }

    fn json(&self, exit: u8) -> Value {
        let (status, signal) = match self.ended {
            Some(Ended::Status(status)) => (Some(status), None),
            Some(Ended::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let recorded = self.recorded.map(|recorded| match recorded {
            Meaning::Keep => "completed",
            Meaning::Release => "released",
            Meaning::Unknown => "unknown",
        });
        let output = self.is_omitted.map(|is_omitted| match is_omitted {
            true => "omitted",
            false => "kept",
        });
        let members = [
            ("result", Some(self.result.name().into())),
            ("exit", Some(exit.into())),
            ("status", status.map(Value::from)),
            ("signal", signal.map(Value::from)),
            ("recorded", recorded.map(Value::from)),
            ("output", output.map(Value::from)),
            ("id", Some(self.id.to_string().into())),
            ("fence", self.fence.map(|fence| fence.0.into())),
            ("attempt", self.attempt.map(Value::from)),
            ("message", self.message.as_deref().map(Value::from)),
        ];
        let members = members
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(members.collect::<Map<_, _>>())
    }
}

/// A line on stderr that cannot be taken for the command's.
pub(super) fn say(message: &str) {
    let line = format!("semel: {message}\n");
    // Who reads it may pause for ever, and the command's own output hold it up. Where stderr is closed there is
    // nobody to tell.
    let (said, is_said) = mpsc::channel::<()>();
    let speaker = thread::Builder::new().spawn(move || {
        std::io::stderr().write_all(line.as_bytes()).ok();
        drop(said);
    });
    if speaker.is_ok() {
        is_said.recv_timeout(SAID_WITHIN).ok();
    }
}
