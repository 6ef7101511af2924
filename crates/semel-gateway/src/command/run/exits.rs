//! What the end of a command means for its key.

use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// With this status.
    Status(u8),
    /// By this signal.
    Signal(u8),
}

impl Ended {
    /// What `semel run` passes on: of a signal what a shell makes of it.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => SIGNALS.saturating_add(signal),
        }
    }

    /// Killed, as far as its end tells: a shell reports its command's signal in its own status.
    fn is_killed(self) -> bool {
        match self {
            Self::Status(status) => KILLED.contains(&status),
            Self::Signal(_) => true,
        }
    }
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        // Of both, the system has no more than fit.
        let small = |number| u8::try_from(number).unwrap_or(u8::MAX);
        match status.code() {
            Some(code) => Self::Status(small(code)),
            None => Self::Signal(status.signal().map_or(0, small)),
        }
    }
}

/// What becomes of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It is the lasting answer.
    Keep,
    /// Nothing happened: the next run starts the command again.
    Release,
    /// Nobody knows.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Statuses(RangeInclusive<u8>),
    /// All but 0 and those that stand for a signal.
    Failure,
    Signal,
}

/// What each end means: of the rules that match the last one counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OnExit(Vec<(What, Meaning)>);

impl OnExit {
    /// Reads rules that are written like `3=keep`, on top of the default ones.
    pub(super) fn read<'a>(rules: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let default = [
            (What::Statuses(0..=0), Meaning::Keep),
            (What::Failure, Meaning::Release),
            (What::Signal, Meaning::Unknown),
        ];
        let rules = rules.map(|text| {
            rule(text.trim()).ok_or_else(|| {
                format!(
                    "`{text}` is not WHAT=MEANING: WHAT is a status from 1 to 255, a range like 64-78, failure or \
                     signal, MEANING is keep, release or unknown"
                )
            })
        });
        let all = default.into_iter().map(Ok).chain(rules);
        all.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn meaning(&self, ended: Ended) -> Meaning {
        let matches = |what: &What| match (what, ended) {
            (What::Statuses(range), Ended::Status(status)) => range.contains(&status),
            (What::Failure, _) => ended != Ended::Status(0) && !ended.is_killed(),
            (What::Signal, _) => ended.is_killed(),
            (What::Statuses(_), Ended::Signal(_)) => false,
        };
        let last = self.0.iter().rev().find(|(what, _)| matches(what));
        last.map_or(Meaning::Unknown, |(_, meaning)| *meaning)
    }
}

fn rule(text: &str) -> Option<(What, Meaning)> {
    let (what, meaning) = text.split_once('=')?;
    let status = |text: &str| text.parse().ok().filter(|status| *status > 0);
    let what = match what {
        "failure" => What::Failure,
        "signal" => What::Signal,
        range => {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let statuses = status(from)?..=status(to)?;
            (!statuses.is_empty()).then_some(What::Statuses(statuses))?
        }
    };
    let meaning = match meaning {
        "keep" => Meaning::Keep,
        "release" => Meaning::Release,
        "unknown" => Meaning::Unknown,
        _ => return None,
    };
    Some((what, meaning))
}

/// A shell's status for a command that was killed by signal N is this and N.
const SIGNALS: u8 = 128;
const KILLED: RangeInclusive<u8> = SIGNALS + 1..=SIGNALS + 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(rules: &str, ended: Ended) -> Meaning {
        let rules = rules.split(',').filter(|rule| !rule.is_empty());
        OnExit::read(rules).unwrap().meaning(ended)
    }

    #[test]
    fn the_last_rule_that_matches_counts() {
        use Ended::{Signal, Status};
        use Meaning::{Keep, Release, Unknown};
        for (rules, ended, expected) in [
            ("", Status(0), Keep),
            ("", Status(1), Release),
            ("", Status(128), Release),
            ("", Status(129), Unknown),
            ("", Status(192), Unknown),
            ("", Status(193), Release),
            ("", Signal(9), Unknown),
            ("failure=keep", Status(1), Keep),
            ("failure=keep", Status(0), Keep),
            ("failure=release", Status(137), Unknown),
            ("failure=keep", Signal(15), Unknown),
            ("failure=unknown,3=keep", Status(3), Keep),
            ("3=keep,failure=unknown", Status(3), Unknown),
            ("64-78=keep", Status(64), Keep),
            ("64-78=keep", Status(78), Keep),
            ("64-78=keep", Status(79), Release),
            ("signal=release", Signal(15), Release),
            ("signal=release", Status(143), Release),
            ("signal=release,137=keep", Status(137), Keep),
            ("137=keep", Signal(9), Unknown),
        ] {
            assert_eq!(meaning(rules, ended), expected, "{rules} {ended:?}");
        }
    }

    #[test]
    fn a_wrong_rule_says_what_would_be_right() {
        for rule in [
            "", "3", "0=keep", "3=", "=keep", "3=Keep", "256=keep", "9-3=keep", "-1=keep",
            "any=keep", "0-9=keep",
        ] {
            let error = OnExit::read([rule].into_iter()).unwrap_err();
            assert!(error.contains("WHAT=MEANING"), "{error}");
        }
    }
}
