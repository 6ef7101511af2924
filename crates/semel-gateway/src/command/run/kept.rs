//! What is kept of a run: exit status and output, as an outcome.
//!
//! The status is the outcome's code; the body is stdout and behind it stderr, whose lengths stand in the
//! content type. Without a body the output was too large. The claim API shows and takes the same.

use semel::{Outcome, OutcomeKind};

/// The content type of kept output, before its parameters.
const OUTPUT: &str = "application/vnd.semel.output";
/// The field in which a content type is kept, as the HTTP layer and the claim API do.
const CONTENT_TYPE: &str = "content-type";

/// Both streams, each in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// What a run left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    /// What it ended with.
    pub(super) code: u8,
    /// None: it was too large.
    pub(super) output: Option<Output>,
}

impl Kept {
    pub(super) fn to_outcome(&self) -> Outcome {
        let kind = match (&self.output, self.code) {
            (None, _) => OutcomeKind::Omitted,
            (_, 0) => OutcomeKind::Success,
            _ => OutcomeKind::Failure,
        };
        let outcome = Outcome::builder(kind).code(self.code.into());
        match &self.output {
            None => outcome.field(CONTENT_TYPE, OUTPUT.as_bytes()).void(),
            Some(Output { stdout, stderr }) => {
                let content_type =
                    format!("{OUTPUT}; stdout={}; stderr={}", stdout.len(), stderr.len());
                let outcome = outcome.field(CONTENT_TYPE, content_type.as_bytes());
                outcome.body(&[stdout.as_slice(), stderr].concat())
            }
        }
    }

    /// Of an outcome that somebody else recorded, an operator or another program, all is stdout.
    pub(super) fn of(outcome: &Outcome) -> Self {
        let mut fields = outcome.fields();
        let content_type = fields.find(|(name, _)| *name == CONTENT_TYPE);
        let content_type = content_type.and_then(|(_, value)| std::str::from_utf8(value).ok());
        let parameters = content_type.and_then(|text| text.strip_prefix(OUTPUT));
        let code = match (outcome.kind(), u8::try_from(outcome.code())) {
            (OutcomeKind::Failure, Err(_) | Ok(0)) => 1,
            (OutcomeKind::Failure, Ok(code)) => code,
            // The number of another program's is no exit status.
            (OutcomeKind::Omitted, Ok(code)) if parameters.is_some() => code,
            _ => 0,
        };
        let output = match (outcome.body(), parameters) {
            (Some(body), Some(parameters)) => {
                let at = stdout_length(parameters).unwrap_or(body.len());
                let (stdout, stderr) = body.split_at(at.min(body.len()));
                Some(Output {
                    stdout: stdout.to_vec(),
                    stderr: stderr.to_vec(),
                })
            }
            (Some(body), None) => Some(Output {
                stdout: body.to_vec(),
                stderr: Vec::new(),
            }),
            (None, None) if outcome.kind() != OutcomeKind::Omitted => Some(Output::default()),
            (None, _) => None,
        };
        Self { code, output }
    }
}

fn stdout_length(parameters: &str) -> Option<usize> {
    let mut parameters = parameters.split(';').map(str::trim);
    parameters.find_map(|one| one.strip_prefix("stdout=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again() {
        let output = |stdout: &[u8], stderr: &[u8]| {
            Some(Output {
                stdout: stdout.to_vec(),
                stderr: stderr.to_vec(),
            })
        };
        for (code, output) in [
            (0, output(b"", b"")),
            (0, output(b"a\0\xff\n", b"b")),
            (3, output(b"", b"only stderr")),
            (255, output(b"only stdout", b"")),
            (0, None),
            (7, None),
        ] {
            let kept = Kept { code, output };
            assert_eq!(Kept::of(&kept.to_outcome()), kept);
            // A store that takes less.
            let omitted = Kept::of(&kept.to_outcome().to_omitted());
            assert_eq!((omitted.code, omitted.output), (code, None));
        }
    }

    #[test]
    fn what_others_recorded_can_be_replayed() {
        let http = Outcome::builder(OutcomeKind::Success)
            .code(201)
            .field("content-type", b"text/plain")
            .body(b"done");
        for (outcome, code, stdout) in [
            (Outcome::void(), 0, &b""[..]),
            (Outcome::success(b"paid"), 0, b"paid"),
            (Outcome::failure(b"declined"), 1, b"declined"),
            (http, 0, b"done"),
            (
                Outcome::builder(OutcomeKind::Failure).code(422).body(b"no"),
                1,
                b"no",
            ),
        ] {
            let kept = Kept::of(&outcome);
            let output = kept.output.unwrap();
            assert_eq!((kept.code, &output.stdout[..]), (code, stdout));
            assert!(output.stderr.is_empty());
        }
    }
}
