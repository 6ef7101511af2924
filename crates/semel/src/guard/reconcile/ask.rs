//! One question, and what its answer does to the record.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::attempt::catch_panic;
use super::super::{Asked, Guard, Seen, Signal};
use super::{Answer, Case, Finding, ReconcileOptions, Reconciled, Reconciler};
use crate::backoff::jittered;
use crate::store::{
    Entry, Fence, Fenced, Nonce, Refusal, Resolution, Store, StoreExt as _, Verdict,
};
use crate::{Identity, IdentityDigest, Record, State, StoreError, StoreErrorKind, Timestamp};

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
    /// Until when it had its lease when it was found in flight. One that renewed since is not lost.
    pub(super) lease_until: Option<Timestamp>,
    /// Whether an answer was refused before because the attempt ran as far as the store knew.
    pub(super) watched: bool,
    /// What the caller in line asked for; in the background nobody waits for it.
    pub(super) caller: Option<Asked>,
    /// From 1.
    pub(super) asked: u32,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// The record says now what happened.
    Resolved,
    /// The record had moved on by itself.
    Moved,
    /// Asked, and the attempt runs, as far as the store knows: it may have to watch it for longer.
    Running,
    /// Asked, and it is still unknown.
    Unknown,
    /// Nobody was asked: the store did not show the record, or a caller in line asks.
    NotAsked,
}

impl Reply {
    /// Whether another claim is worth it.
    pub(super) const fn changed(self) -> bool {
        matches!(self, Self::Resolved | Self::Moved | Self::Running)
    }

    /// Whether it was one of the questions that the options allow. The answer that was refused
    /// before the attempt was watched is not.
    pub(super) const fn counts(self, watched: bool) -> bool {
        match self {
            Self::Unknown => true,
            Self::Running => watched,
            _ => false,
        }
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

    /// The record, where it is open.
    async fn open(&self) -> Result<Option<Entry>, StoreError> {
        let found = self.guard.store().get(&self.digest).await?;
        Ok(found.filter(|entry| self.is_open(&entry.record)))
    }

    /// Whether the record is about that attempt still, and not settled. Whether its lease lapsed the
    /// store says when it is told the answer.
    fn is_open(&self, record: &Record) -> bool {
        record.token.fence == self.fence
            && match record.state {
                State::InFlight => self
                    .lease_until
                    .is_none_or(|until| record.lease_until == until),
                State::Unknown => true,
                _ => false,
            }
    }

    const fn is_last(&self) -> bool {
        self.asked >= self.options.attempts
    }

    /// Asks once, about the record as it is now.
    pub(super) async fn ask(&self) -> Reply {
        let guard = &self.guard;
        let entry = match self.open().await {
            Ok(Some(entry)) => entry,
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
        let caller = self.caller.as_ref();
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
            Ok(Ok(Ok(answer))) => match self.resolve(&case, answer).await {
                Ok(news) => news,
                Err(error) => {
                    refused = error;
                    Reconciled::Store(&refused)
                }
            },
            Ok(Ok(Err(error))) => {
                failure = error;
                Reconciled::Failed(&*failure)
            }
            Ok(Err(_)) => Reconciled::Panicked,
            Err(_) => Reconciled::TimedOut,
        };
        let reply = self.tell(&case, &news, Some(took));
        if reply == Reply::Running && caller.is_none() && matches!(self.open().await, Ok(None)) {
            // It came back.
            return Reply::Moved;
        }
        if reply.counts(self.watched) && caller.is_none() && self.is_last() {
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
            Reconciled::Refused(Refusal::Running) => (Signal::ResolveRefused, Reply::Running),
            // An attempt took over, or completed, or somebody else resolved it.
            Reconciled::Refused(_) => (Signal::ResolveRefused, Reply::Moved),
            Reconciled::Failed(_) | Reconciled::Panicked | Reconciled::TimedOut => {
                self.guard.tell(&seen(Signal::ReconcilerFailed));
                (Signal::StillUnknown, Reply::Unknown)
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
    ) -> Result<Reconciled<'static>, StoreError> {
        let (said, news, verdict) = match answer.finding {
            Finding::Happened(outcome) => {
                let retention = self.guard.policy.retention;
                let verdict = Verdict::Happened { outcome, retention };
                ("that it happened", Reconciled::Happened, verdict)
            }
            Finding::DidNotHappen => {
                let news = Reconciled::DidNotHappen;
                ("that it did not happen", news, Verdict::DidNotHappen)
            }
            Finding::StillUnknown => return Ok(Reconciled::StillUnknown),
        };
        let place = match self.caller {
            None => "in the background",
            Some(_) => "in line",
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
