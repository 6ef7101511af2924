//! Callers in line: those for one identity share one question.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::super::{Asked, Guard};
use super::ask::Inquiry;
use crate::store::{Fence, Store};
use crate::sync::Mutex;
use crate::{Identity, IdentityDigest};

/// The questions under way, by the attempt that they are about.
pub(in super::super) type Flights = Mutex<HashMap<(IdentityDigest, Fence), Flight>>;

/// Says at its end whether the record changed; nothing, where the question broke off.
type Flight = watch::Receiver<Option<bool>>;

/// Who comes after the answer asks anew.
fn is_under_way(flight: &Flight) -> bool {
    flight.borrow().is_none() && flight.has_changed().is_ok()
}

impl<S: Store> Guard<S> {
    /// Whether the record changed, so that another claim is worth it.
    pub(in super::super) async fn reconcile(
        &self,
        asked: &Asked,
        identity: &Identity,
        fence: Fence,
    ) -> bool {
        let Some(reconciler) = &self.shared.reconciler else {
            return false;
        };
        let mut answer = {
            let mut flights = self.shared.flights.lock();
            flights.retain(|_, flight| is_under_way(flight));
            let flight = flights.entry((*identity.digest(), fence));
            flight
                .or_insert_with(|| {
                    ask_for_all(Inquiry {
                        guard: self.clone(),
                        reconciler: Arc::clone(reconciler),
                        options: self.shared.reconcile_options.clone(),
                        digest: *identity.digest(),
                        fence,
                        caller: Some(asked.clone()),
                        asked: 1,
                    })
                })
                .clone()
        };
        let changed = answer.wait_for(Option::is_some).await;
        // No answer: the question broke off, or the runtime is shutting down.
        changed.is_ok_and(|changed| *changed == Some(true))
    }

    /// Whether somebody in line is asking about this attempt.
    pub(super) fn is_asking(&self, digest: &IdentityDigest, fence: Fence) -> bool {
        let flights = self.shared.flights.lock();
        flights.get(&(*digest, fence)).is_some_and(is_under_way)
    }
}

// In a task of its own: the caller who began it may go away, and others wait for the answer.
fn ask_for_all<S: Store>(inquiry: Inquiry<S>) -> Flight {
    let (tell, answer) = watch::channel(None);
    tokio::spawn(async move { tell.send(Some(inquiry.ask_until().await)) });
    answer
}
