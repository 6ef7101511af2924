//! What this process knows of an identity, and the store does not yet (R14).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Guard, Seen, Signal};
use crate::store::Store;
use crate::sync::Mutex;
use crate::{Identity, IdentityDigest, StoreError};

/// What is told to the store by who knows it, and before the identity is claimed again: that claim would find an
/// attempt whose lease ended meanwhile lost, though its outcome is known.
pub(super) trait Owed: Send + Sync {
    /// Tells it once. It may be told again, and by several at the same time: nobody waits for another's call.
    fn tell(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Whether there may have been an effect.
    fn may_have_run(&self) -> bool;

    /// Whether it is only that an attempt runs: that matters where nothing is known of its end.
    fn is_running(&self) -> bool {
        false
    }
}

struct Owing {
    owed: Arc<dyn Owed>,
    since: Instant,
}

/// By the identity that it is about.
#[derive(Default)]
pub(super) struct Owings {
    all: Mutex<HashMap<IdentityDigest, Vec<Owing>>>,
    /// How many there are: nearly always none, which is then seen without the lock.
    count: AtomicUsize,
}

impl Owings {
    fn of(&self, identity: &Identity) -> Vec<Arc<dyn Owed>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let all = self.all.lock();
        let other = identity.other().map(|other| *other.digest());
        [Some(*identity.digest()), other]
            .into_iter()
            .flatten()
            .filter_map(|digest| all.get(&digest))
            .flatten()
            .map(|owing| Arc::clone(&owing.owed))
            .collect()
    }
}

impl<S> Guard<S> {
    /// Of what the store [does not know yet](Self::unsettled), how much became known at this moment or later.
    pub fn unsettled_since(&self, moment: Instant) -> usize {
        let all = self.shared.owings.all.lock();
        let owings = all.values().flatten();
        let known = owings.filter(|owing| owing.since >= moment && !owing.owed.is_running());
        known.count()
    }
}

/// On the list until it is dropped.
pub(super) struct Listed<S> {
    guard: Guard<S>,
    identity: IdentityDigest,
    owed: Arc<dyn Owed>,
}

impl<S> Drop for Listed<S> {
    fn drop(&mut self) {
        let owings = &self.guard.shared.owings;
        let mut all = owings.all.lock();
        if let Some(owed) = all.get_mut(&self.identity) {
            owed.retain(|one| !Arc::ptr_eq(&one.owed, &self.owed));
            if owed.is_empty() {
                all.remove(&self.identity);
            }
        }
        owings.count.fetch_sub(1, Ordering::Release);
    }
}

impl<S: Store> Guard<S> {
    /// Lists what is owed of an identity.
    pub(super) fn list_owed(&self, identity: IdentityDigest, owed: Arc<dyn Owed>) -> Listed<S> {
        let owings = &self.shared.owings;
        owings.count.fetch_add(1, Ordering::Release);
        let mut all = owings.all.lock();
        all.entry(identity).or_default().push(Owing {
            owed: Arc::clone(&owed),
            since: Instant::now(),
        });
        Listed {
            guard: self.clone(),
            identity,
            owed,
        }
    }

    /// Runs `pursuit`, which tells the store what is owed, in a task that is counted, and that a drain waits for.
    pub(super) fn pursue<T: Send + 'static>(
        &self,
        identity: IdentityDigest,
        owed: Arc<dyn Owed>,
        pursuit: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let listed = self.list_owed(identity, owed);
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
        let mut owed = self.shared.owings.of(identity);
        *may_have_run |= owed.iter().any(|one| one.may_have_run());
        owed.sort_by_key(|one| one.is_running());
        for one in owed {
            one.tell()
                .await
                .inspect_err(|_| self.tell(&Seen::of(identity, Signal::StoreError)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;
    use crate::{Key, Scope, StoreErrorKind};

    struct Fake(bool);

    impl Owed for Fake {
        fn tell(&self) -> BoxFuture<'_, Result<(), StoreError>> {
            Box::pin(async { Err(StoreError::new(StoreErrorKind::NotApplied, "away")) })
        }

        fn may_have_run(&self) -> bool {
            self.0
        }
    }

    /// Also where what is told first fails.
    #[tokio::test]
    async fn whether_something_may_have_run_is_known_before_anything_is_told() {
        let guard = Guard::from(MemoryStore::default());
        let identity = Identity::new(Scope::new(["a"]), "op", Key::new("k").unwrap());
        let list = |ran| guard.list_owed(*identity.digest(), Arc::new(Fake(ran)));
        let (begun, mut may_have_run) = (Instant::now(), false);
        let first = list(false);
        guard
            .tell_owed(&identity, &mut may_have_run)
            .await
            .unwrap_err();
        assert!(!may_have_run);
        let second = list(true);
        guard
            .tell_owed(&identity, &mut may_have_run)
            .await
            .unwrap_err();
        assert!(may_have_run);
        drop(second);
        let mut may_have_run = false;
        guard
            .tell_owed(&identity, &mut may_have_run)
            .await
            .unwrap_err();
        assert!(!may_have_run);
        assert_eq!(guard.unsettled_since(begun), 1);
        assert_eq!(guard.unsettled_since(Instant::now()), 0);
        drop(first);
        guard.tell_owed(&identity, &mut may_have_run).await.unwrap();
        assert!(guard.shared.owings.all.lock().is_empty());
    }
}
