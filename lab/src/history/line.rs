//! A call or an answer as one line of text: short, and readable by whoever looks for a cause.

use std::fmt::Write as _;
use std::str::SplitAsciiWhitespace;

use semel::StateKind;

use super::{Answer, Call, Failed, Held, Kept, Refused, Step};

/// Writes a call, without an end of line.
pub fn write_call(out: &mut String, call: &Call) {
    // Writing to a string does not fail.
    let _ = match *call {
        Call::Claim {
            key,
            nonce,
            print,
            lease,
            retry,
        } => write!(
            out,
            "claim {key} {nonce:x} {print:x} {lease} {}",
            u8::from(retry)
        ),
        Call::Fenced { key, held, step } => {
            let Held { fence, nonce } = held;
            let _ = write!(out, "{} {key} {fence} {nonce:x}", call.name());
            match step {
                Step::Renew { lease } => write!(out, " {lease}"),
                Step::Complete(kept) => write_kept(out, kept),
                Step::Keep { part, after } => write!(out, " {part:x} {after}"),
                Step::Abandon | Step::MarkUnknown => Ok(()),
            }
        }
        Call::Resolve {
            key,
            fence,
            nonce,
            happened,
        } => {
            let _ = write!(out, "resolve {key} {fence} {nonce:x}");
            happened.map_or(Ok(()), |kept| write_kept(out, kept))
        }
        Call::Get { key } => write!(out, "get {key}"),
        Call::Wait {
            key,
            fence,
            timeout,
        } => write!(out, "wait {key} {fence} {timeout}"),
        Call::Purge => write!(out, "purge"),
    };
}

fn write_kept(out: &mut String, kept: Kept) -> std::fmt::Result {
    write!(
        out,
        " {:x} {} {}",
        kept.outcome, kept.replay, kept.tombstone
    )
}

/// Writes an answer, without an end of line.
pub fn write_answer(out: &mut String, answer: &Answer) {
    let _ = match *answer {
        Answer::Acquired { fence, attempt } => write!(out, "acquired {fence} {attempt}"),
        Answer::InFlight { fence, remaining } => write!(out, "in-flight {fence} {remaining}"),
        Answer::Completed { outcome, remaining } => {
            write!(out, "completed {outcome:x} {remaining}")
        }
        Answer::Unknown { fence } => write!(out, "unknown {fence}"),
        Answer::Mismatch => write!(out, "mismatch"),
        Answer::Expired => write!(out, "expired"),
        Answer::Applied => write!(out, "applied"),
        Answer::Refused(refused) => write!(out, "refused {}", refused.name()),
        Answer::Found {
            state,
            held: Held { fence, nonce },
            outcome,
        } => {
            let _ = write!(out, "found {} {fence} {nonce:x}", state.as_str());
            outcome.map_or(Ok(()), |outcome| write!(out, " {outcome:x}"))
        }
        Answer::Absent => write!(out, "absent"),
        Answer::Changed => write!(out, "changed"),
        Answer::TimedOut => write!(out, "timed-out"),
        Answer::Purged(removed) => write!(out, "purged {removed}"),
        Answer::Failed(Failed::Not) => write!(out, "failed not-applied"),
        Answer::Failed(Failed::Perhaps) => write!(out, "failed perhaps"),
        Answer::Lost => write!(out, "lost"),
    };
}

impl Refused {
    const ALL: [Self; 8] = [
        Self::Missing,
        Self::Superseded,
        Self::InFlight,
        Self::Unknown,
        Self::Completed,
        Self::Released,
        Self::Running,
        Self::OtherSteps,
    ];

    /// The name that histories use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Superseded => "superseded",
            Self::InFlight => "in-flight",
            Self::Unknown => "unknown",
            Self::Completed => "completed",
            Self::Released => "released",
            Self::Running => "running",
            Self::OtherSteps => "other-steps",
        }
    }
}

/// The words of a line, each read as what it should be.
struct Words<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.word()?.parse().ok()
    }

    fn hex(&mut self) -> Option<u64> {
        u64::from_str_radix(self.word()?, 16).ok()
    }

    fn nonce(&mut self) -> Option<u128> {
        u128::from_str_radix(self.word()?, 16).ok()
    }

    fn held(&mut self) -> Option<Held> {
        Some(Held {
            fence: self.number()?,
            nonce: self.nonce()?,
        })
    }

    fn kept(&mut self) -> Option<Kept> {
        Some(Kept {
            outcome: self.hex()?,
            replay: self.number()?,
            tombstone: self.number()?,
        })
    }
}

