//! Leases, renewed in the background while their attempts run.
//!
//! Renewals have tasks of their own, so that work that blocks its thread nearly always keeps its lease
//! where the runtime has another thread: tokio can leave its timers with the one that is blocked. Work
//! that blocks for long belongs on [`spawn_blocking`](tokio::task::spawn_blocking).

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Signal;
use super::attempt::Claimed;
use super::owed::Owed;
use super::renewals::{self, Lasting, Place};
use super::settle::PATIENCE;
use crate::store::{Fenced, Refusal, Store, StoreExt as _};
use crate::sync::Mutex;
use crate::{StateKind, StoreError, StoreErrorKind};

/// The lease of one attempt, by the holder's own clock.
pub(super) struct Lease {
    length: Duration,
    state: Mutex<State>,
    lost: Notify,
    /// Held by whoever renews, and by a transaction that no renewal may run beside. Most attempts end
    /// before either.
    renewing: OnceLock<Arc<tokio::sync::Mutex<()>>>,
}

/// Whoever has a lease.
pub(super) trait Leased: Send + Sync {
    fn lease(&self) -> &Lease;
}

impl fmt::Debug for dyn Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease(held: {})", self.lease().is_held())
    }
}

struct State {
    /// When the claim, or the last renewal that was applied, was sent: the store counts from a
    /// later moment, so this clock never ends later than the store's.
    sent: Instant,
    /// When the last renewal ended that was neither applied nor refused.
    failed: Option<Instant>,
    /// The store refused a renewal.
    is_lost: bool,
    renewals: Renewals,
}

/// Who renews it.
enum Renewals {
    /// Nobody.
    None,
    /// A task, once it is due.
    Later(Place),
    /// A task.
    By(AbortHandle),
}

/// `from` later by `by`, or by 34 years where that is beyond what an instant can say.
pub(super) fn later(from: Instant, by: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(1 << 30);
    from.checked_add(by).unwrap_or(from + FAR)
}

impl Lease {
    pub(super) fn new(length: Duration, sent: Instant) -> Self {
        Self {
            length,
            state: Mutex::new(State {
                sent,
                failed: None,
                is_lost: false,
                renewals: Renewals::None,
            }),
            lost: Notify::new(),
            renewing: OnceLock::new(),
        }
    }

    fn renewing(&self) -> &Arc<tokio::sync::Mutex<()>> {
        self.renewing.get_or_init(Arc::default)
    }

    fn after(&self, part: Duration) -> Instant {
        later(self.state.lock().sent, part)
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held_after(self.length)
    }

    fn is_held_after(&self, part: Duration) -> bool {
        let state = self.state.lock();
        !state.is_lost && Instant::now() < later(state.sent, part)
    }

    /// Whether renewals, sent every third of the lease, go well: others find it in flight for a while.
    pub(super) fn is_renewed(&self) -> bool {
        self.is_held_after(self.length / 2)
    }

    /// Returns when the lease is over: refused by the store, or not renewed in time.
    pub(super) async fn lost(&self) {
        loop {
            let notified = self.lost.notified();
            if !self.is_held() {
                return;
            }
            tokio::select! {
                biased;
                () = notified => {}
                () = sleep_until(self.after(self.length)) => {}
            }
        }
    }

    /// Keeps renewals from running until it is dropped.
    pub(super) async fn pause(&self) -> OwnedMutexGuard<()> {
        Arc::clone(self.renewing()).lock_owned().await
    }
}

impl<S: Store> Leased for Claimed<S> {
    fn lease(&self) -> &Lease {
        &self.lease
    }
}

impl<S: Store> Claimed<S> {
    /// Sends a renewal, which may take no longer than a third of the lease.
    async fn renew(&self) -> Result<Fenced, StoreError> {
        let Some(token) = &self.token else {
            return Ok(Fenced::Applied);
        };
        let (lease, sent) = (&self.lease, Instant::now());
        // A third, so that there is time for another one; no longer than what is left.
        let third = lease.length / 3;
        let left = lease.after(lease.length).saturating_duration_since(sent);
        let within = match left.is_zero() {
            true => third,
            false => third.min(left),
        };
        let renewal = self.store().renew(&self.identity, token, lease.length);
        let renewed = timeout(within, renewal).await.unwrap_or_else(|_| {
            let what = "the renewal was not answered in time";
            Err(StoreError::new(StoreErrorKind::Unknown, what))
        });
        match renewed {
            Ok(Fenced::Applied) => {
                lease.state.lock().sent = sent;
                self.signal(Signal::Renewed);
            }
            // By this attempt itself, while the renewal was on its way.
            Ok(Fenced::Refused(Refusal::Settled(StateKind::Completed | StateKind::Released))) => {}
            Ok(Fenced::Refused(_)) => {
                lease.state.lock().is_lost = true;
                lease.lost.notify_waiters();
                self.signal(Signal::Stale);
            }
            Err(_) => {
                lease.state.lock().failed = Some(Instant::now());
                self.signal(Signal::StoreError);
            }
        }
        renewed
    }

