//! Callers in line: those for one identity share one question.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{Asked, Guard};
use super::ask::{Asker, Inquiry};
use crate::store::{Fence, Store};
use crate::sync::{Mutex, Watched};
use crate::{Identity, IdentityDigest};

/// The questions under way, by the attempt that they are about.
pub(in super::super) type Flights = Mutex<HashMap<(IdentityDigest, Fence), Flight>>;

/// Says at its end whether the record changed. It did not where the question broke off.
type Flight = Arc<Watched<Option<bool>>>;

/// Who comes after the answer asks anew.
fn is_under_way(flight: &Flight) -> bool {
    flight.get().is_none()
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
        let answer = {
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
                        asker: Asker::Caller(Box::new(asked.clone())),
                        asked: 1,
                    })
                })
                .clone()
        };
        answer.until(|changed| changed).await
    }

    /// Whether somebody in line is asking about this attempt.
    pub(super) fn is_asking(&self, digest: &IdentityDigest, fence: Fence) -> bool {
        let flights = self.shared.flights.lock();
        flights.get(&(*digest, fence)).is_some_and(is_under_way)
    }
}

// In a task of its own: the caller who began it may go away, and others wait for the answer.
fn ask_for_all<S: Store>(inquiry: Inquiry<S>) -> Flight {
    let flight = Flight::new(Watched::new(None));
    let landing = Landing(Arc::clone(&flight));
    tokio::spawn(async move { landing.ends(inquiry.ask_until().await) });
    flight
}

/// Tells those who wait, also where the question panics or the runtime shuts down.
struct Landing(Flight);

impl Landing {
    fn ends(&self, changed: bool) {
        self.0.set(Some(changed));
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if is_under_way(&self.0) {
            self.ends(false);
        }
    }
}
