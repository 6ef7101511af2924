//! A store that passes the points on its way: it delegates, and stands still before and after.

use std::sync::Arc;

use semel::record::{Change, Update};
use semel::store::{Claim, ClaimRequest, Fenced, Result};
use semel::transaction::{Isolation, Sealing, TransactionError, Transactional, seal_one_by_one};
use semel::{Identity, IdentityDigest, Store, StoreError, StoreErrorKind};

use super::failpoints::Failpoints;
use super::point::Point;
use crate::base::Base;

/// The store, and the points around each of its calls.
#[derive(Debug)]
pub(crate) struct Pointed<S> {
    inner: Arc<S>,
    points: Arc<Failpoints>,
}

impl<S> Pointed<S> {
    pub(crate) const fn new(inner: Arc<S>, points: Arc<Failpoints>) -> Self {
        Self { inner, points }
    }

    pub(crate) const fn points(&self) -> &Arc<Failpoints> {
        &self.points
    }
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

    semel::delegate!(inner: get, list, purge, wait, probe, close);
}

impl<S: Transactional> Pointed<S> {
    /// Passes the points around a commit.
    async fn committed<T>(
        &self,
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
            self.points.pass(point).await;
        }
        let committed = commit.await;
        self.points.unhush();
        if let Err(TransactionError::Unknown(_)) = &committed {
            self.points.lost();
        }
        let committed = committed?;
        self.points.pass(Point::Committed).await;
        Ok(committed)
    }
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
        self.points.pass(Point::BeforeCompleting).await;
        let done = self.inner.change_in(transaction, identity, change).await?;
        self.points.pass(Point::Completing).await;
        Ok(done)
    }

    async fn commit(&self, transaction: S::Transaction) -> Result<(), TransactionError> {
        self.committed(self.inner.commit(transaction)).await
    }

    async fn seal(
        &self,
        transaction: S::Transaction,
        changes: &[(IdentityDigest, Change)],
    ) -> Result<Sealing, TransactionError> {
        if !S::SEALS_AT_ONCE || self.points.is_armed(Point::Completing) {
            return seal_one_by_one(self, transaction, changes).await;
        }
        self.points.pass(Point::BeforeCompleting).await;
        self.committed(self.inner.seal(transaction, changes)).await
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
