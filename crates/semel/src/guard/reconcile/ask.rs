//! One question, and what its answer does to the record.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::attempt::catch_panic;
use super::super::{Asked, Guard, Policy, Seen, Signal};
use super::background::Operations;
use super::{Answer, Case, Finding, ReconcileOptions, Reconciled, Reconciler};
use crate::backoff::jittered;
use crate::store::{
    Entry, Fence, Fenced, Nonce, Refusal, Resolution, Retention, Store, StoreExt as _, Verdict,
};
use crate::{Identity, IdentityDigest, State, StoreError, StoreErrorKind, Timestamp};

/// The most of a reconciler's own words that a record keeps, in characters.
const LONGEST_REASON: usize = 500;

/// A question about one attempt, and all that asking it needs.
pub(super) struct Inquiry<S> {
    pub(super) guard: Guard<S>,
    pub(super) reconciler: Arc<dyn Reconciler>,
    pub(super) options: ReconcileOptions,
    pub(super) digest: IdentityDigest,
    /// The attempt that it is about.
    pub(super) fence: Fence,
    pub(super) asker: Asker,
    /// From 1.
    pub(super) asked: u32,
}

/// On whose behalf a question is asked.
pub(super) enum Asker {
    /// A caller in line, of what it asked for.
    Caller(Box<Asked>),
    /// Nobody, who waits for the answer: the background, or a job.
    Background {
        /// Whose records it may decide about.
        operations: Arc<Operations>,
        /// Until when the attempt had its lease when it was found. One that renewed since is not lost.
        lease_until: Timestamp,
        /// Since when the store has watched it, where it took the attempt for running.
        watched: Option<Instant>,
    },
}

impl Asker {
    const fn caller(&self) -> Option<&Asked> {
        match self {
            Self::Caller(asked) => Some(asked),
            Self::Background { .. } => None,
        }
    }
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// The record says now what happened.
    Resolved,
    /// The record had moved on by itself.
    Moved,
    /// Asked, and the attempt runs, as far as the store knows: one without a clock has to watch it for
    /// as long as its lease is, at most this.
    Running(Duration),
    /// Asked, and it is still unknown: one of the questions that the options allow.
    Unknown,
    /// Asked, and the store could not be told.
    Untold,
    /// Nobody was asked: the store did not show the record, or a caller in line asks.
    NotAsked,
}

impl Reply {
    /// Whether another claim is worth it.
    pub(super) const fn changed(self) -> bool {
        matches!(self, Self::Resolved | Self::Moved | Self::Running(_))
    }
}

impl<S: Store> Inquiry<S> {
    /// Asks as often as the options allow, with pauses. Whether the record changed.
    pub(super) async fn ask_until(mut self) -> bool {
        loop {
            let changed = self.ask().await.changed();
            if changed || self.is_last() {
                return changed;
            }
            sleep(jittered(self.options.pause_after(self.asked))).await;
            self.asked += 1;
        }
    }

    /// The record, where it is about that attempt still, and not settled, with the policy that the
    /// answer goes by. Whether its lease lapsed the store says when it is told the answer.
    async fn open(&self) -> Result<Option<(Entry, Policy)>, StoreError> {
        let Some(entry) = self.guard.store().get(&self.digest).await? else {
            return Ok(None);
        };
        let record = &entry.record;
        let (policy, renewed) = match &self.asker {
            Asker::Caller(_) => (Some(self.guard.policy), false),
            Asker::Background {
                operations,
                lease_until,
                ..
            } => (
                operations.get(&*entry.label.operation).copied(),
                record.lease_until != *lease_until,
            ),
        };
        let is_open = record.token.fence == self.fence
            && match record.state {
                State::InFlight => !renewed,
                State::Unknown => true,
                _ => false,
            };
        Ok(policy.filter(|_| is_open).map(|policy| (entry, policy)))
    }

    const fn is_last(&self) -> bool {
        self.asked >= self.options.attempts
    }

