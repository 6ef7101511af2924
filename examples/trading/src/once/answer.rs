//! Answers: what is kept of an operation, and the running of one.

use std::sync::Arc;

use rusqlite::Connection;
use semel::guard::{Ran, RunError, TransactOptions, Value};
use semel::operation::{Bound, Call};
use semel::{Outcome, OutcomeKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Store;
use crate::domain::{self, Refusal};

/// The answer to an operation: a refusal is one too, and replayed like any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T>(pub Result<T, Refusal>);

/// An answer, and whether this call ran it; or why there is none.
pub type Answered<T> = Result<Ran<Answer<T>>, RunError<domain::Error>>;

/// Runs `work` once for what `call` asks, in one transaction with its record.
pub(super) async fn once<T: Serialize + DeserializeOwned + Send + 'static>(
    operation: &Bound<Store>,
    call: &Call,
    work: impl Fn(&Connection) -> domain::Result<T> + Send + Sync + 'static,
) -> Answered<T> {
    // It may run again, after a conflict.
    let work = Arc::new(work);
    operation
        .transact(call, TransactOptions::default(), move |_, mut tx| {
            let work = Arc::clone(&work);
            async move { tx.call(move |on| answer(on, &*work)).await }
        })
        .await
}

/// A refusal is an answer, and leaves nothing but its record.
fn answer<T>(
    on: &Connection,
    work: impl Fn(&Connection) -> domain::Result<T>,
) -> domain::Result<Answer<T>> {
    on.execute_batch("SAVEPOINT work")?;
    match work(on) {
        Ok(value) => Ok(Answer(Ok(value))),
        Err(domain::Error::Refused(refusal)) => {
            on.execute_batch("ROLLBACK TO work")?;
            Ok(Answer(Err(refusal)))
        }
        Err(error) => Err(error),
    }
}

/// Tells a refusal from a value.
const REFUSED: u16 = 1;

impl<T: Serialize + DeserializeOwned> Value for Answer<T> {
    fn to_outcome(&self) -> Outcome {
        let json = |value: serde_json::Result<Vec<u8>>| value.expect("plain data is always JSON");
        let outcome = Outcome::builder(OutcomeKind::Success);
        match &self.0 {
            Ok(value) => match json(serde_json::to_vec(value)) {
                nothing if nothing == b"null" => outcome.void(),
                body => outcome.body(&body),
            },
            Err(refusal) => {
                let body = json(serde_json::to_vec(refusal));
                outcome.code(REFUSED).body(&body)
            }
        }
    }

    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        let body = outcome.body().unwrap_or_else(|| "null".into());
        Some(Self(match outcome.code() {
            REFUSED => Err(serde_json::from_slice(&body).ok()?),
            _ => Ok(serde_json::from_slice(&body).ok()?),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_after_a_write_leaves_nothing_of_it() {
        let on = Connection::open_in_memory().unwrap();
        domain::prepare(&on).unwrap();
        on.execute_batch("BEGIN").unwrap();
        let refused = answer::<()>(&on, |on| {
            domain::set_quote(on, "ACME", 1)?;
            Err(Refusal::NoQuote.into())
        });
        assert_eq!(refused.unwrap(), Answer(Err(Refusal::NoQuote)));
        on.execute_batch("COMMIT").unwrap();
        assert_eq!(domain::quote(&on, "ACME").unwrap(), 12_500);
    }

    #[test]
    fn answers_are_kept_as_they_are_and_nothing_as_nothing() {
        let back = |answer: &Answer<i64>| Answer::from_outcome(&answer.to_outcome());
        for answer in [Answer(Ok(3)), Answer(Err(Refusal::NoPosition))] {
            assert_eq!(back(&answer).unwrap(), answer);
        }
        let outcome = Answer(Ok(())).to_outcome();
        assert_eq!(outcome, Outcome::void());
        assert_eq!(Answer::from_outcome(&outcome), Some(Answer(Ok(()))));
    }
}
