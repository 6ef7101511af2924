//! What this process knows of an identity, and the store does not yet (R14).

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

use super::{Guard, Seen, Signal};
use crate::store::Store;
use crate::sync::Mutex;
use crate::{Identity, IdentityDigest, StoreError};

/// What is told to the store in the background, and before the identity is claimed again: that claim would
/// find an attempt whose lease ended meanwhile lost, though its outcome is known.
pub(super) trait Owed: Send + Sync {
    /// Tells it once. It may be told again.
    fn tell(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Whether there may have been an effect.
    fn may_have_run(&self) -> bool;
}

/// By the identity that it is about.
#[derive(Default)]
pub(super) struct Owings(Mutex<HashMap<IdentityDigest, Vec<Arc<dyn Owed>>>>);

impl Owings {
    fn of(&self, identity: &Identity) -> Vec<Arc<dyn Owed>> {
        let all = self.0.lock();
        let other = identity.other().map(|other| *other.digest());
        [Some(*identity.digest()), other]
            .into_iter()
            .flatten()
            .filter_map(|digest| all.get(&digest))
            .flatten()
            .cloned()
            .collect()
    }
}

/// On the list until it is dropped.
struct Listed<S> {
    guard: Guard<S>,
    identity: IdentityDigest,
    owed: Arc<dyn Owed>,
}

impl<S> Drop for Listed<S> {
    fn drop(&mut self) {
        let mut all = self.guard.shared.owings.0.lock();
        if let Some(owed) = all.get_mut(&self.identity) {
            owed.retain(|one| !Arc::ptr_eq(one, &self.owed));
            if owed.is_empty() {
                all.remove(&self.identity);
            }
        }
    }
}

impl<S: Store> Guard<S> {
    /// Runs `pursuit`, which tells the store what is owed, in a task that is counted, and that a drain waits for.
    pub(super) fn pursue<T: Send + 'static>(
        &self,
        identity: IdentityDigest,
        owed: Arc<dyn Owed>,
        pursuit: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        {
            let mut all = self.shared.owings.0.lock();
            all.entry(identity).or_default().push(Arc::clone(&owed));
        }
        let guard = self.clone();
        let listed = Listed {
            guard,
            identity,
            owed,
        };
        self.spawn(self.shared.pursuits.track_future(async move {
            let _listed = listed;
            pursuit.await
        }))
    }

    /// Tells the store what is owed of an identity. `may_have_run` is set where something of that may have had
    /// an effect.
    pub(super) async fn tell_owed(
        &self,
        identity: &Identity,
        may_have_run: &mut bool,
    ) -> Result<(), StoreError> {
        if self.shared.pursuits.is_empty() {
            return Ok(());
        }
        for owed in self.shared.owings.of(identity) {
            *may_have_run |= owed.may_have_run();
            owed.tell()
                .await
                .inspect_err(|_| self.tell(&Seen::of(identity, Signal::StoreError)))?;
        }
        Ok(())
    }
}
