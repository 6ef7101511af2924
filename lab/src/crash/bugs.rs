//! Planted bugs: ways in which an application, or a guard, gets this wrong.

use std::sync::Arc;

use clap::ValueEnum;
use parking_lot::Mutex;
use semel::record::{Change, Update};
use semel::store::{Fenced, Result};
use semel::transaction::{Isolation, Sealing, TransactionError, Transactional, seal_one_by_one};
use semel::{FinishedStep, IdentityDigest, Progress, Store};
use serde::{Deserialize, Serialize};

use super::failpoints::Failpoints;
use super::point::{Point, Work};
use super::pointed::Pointed;
use super::steps::StepLog;
use crate::base::Base;

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

/// The store as the guard sees it: right, or wrong in one way.
#[derive(Debug)]
pub(crate) struct Planted<B> {
    inner: Arc<Pointed<B>>,
    bug: Option<Bug>,
    log: Option<Arc<StepLog>>,
    /// A completion.
    put_off: Mutex<Option<(IdentityDigest, Change)>>,
}

impl<B> Planted<B> {
    /// `log` is told of the steps that are kept.
    pub(crate) fn new(inner: Pointed<B>, bug: Option<Bug>, log: Option<Arc<StepLog>>) -> Self {
        Self {
            inner: Arc::new(inner),
            bug,
            log,
            put_off: Mutex::default(),
        }
    }

    fn points(&self) -> &Failpoints {
        self.inner.points()
    }
}

/// None of a mark.
fn name(step: &FinishedStep) -> Option<String> {
    let one = Progress::EMPTY.with(step).ok()?;
    let (name, _) = one.steps().next()?;
    Some(name.to_owned())
}

impl<B: Base> Store for Planted<B> {
    semel::delegate!(inner: claim, get, list, purge, wait, probe, close);

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let Change::Held(token, Update::KeepStep { step, .. }) = change else {
            return self.inner.change(identity, change).await;
        };
        let done = match self.bug {
            Some(Bug::ForgetsSteps) => Fenced::Applied,
            _ => self.inner.change(identity, change).await?,
        };
        if let (Fenced::Applied, Some(name)) = (done, name(step)) {
            if let Some(log) = &self.log {
                log.kept(identity, &name, token.fence);
            }
            self.points().pass(Point::Kept).await;
        }
        Ok(done)
    }
}

impl<B: Base> Transactional for Planted<B> {
    type Transaction = B::Transaction;

    semel::delegate!(inner: begin, rollback);

    async fn change_in(
        &self,
        tx: &mut B::Transaction,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        if change.outcome().is_none() {
            return self.inner.change_in(tx, identity, change).await;
        }
        match self.bug {
            Some(Bug::CompletesAfter) => {
                *self.put_off.lock() = Some((*identity, change.clone()));
                return Ok(Fenced::Applied);
            }
            Some(Bug::CommitsFirst) => {
                for sql in B::COMMIT_AND_BEGIN {
                    // Where it fails, the transaction does.
                    let _ = B::execute(tx, sql.into()).await;
                }
            }
            _ => {}
        }
        let done = self.inner.change_in(tx, identity, change).await?;
        Ok(match self.bug {
            Some(Bug::RunsAgain) => Fenced::Applied,
            _ => done,
        })
    }

    async fn commit(&self, tx: B::Transaction) -> Result<(), TransactionError> {
        let put_off = self.put_off.lock().take();
        if self.bug == Some(Bug::AnswersFirst) {
            let inner = self.inner.clone();
            tokio::spawn(async move { inner.commit(tx).await });
            return Ok(());
        }
        let committed = self.inner.commit(tx).await;
        match (self.bug, committed) {
            (Some(Bug::CompletesAfter), Ok(())) => {
                if let Some((identity, change)) = put_off {
                    // Too late to do anything about it.
                    let _ = self.inner.change(&identity, &change).await;
                }
                Ok(())
            }
            (Some(Bug::NewKey), Err(TransactionError::Unknown(error))) => {
                Err(TransactionError::NotCommitted(error))
            }
            (Some(Bug::RunsAgain), Err(TransactionError::Unknown(error))) => {
                Err(TransactionError::Conflict(error))
            }
            (_, committed) => committed,
        }
    }

    async fn seal(
        &self,
        tx: B::Transaction,
        changes: &[(IdentityDigest, Change)],
    ) -> Result<Sealing, TransactionError> {
        match self.bug {
            None => self.inner.seal(tx, changes).await,
            Some(_) => seal_one_by_one(self, tx, changes).await,
        }
    }

    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        B::is_conflict(error)
    }

    fn renews_beside(isolation: Isolation) -> bool {
        B::renews_beside(isolation)
    }
}