    /// Asks once, about the record as it is now.
    pub(super) async fn ask(&self) -> Reply {
        let guard = &self.guard;
        let (entry, policy) = match self.open().await {
            Ok(Some(open)) => open,
            Ok(None) => return Reply::Moved,
            Err(_) => {
                guard.tell(&Seen {
                    id: Some(&self.digest),
                    fence: Some(self.fence),
                    ..Seen::new(Signal::StoreError)
                });
                return Reply::NotAsked;
            }
        };
        let caller = self.asker.caller();
        let case = Case {
            key: caller.and_then(Asked::identity).map(Identity::key),
            about: caller.and_then(|asked| asked.about.as_deref()),
            asked: self.asked,
            ..Case::of(&entry)
        };
        guard.tell(&Seen::of_case(&case, Signal::ReconcileAsked));
        let since = Instant::now();
        let asking = catch_panic(async { self.reconciler.reconcile(&case).await });
        let (failure, refused);
        let answered = timeout(self.options.timeout, asking).await;
        let took = since.elapsed();
        let news = match answered {
            Ok(Ok(Ok(answer))) => {
                let resolved = self.resolve(&case, answer, policy.retention);
                match catch_panic(resolved).await {
                    Ok(Ok(news)) => news,
                    Ok(Err(error)) => {
                        refused = error;
                        Reconciled::Store(&refused)
                    }
                    Err(_) => Reconciled::Panicked,
                }
            }
            Ok(Ok(Err(error))) => {
                failure = error;
                Reconciled::Failed(&*failure)
            }
            Ok(Err(_)) => Reconciled::Panicked,
            Err(_) => Reconciled::TimedOut,
        };
        let mut reply = self.tell(&case, &news, Some(took));
        let Asker::Background { watched, .. } = self.asker else {
            return reply;
        };
        if let Reply::Running(lease) = &mut reply {
            if matches!(self.open().await, Ok(None)) {
                // It came back.
                return Reply::Moved;
            }
            // The record does not say how long its lease is. It was claimed with it, or renewed later.
            let record = &entry.record;
            *lease = policy
                .lease
                .min(record.claimed_at.until(record.lease_until));
            if watched.is_some_and(|since| since.elapsed() >= policy.lease) {
                reply = Reply::Unknown;
            }
        }
        if reply == Reply::Unknown && self.is_last() {
            self.tell(&case, &Reconciled::GaveUp, None);
        }
        reply
    }

    /// Tells the observer what a question led to.
    fn tell(&self, case: &Case<'_>, news: &Reconciled<'_>, took: Option<Duration>) -> Reply {
        let seen = |signal| Seen {
            ran_for: took,
            ..Seen::of_case(case, signal)
        };
        let (signal, reply) = match news {
            Reconciled::Happened | Reconciled::DidNotHappen => (Signal::Resolved, Reply::Resolved),
            Reconciled::Refused(Refusal::Running) => {
                (Signal::ResolveRefused, Reply::Running(Duration::ZERO))
            }
            // An attempt took over, or completed, or somebody else resolved it.
            Reconciled::Refused(_) => (Signal::ResolveRefused, Reply::Moved),
            Reconciled::Failed(_) | Reconciled::Panicked | Reconciled::TimedOut => {
                self.guard.tell(&seen(Signal::ReconcilerFailed));
                (Signal::StillUnknown, Reply::Unknown)
            }
            Reconciled::Store(error) if error.is_retryable() => {
                (Signal::StillUnknown, Reply::Untold)
            }
            Reconciled::StillUnknown | Reconciled::Store(_) => {
                (Signal::StillUnknown, Reply::Unknown)
            }
            Reconciled::GaveUp => (Signal::ReconcileGaveUp, Reply::Unknown),
        };
        self.guard.tell(&seen(signal));
        self.guard
            .observed(|observer| observer.on_reconcile(case, news));
        reply
    }

    /// Records an answer. The store decides whether the record is still as it was when the question
    /// was asked. A lost answer is asked for again under the same nonce.
    async fn resolve(
        &self,
        case: &Case<'_>,
        answer: Answer,
        retention: Retention,
    ) -> Result<Reconciled<'static>, StoreError> {
        let (said, news, verdict) = match answer.finding {
            Finding::Happened(outcome) => {
                let verdict = Verdict::Happened { outcome, retention };
                ("that it happened", Reconciled::Happened, verdict)
            }
            Finding::DidNotHappen => {
                let news = Reconciled::DidNotHappen;
                ("that it did not happen", news, Verdict::DidNotHappen)
            }
            Finding::StillUnknown => return Ok(Reconciled::StillUnknown),
        };
        let place = match self.asker {
            Asker::Background { .. } => "in the background",
            Asker::Caller(_) => "in line",
        };
        let asked = self.asked;
        let mut reason = format!("the reconciler said {said} (question {asked}, {place})");
        if let Some(own) = answer.reason {
            reason.push_str(": ");
            reason.extend(own.chars().take(LONGEST_REASON));
        }
        let mut resolution = Resolution {
            verdict,
            by: (*self.options.by).into(),
            reason: reason.into(),
            fence: self.fence,
            nonce: Nonce::random()?,
        };
        let (guard, store) = (&self.guard, self.guard.store());
        let signal = |signal| guard.tell(&Seen::of_case(case, signal));
        let mut done = guard
            .insist(signal, || store.resolve(&self.digest, &resolution))
            .await;
        if let (Err(error), Verdict::Happened { outcome, .. }) = (&done, &mut resolution.verdict)
            && error.kind() == StoreErrorKind::TooLarge
        {
            *outcome = outcome.to_omitted();
            done = guard
                .insist(signal, || store.resolve(&self.digest, &resolution))
                .await;
        }
        Ok(match done? {
            Fenced::Applied => news,
            Fenced::Refused(refusal) => Reconciled::Refused(refusal),
        })
    }
}
