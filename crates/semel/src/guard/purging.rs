//! The purger that lives as long as its guard.

use std::sync::{Arc, Weak};

use tokio::time::sleep;

use super::{Guard, Seen, Signal};
use crate::StoreErrorKind;
use crate::purge::Pace;
use crate::store::Store;

impl<S: Store> Guard<S> {
    /// Removes what is past its retention, at once and then every minute, at a pace that claims do not
    /// feel. It lives until the guard and all that share its store are dropped, or
    /// [`drain`](Self::drain) or [`close`](Self::close) is called. What fails is a
    /// [`Signal::StoreError`], and is tried again a minute later. A second one does nothing.
    ///
    /// Another pace, or reports: [`Purger`](crate::purge::Purger).
    pub fn spawn_purger(&self) {
        let purgers = &self.shared.purgers;
        if !purgers.is_empty() {
            return;
        }
        let (shared, policy) = (Arc::downgrade(&self.shared), self.policy);
        let observer = self.observer.clone();
        let draining = Arc::clone(&self.shared.draining);
        let alive = move || {
            Weak::upgrade(&shared).map(|shared| Guard {
                shared,
                policy,
                observer: observer.clone(),
            })
        };
        purgers.spawn(async move {
            tokio::select! {
                () = draining.until(|draining| draining.then_some(())) => {}
                () = purge_while(alive) => {}
            }
        });
    }
}

/// Holds the guard for the time of one slice only.
async fn purge_while<S: Store>(alive: impl Fn() -> Option<Guard<S>>) {
    let pace = Pace::default();
    while let Some(guard) = alive() {
        match pace.step(guard.store()).await {
            Ok(purged) if purged.more => continue,
            Ok(_) => {}
            Err(error) if error.kind() == StoreErrorKind::Closed => return,
            Err(_) => guard.tell(&Seen::new(Signal::StoreError)),
        }
        drop(guard);
        sleep(pace.interval).await;
    }
}