/// Reads what [`write_call`] wrote.
pub fn parse_call(text: &str) -> Option<Call> {
    let mut words = Words(text.split_ascii_whitespace());
    let name = words.word()?;
    if name == "purge" {
        return Some(Call::Purge);
    }
    let key = words.number()?;
    let fenced = |words: &mut Words<'_>, step: fn(&mut Words<'_>) -> Option<Step>| {
        let held = words.held()?;
        let step = step(words)?;
        Some(Call::Fenced { key, held, step })
    };
    match name {
        "claim" => Some(Call::Claim {
            key,
            nonce: words.nonce()?,
            print: words.hex()?,
            lease: words.number()?,
            retry: words.number::<u8>()? == 1,
        }),
        "renew" => fenced(&mut words, |w| Some(Step::Renew { lease: w.number()? })),
        "complete" => fenced(&mut words, |w| w.kept().map(Step::Complete)),
        "keep-step" => fenced(&mut words, |w| {
            let (part, after) = (w.hex()?, w.number()?);
            Some(Step::Keep { part, after })
        }),
        "abandon" => fenced(&mut words, |_| Some(Step::Abandon)),
        "mark-unknown" => fenced(&mut words, |_| Some(Step::MarkUnknown)),
        "resolve" => Some(Call::Resolve {
            key,
            fence: words.number()?,
            nonce: words.nonce()?,
            happened: words.kept(),
        }),
        "get" => Some(Call::Get { key }),
        "wait" => Some(Call::Wait {
            key,
            fence: words.number()?,
            timeout: words.number()?,
        }),
        _ => None,
    }
}

/// Reads what [`write_answer`] wrote.
pub fn parse_answer(text: &str) -> Option<Answer> {
    let mut words = Words(text.split_ascii_whitespace());
    Some(match words.word()? {
        "acquired" => Answer::Acquired {
            fence: words.number()?,
            attempt: words.number()?,
        },
        "in-flight" => Answer::InFlight {
            fence: words.number()?,
            remaining: words.number()?,
        },
        "completed" => Answer::Completed {
            outcome: words.hex()?,
            remaining: words.number()?,
        },
        "unknown" => Answer::Unknown {
            fence: words.number()?,
        },
        "mismatch" => Answer::Mismatch,
        "expired" => Answer::Expired,
        "applied" => Answer::Applied,
        "refused" => {
            let name = words.word()?;
            Answer::Refused(Refused::ALL.into_iter().find(|r| r.name() == name)?)
        }
        "found" => {
            let name = words.word()?;
            Answer::Found {
                state: StateKind::ALL.into_iter().find(|s| s.as_str() == name)?,
                held: words.held()?,
                outcome: words.hex(),
            }
        }
        "absent" => Answer::Absent,
        "changed" => Answer::Changed,
        "timed-out" => Answer::TimedOut,
        "purged" => Answer::Purged(words.number()?),
        "failed" => Answer::Failed(match words.word()? {
            "not-applied" => Failed::Not,
            "perhaps" => Failed::Perhaps,
            _ => return None,
        }),
        "lost" => Answer::Lost,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let held = Held {
            fence: u64::MAX,
            nonce: u128::MAX - 1,
        };
        let kept = Kept {
            outcome: 0xfeed,
            replay: 5,
            tombstone: 0,
        };
        let fenced = |step| Call::Fenced { key: 3, held, step };
        let calls = [
            Call::Claim {
                key: 7,
                nonce: 0,
                print: 9,
                lease: 1_000,
                retry: true,
            },
            fenced(Step::Renew { lease: 1 }),
            fenced(Step::Complete(kept)),
            fenced(Step::Keep { part: 7, after: 9 }),
            fenced(Step::Abandon),
            fenced(Step::MarkUnknown),
            Call::Resolve {
                key: 1,
                fence: 2,
                nonce: 3,
                happened: Some(kept),
            },
            Call::Resolve {
                key: 1,
                fence: 2,
                nonce: 3,
                happened: None,
            },
            Call::Get { key: 1 },
            Call::Wait {
                key: 1,
                fence: 2,
                timeout: 3,
            },
            Call::Purge,
        ];
        for call in calls {
            let mut text = String::new();
            write_call(&mut text, &call);
            assert_eq!(parse_call(&text), Some(call), "{text}");
        }
        let found = |outcome| Answer::Found {
            state: StateKind::Completed,
            held,
            outcome,
        };
        let mut answers = vec![
            Answer::Acquired {
                fence: 1,
                attempt: 2,
            },
            Answer::InFlight {
                fence: 1,
                remaining: 2,
            },
            Answer::Completed {
                outcome: 1,
                remaining: 2,
            },
            Answer::Unknown { fence: 1 },
            Answer::Mismatch,
            Answer::Expired,
            Answer::Applied,
            found(None),
            found(Some(u64::MAX)),
            Answer::Absent,
            Answer::Changed,
            Answer::TimedOut,
            Answer::Purged(4),
            Answer::Failed(Failed::Not),
            Answer::Failed(Failed::Perhaps),
            Answer::Lost,
        ];
        answers.extend(Refused::ALL.map(Answer::Refused));
        for answer in answers {
            let mut text = String::new();
            write_answer(&mut text, &answer);
            assert_eq!(parse_answer(&text), Some(answer), "{text}");
        }
    }

    #[test]
    fn half_a_line_is_none() {
        assert_eq!(parse_call("claim 7 0 9"), None);
        assert_eq!(parse_answer("acquired 1"), None);
        assert_eq!(parse_answer(""), None);
    }
}
