//! Callers in line: those for one identity share one question.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use tokio::sync::watch;

use super::super::{Asked, Guard};
use super::Reconciler;
use super::ask::Question;
use crate::store::{Fence, Store};
use crate::sync::Mutex;
use crate::{Identity, IdentityDigest};

/// The questions under way, by the attempt that they are about. Each says at its end whether the
/// record changed.
pub(in super::super) type Flights =
    Mutex<HashMap<(IdentityDigest, Fence), watch::Receiver<Option<bool>>>>;

impl<S: Store> Guard<S> {
    /// Whether the record changed, so that another claim is worth it.
    pub(in super::super) async fn reconcile(
        &self,
        asked: &Asked,
        identity: &Identity,
        fence: Fence,
    ) -> bool {
        let Some(reconciler) = &self.shared.plugged.reconciler else {
            return false;
        };
        let mut answer = self.join(reconciler, asked, identity, fence);
        let changed = answer.wait_for(Option::is_some).await;
        // No answer: the runtime is shutting down.
        changed.is_ok_and(|changed| *changed == Some(true))
    }

    /// Whether somebody in line is asking about this attempt.
    pub(super) fn is_asking(&self, digest: &IdentityDigest, fence: Fence) -> bool {
        self.shared.flights.lock().contains_key(&(*digest, fence))
    }

    // In a task of its own: the caller who began it may go away, and others wait for the answer.
    fn join(
        &self,
        reconciler: &Arc<dyn Reconciler>,
        asked: &Asked,
        identity: &Identity,
        fence: Fence,
    ) -> watch::Receiver<Option<bool>> {
        let flight = (*identity.digest(), fence);
        let mut flights = self.shared.flights.lock();
        let vacant = match flights.entry(flight) {
            Entry::Occupied(under_way) => return under_way.get().clone(),
            Entry::Vacant(vacant) => vacant,
        };
        let (tell, answer) = watch::channel(None);
        vacant.insert(answer.clone());
        let (guard, reconciler) = (self.clone(), Arc::clone(reconciler));
        let (identity, about) = (identity.clone(), asked.about.clone());
        tokio::spawn(async move {
            let landing = Landing {
                guard: &guard,
                flight,
            };
            let question = Question {
                digest: identity.digest(),
                key: Some(identity.key()),
                about: about.as_deref(),
                fence,
                asked: 1,
                background: false,
            };
            let options = &guard.shared.plugged.reconcile_options;
            let reply = guard.ask_until(&reconciler, question, options).await;
            // Who comes now asks anew.
            drop(landing);
            tell.send(Some(reply.changed())).ok();
        });
        answer
    }
}

/// Takes the question off the list, however it ends.
struct Landing<'a, S> {
    guard: &'a Guard<S>,
    flight: (IdentityDigest, Fence),
}

impl<S> Drop for Landing<'_, S> {
    fn drop(&mut self) {
        self.guard.shared.flights.lock().remove(&self.flight);
    }
}
