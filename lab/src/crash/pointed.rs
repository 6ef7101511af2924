//! The store as the guard sees it: it delegates, stands still at the points before and after, and is right or wrong in
//! one way.

use std::sync::Arc;

use parking_lot::Mutex;
use semel::record::{Change, Update};
use semel::store::{Claim, ClaimRequest, Fenced, Result};
use semel::transaction::{Isolation, Sealing, TransactionError, Transactional, seal_one_by_one};
use semel::{FinishedStep, Identity, IdentityDigest, Progress, Store, StoreError, StoreErrorKind};

use super::bugs::Bug;
use super::failpoints::Failpoints;
use super::point::Point;
use super::steps::Line;
use crate::base::Base;
use crate::lines::Lines;

/// The store, and the points around each of its calls.
#[derive(Debug)]
pub(crate) struct Pointed<S> {
    inner: Arc<S>,
    points: Arc<Failpoints>,
    bug: Option<Bug>,
    log: Option<Arc<Lines>>,
    /// A completion, of a planted bug.
    put_off: Mutex<Option<(IdentityDigest, Change)>>,
}

impl<S> Pointed<S> {
    /// `log` is told of the steps that are kept.
    pub(crate) fn new(
        inner: Arc<S>,
        points: Arc<Failpoints>,
        bug: Option<Bug>,
        log: Option<Arc<Lines>>,
    ) -> Self {
        Self {
            inner,
            points,
            bug,
            log,
            put_off: Mutex::default(),
        }
    }
}

/// None of a mark.
fn name(step: &FinishedStep) -> Option<String> {
    let one = Progress::EMPTY.with(step).ok()?;
    let (name, _) = one.steps().next()?;
    Some(name.to_owned())
}

impl<S: Store> Pointed<S> {
    async fn renewed(&self, identity: &IdentityDigest, renewal: &Change) -> Result<Fenced> {
        self.points.find_out().await;
        let (inner, identity, change) = (self.inner.clone(), *identity, renewal.clone());
        let renewal = self.points.renewal().await;
        // To its end, also where nobody waits for it any more.
        let renewed = tokio::spawn(async move {
            let _renewal = renewal;
            inner.change(&identity, &change).await
        });
        renewed.await.unwrap_or_else(|_| {
            let what = "the renewal ended with its runtime";
            Err(StoreError::new(StoreErrorKind::Unknown, what))
        })
    }

    async fn changed(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let passes: &[Point] = match change {
            Change::Held(_, Update::Renew(_)) => return self.renewed(identity, change).await,
            Change::Held(_, Update::Complete(..)) => {
                &[Point::BeforeCompletion, Point::CompletionLost]
            }
            Change::Held(_, Update::KeepStep { .. }) => {
                &[Point::WhileKeeping, Point::KeepLost, Point::KeepLate]
            }
            _ => &[],
        };
        for point in passes {
            self.points.pass(*point).await;
        }
        let done = self.inner.change(identity, change).await?;
        if let Change::Held(_, Update::Complete(..)) = change {
            self.points.pass(Point::Completed).await;
        }
        Ok(done)
    }
}

impl<S: Store> Store for Pointed<S> {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.points.pass(Point::Random).await;
        self.points.pass(Point::BeforeClaim).await;
        self.points.pass(Point::ClaimLost).await;
        let claim = self.inner.claim(identity, request).await?;
        if matches!(claim, Claim::Acquired(_)) {
            self.points.pass(Point::Claimed).await;
        }
        Ok(claim)
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let Change::Held(token, Update::KeepStep { step, .. }) = change else {
            return self.changed(identity, change).await;
        };
        let done = match self.bug {
            Some(Bug::ForgetsSteps) => Fenced::Applied,
            _ => self.changed(identity, change).await?,
        };
        if let (Fenced::Applied, Some(name)) = (done, name(step)) {
            if let Some(log) = &self.log {
                log.record(&Line::new(true, identity, &name, token.fence));
            }
            self.points.pass(Point::Kept).await;
        }
        Ok(done)
    }

    semel::delegate!(inner: get, list, purge, wait, probe, close);
}

/// Passes the points around a commit.
async fn committed<T>(
    points: &Failpoints,
    commit: impl Future<Output = Result<T, TransactionError>>,
) -> Result<T, TransactionError> {
    for point in [
        Point::BeforeCommit,
        Point::WhileCommitting,
        Point::CommitLost,
        Point::CommitLate,
        Point::CommitCut,
        Point::ReadingBack,
        Point::ServerRestartsAtCommit,
    ] {
        points.pass(point).await;
    }
    let committed = commit.await;
    points.unhush();
    if let Err(TransactionError::Unknown(_)) = &committed {
        points.lost();
    }
    let committed = committed?;
    points.pass(Point::Committed).await;
    Ok(committed)
}

impl<S: Base> Transactional for Pointed<S> {
    type Transaction = S::Transaction;

    async fn begin(&self, isolation: Isolation) -> Result<S::Transaction, TransactionError> {
        self.points.hush().await;
        let begun = self.inner.begin(isolation).await?;
        self.points.pass(Point::Begun).await;
        Ok(begun)
    }

    async fn change_in(
        &self,
        transaction: &mut S::Transaction,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        let bug = self.bug.filter(|_| change.outcome().is_some());
        if bug == Some(Bug::CompletesAfter) {
            *self.put_off.lock() = Some((*identity, change.clone()));
            return Ok(Fenced::Applied);
        }
        if bug == Some(Bug::CommitsFirst) {
            for sql in S::COMMIT_AND_BEGIN {
                // Where it fails, the transaction does.
                let _ = S::execute(transaction, sql.into()).await;
            }
        }
        self.points.pass(Point::BeforeCompleting).await;
        let done = self.inner.change_in(transaction, identity, change).await?;
        self.points.pass(Point::Completing).await;
        Ok(match bug {
            Some(Bug::RunsAgain) => Fenced::Applied,
            _ => done,
        })
    }

    async fn commit(&self, transaction: S::Transaction) -> Result<(), TransactionError> {
        let put_off = self.put_off.lock().take();
        let (inner, points) = (self.inner.clone(), self.points.clone());
        let commit = async move { committed(&points, inner.commit(transaction)).await };
        if self.bug == Some(Bug::AnswersFirst) {
            tokio::spawn(commit);
            return Ok(());
        }
        match (self.bug, commit.await) {
            (Some(Bug::CompletesAfter), Ok(())) => {
                if let Some((identity, change)) = put_off {
                    // Too late to do anything about it.
                    let _ = self.changed(&identity, &change).await;
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
        transaction: S::Transaction,
        changes: &[(IdentityDigest, Change)],
    ) -> Result<Sealing, TransactionError> {
        let at_once = S::SEALS_AT_ONCE && !self.points.is_armed(Point::Completing);
        if !at_once || self.bug.is_some() {
            return seal_one_by_one(self, transaction, changes).await;
        }
        self.points.pass(Point::BeforeCompleting).await;
        committed(&self.points, self.inner.seal(transaction, changes)).await
    }

    async fn rollback(&self, transaction: S::Transaction) {
        self.inner.rollback(transaction).await;
        self.points.unhush();
    }

    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        S::is_conflict(error)
    }

    fn renews_beside(isolation: Isolation) -> bool {
        S::renews_beside(isolation)
    }
}
