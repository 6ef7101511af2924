//! How an action is entered in the audit log, before it is done and after; and how a step is tried again.

use std::future::Future;
use std::time::Duration;

use semel::store::{Entry, Fence, Nonce, Resolution, Store, Verdict};
use semel::{Outcome, Record, State, StoreError, StoreErrorKind};
use semel_tower::ProblemCode;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::view::{Answer, time};
use super::{Operations, of_store};
use crate::audit::{Begun, Came, Intent, Number};
use crate::command::with_causes;
use crate::refused::{Code, Refused};

/// The longest reason, in characters.
const LONGEST_REASON: usize = 1_000;
/// How often a step is sent whose answer was lost, under the same nonce.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(100);

/// Who does something, as the audit log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Their name.
    pub name: String,
    /// The address that they ask from, or the machine.
    pub from: String,
}

impl Actor {
    /// What they are about to do, and why.
    pub(super) fn intends(&self, action: &str, reason: &str) -> Result<Intent, Refused> {
        Ok(Intent {
            action: action.to_owned(),
            id: None,
            by: self.name.clone(),
            from: self.from.clone(),
            reason: checked(reason)?.to_owned(),
            before: None,
            digest: None,
            confirms: None,
        })
    }

    /// What they decide, as a store takes it.
    pub(super) fn decides(
        &self,
        verdict: Verdict,
        reason: &str,
        fence: Fence,
    ) -> Result<Resolution, Refused> {
        Ok(Resolution {
            verdict,
            by: self.name.as_str().into(),
            reason: reason.into(),
            fence,
            nonce: Nonce::random().map_err(of_store)?,
        })
    }
}

impl Intent {
    /// The same, about this record.
    pub(super) fn about(self, entry: &Entry) -> Self {
        Self {
            id: Some(entry.label.digest.to_string()),
            before: Some(facts(&entry.record)),
            ..self
        }
    }
}

/// A reason, checked.
fn checked(reason: &str) -> Result<&str, Refused> {
    let reason = reason.trim();
    if reason.is_empty() {
        let why = "say why: it is kept in the audit log and with the record";
        return Err(Refused::new(Code::MissingReason, why));
    }
    let long = reason.chars().count();
    if long > LONGEST_REASON {
        let why = format!("reason: it has {long} characters; {LONGEST_REASON} are kept");
        return Err(Refused::invalid(why));
    }
    if reason.chars().any(|c| c.is_control() && c != '\n') {
        return Err(Refused::invalid("reason: control characters are not text"));
    }
    Ok(reason)
}

impl<S: Store + Clone> Operations<S> {
    pub(super) async fn enter(&self, intent: Intent) -> Result<Begun, Refused> {
        self.log.begin(intent).await.map_err(|error| {
            let why = format!(
                "nothing was done, because it could not be entered in the audit log: {}",
                with_causes(&error)
            );
            Refused::of_layer(ProblemCode::StoreUnavailable, why)
        })
    }

    /// Whoever listens hears of it.
    pub(super) fn told(&self, number: Number, intent: &Intent, came: Came) {
        if let Some(events) = &self.events {
            let Intent { action, id, .. } = intent;
            events.acted(action, id.as_deref(), came.as_str(), &number.to_string());
        }
    }

    /// What was done stays done where this fails: the entry says then that its result is not known.
    pub(super) async fn leave(
        &self,
        begun: Begun,
        came: Came,
        detail: Option<String>,
        after: Option<Value>,
    ) {
        let number = begun.number();
        self.told(number, begun.intent(), came);
        if let Err(error) = self.log.end(begun, came, detail, after).await {
            tracing::warn!(entry = %number, "audit: the result could not be entered: {error}");
        }
    }
}

/// What the audit log keeps of a record.
pub(crate) fn facts(record: &Record) -> Value {
    let outcome = match &record.state {
        State::Completed(outcome) => Some(brief(outcome)),
        _ => None,
    };
    json!({
        "state": record.state.kind().as_str(),
        "fence": record.token.fence.0,
        "attempt": record.attempt,
        "expires_at": time(record.expires_at),
        "outcome": outcome,
    })
}

/// An outcome without what may be secret in it.
fn brief(outcome: &Outcome) -> Value {
    let Answer {
        kind,
        status,
        body_bytes,
        ..
    } = Answer::redacted(outcome);
    json!({ "kind": kind, "status": status, "body_bytes": body_bytes })
}

/// Tries a step again whose answer was lost, or which the store could not do.
pub(crate) async fn insist<T, F>(step: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let (done, lost) = tried(step).await;
    // Once an answer was lost it may have happened, whatever comes after.
    done.map_err(|error| lost.unwrap_or(error))
}

/// The same, with what an answer was lost by: the step may have been made before the one that was answered.
pub(super) async fn tried<T, F>(
    mut step: impl FnMut() -> F,
) -> (Result<T, StoreError>, Option<StoreError>)
where
    F: Future<Output = Result<T, StoreError>>,
{
    let (mut tries, mut lost) = (1, None);
    loop {
        match step().await {
            Err(error) if error.is_retryable() && tries < TRIES => {
                if error.kind() == StoreErrorKind::Unknown {
                    lost = Some(error);
                }
                sleep(PAUSE * tries).await;
                tries += 1;
            }
            done => return (done, lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_text_of_some_length() {
        assert_eq!(checked(" paid in cash\n"), Ok("paid in cash"));
        for (reason, code) in [
            ("", Code::MissingReason),
            (" \n ", Code::MissingReason),
            ("a\u{1b}[2J", Code::InvalidRequest),
            (&"x".repeat(1_001), Code::InvalidRequest),
        ] {
            assert!(checked(reason).unwrap_err().is(code), "{reason}");
        }
    }
}
