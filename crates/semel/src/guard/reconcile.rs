//! Asking what became of an attempt that nobody recorded (R7, `reconcile`).

use std::future::Future;
use std::pin::Pin;

use super::{Event, Guard};
use crate::store::{Fence, Fenced, Nonce, Resolution, Store, Verdict};
use crate::{Identity, Outcome, StoreError};

/// What a reconciler found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The attempt had its effect, with this outcome: it is recorded and replayed.
    Happened(Outcome),
    /// The attempt had no effect: the caller runs it.
    DidNotHappen,
    /// Nobody can say yet: the outcome stays unknown.
    StillUnknown,
}

/// Finds out what became of an attempt: asks the payment provider, looks into the ledger.
pub trait Reconciler: Send + Sync + 'static {
    /// What became of the attempt with this fence? May be asked by several callers at once.
    fn reconcile<'a>(
        &'a self,
        identity: &'a Identity,
        fence: Fence,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>>;
}

impl<S: Store> Guard<S> {
    /// Whether the record changed, so that another claim is worth it.
    pub(super) async fn reconcile(
        &self,
        identity: &Identity,
        fence: Fence,
    ) -> Result<bool, StoreError> {
        let Some(reconciler) = &self.0.reconciler else {
            return Ok(false);
        };
        let (verdict, reason) = match reconciler.reconcile(identity, fence).await {
            Finding::Happened(outcome) => {
                let retention = self.0.policy.retention;
                (Verdict::Happened { outcome, retention }, "it happened")
            }
            Finding::DidNotHappen => (Verdict::DidNotHappen, "it did not happen"),
            Finding::StillUnknown => return Ok(false),
        };
        let resolution = Resolution {
            verdict,
            by: "reconciler".into(),
            reason: reason.into(),
            fence,
            nonce: Nonce::random()?,
        };
        let fenced = self.0.store.resolve(identity.digest(), &resolution).await?;
        if fenced == Fenced::Applied {
            self.observe(Event::Resolved);
        }
        // Refused: somebody else resolved it meanwhile, which is as good.
        Ok(true)
    }
}
