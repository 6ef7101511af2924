//! Answers: what is kept of an operation, and the running of one.

use std::sync::Arc;

use rusqlite::Connection;
use semel::Json;
use semel::guard::{Asked, Done, Guard, OnError, RunError, TransactOptions};
use semel::operation::CallError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Store;
use crate::domain::{self, Refusal};

/// An answer, and whether this call ran it; or why there is none.
pub type Answered<T> = Result<Done<T>, Error>;

/// Why there is no other answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is against a rule. That is an answer too: it is kept, and replayed like any other.
    #[error("{refusal}")]
    Refused {
        /// The rule.
        refusal: Refusal,
        /// It was said in an earlier call.
        replayed: bool,
    },
    /// Refused or failed before the claim. Nothing is kept.
    #[error(transparent)]
    Domain(#[from] domain::Error),
    /// The call has no good key.
    #[error(transparent)]
    Call(#[from] CallError),
    /// All the rest.
    #[error(transparent)]
    Once(RunError<Failure>),
}

/// An error of the domain. Its text is what is kept of it: of a refusal all, as JSON.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.text())]
pub struct Failure(#[source] domain::Error);

impl Failure {
    fn text(&self) -> String {
        match &self.0 {
            domain::Error::Refused(refusal) => serde_json::to_string(refusal).unwrap_or_default(),
            domain::Error::Database(error) => error.to_string(),
        }
    }
}

impl From<RunError<Failure>> for Error {
    fn from(error: RunError<Failure>) -> Self {
        if let RunError::Failed(failed) = &error
            && let Ok(refusal) = serde_json::from_str(&failed.to_string())
        {
            let replayed = failed.error().is_none();
            return Self::Refused { refusal, replayed };
        }
        Self::Once(error)
    }
}

/// Runs `work` once for what is asked, in one transaction with its record.
pub(super) async fn once<T: Serialize + DeserializeOwned + Send + 'static>(
    guard: &Guard<Store>,
    asked: Asked,
    work: impl Fn(&Connection) -> domain::Result<T> + Send + Sync + 'static,
) -> Answered<T> {
    // It may run again, after a conflict.
    let work = Arc::new(work);
    // A refusal is kept, and what was written before it is rolled back.
    let asked = asked.classify(|failure: &Failure| match failure.0 {
        domain::Error::Refused(_) => OnError::Keep,
        domain::Error::Database(_) => OnError::Release,
    });
    let done = guard.transact(asked, TransactOptions::default(), move |_, mut tx| {
        let work = Arc::clone(&work);
        async move { tx.call(move |on| work(on).map(Json)).await.map_err(Failure) }
    });
    Ok(match done.await? {
        Done::Fresh(Json(answer)) => Done::Fresh(answer),
        Done::Replayed(Json(answer)) => Done::Replayed(answer),
        Done::Unprotected(Json(answer)) => Done::Unprotected(answer),
    })
}

#[cfg(test)]
mod tests {
    use semel::{Fingerprint, Identity, Key, Scope};
    use semel_stores::{Schema, SqliteOptions};

    use super::*;

    #[tokio::test]
    async fn a_refusal_after_a_write_leaves_nothing_of_it_and_is_replayed_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trading.db");
        let own = Connection::open(&file).unwrap();
        domain::prepare(&own).unwrap();
        let store = SqliteOptions::new().schema(Schema::Create).open(&file);
        let guard = Guard::from(Arc::new(store.unwrap()));
        let dear = Refusal::TooDear { cost: 2, cash: 1 };
        for before in [false, true] {
            let id = Identity::new(Scope::new(["ann"]), "refuse", Key::new("k").unwrap());
            let (asked, refused) = (Asked::new(id, Fingerprint::of(b"")), dear.clone());
            let answered = once::<()>(&guard, asked, move |on| {
                domain::set_quote(on, "ACME", 1)?;
                Err(refused.clone().into())
            });
            let Err(Error::Refused { refusal, replayed }) = answered.await else {
                panic!("it is refused");
            };
            assert_eq!((refusal, replayed), (dear.clone(), before));
            assert_eq!(domain::quote(&own, "ACME").unwrap(), 12_500);
        }
    }
}