    /// Before an effect: a lease that is over by our own clock is renewed first.
    pub(super) async fn ensure_held(&self) -> Result<Fenced, StoreError> {
        if self.lease.is_held() {
            return Ok(Fenced::Applied);
        }
        let _renewing = self.lease.renewing().lock().await;
        match self.lease.is_held() {
            true => Ok(Fenced::Applied),
            false => self.renew().await,
        }
    }

    /// Has the lease renewed from now on, every third of it.
    pub(super) async fn keep_renewed(self: &Arc<Self>) {
        let lease = &self.lease;
        let due = lease.after(lease.length / 3);
        {
            let mut state = lease.state.lock();
            state.renewals = Renewals::Later(renewals::list(due, Arc::clone(self) as _));
        }
        // The work may block this thread, which may be the one that waits for the runtime's timers and sockets: with a
        // turn in between another thread nearly always does that.
        if Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
            tokio::task::yield_now().await;
        }
    }

    async fn renew_on(self: Arc<Self>) {
        let lease = &self.lease;
        let mut listed = None;
        loop {
            sleep_until(lease.after(lease.length / 3)).await;
            let renewing = lease.renewing().lock().await;
            match self.renew().await {
                Ok(Fenced::Applied) => listed = None,
                Ok(Fenced::Refused(_)) => return,
                Err(_) => {
                    drop(renewing);
                    listed.get_or_insert_with(|| {
                        let running = Arc::new(Running(Arc::clone(&self)));
                        self.guard.list_owed(self.identity, running)
                    });
                    sleep(lease.length / 10).await;
                }
            }
        }
    }

    /// Renews no more.
    pub(super) fn stop_renewing(&self) {
        let renewals = std::mem::replace(&mut self.lease.state.lock().renewals, Renewals::None);
        match renewals {
            Renewals::None => {}
            Renewals::Later(place) => place.leave(),
            Renewals::By(task) => task.abort(),
        }
    }
}

impl<S: Store> Lasting for Claimed<S> {
    fn lasts(self: Arc<Self>) {
        let mut state = self.lease.state.lock();
        if let Renewals::Later(_) = state.renewals {
            let task = tokio::spawn(Arc::clone(&self).renew_on());
            state.renewals = Renewals::By(task.abort_handle());
        }
    }
}

/// An attempt whose renewals fail: it goes on, and a claim that the store answers first would find it lost.
struct Running<S: Store>(Arc<Claimed<S>>);

impl<S: Store> Owed for Running<S> {
    /// Those who wait for a renewal take its failure for theirs. A transaction that no renewal may run beside has as
    /// long again as its lease was.
    fn tell(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            let (claimed, lease, since) = (&self.0, &self.0.lease, Instant::now());
            let needs_nothing =
                || lease.is_held() || lease.state.lock().is_lost || claimed.told.get().is_some();
            let failed = || {
                let what = "the lease of the attempt that runs here could not be renewed";
                Err(StoreError::new(StoreErrorKind::Unknown, what))
            };
            if needs_nothing() {
                return Ok(());
            }
            let patience = PATIENCE.min(lease.length);
            let Ok(_renewing) = timeout(patience, lease.renewing().lock()).await else {
                return match Instant::now() < later(lease.after(lease.length), lease.length) {
                    true => failed(),
                    false => Ok(()),
                };
            };
            if needs_nothing() {
                return Ok(());
            }
            if lease.state.lock().failed >= Some(since) {
                return failed();
            }
            claimed.renew().await.map(drop)
        })
    }

    fn may_have_run(&self) -> bool {
        !self.0.had_no_effect.load(Ordering::Relaxed)
    }

    fn is_running(&self) -> bool {
        true
    }
}
