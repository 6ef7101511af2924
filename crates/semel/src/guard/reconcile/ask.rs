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
use crate::{Identity, IdentityDigest, State, StoreError, StoreErrorKind, Timestamp};

/// The most of a reconciler's own words that a record keeps, in characters.
const LONGEST_REASON: usize = 500;

/// A question about one attempt, and all that asking it needs.
pub(super) struct Inquiry<S> {
    /// With the policy of the operation.
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
    /// Asked, and the attempt runs, as far as the store knows: it may have to watch it for longer.
    Running {
        /// Whether it has watched it for as long as a lease of its operation is.
        for_long: bool,
    },
    /// Asked, and it is still unknown.
    Unknown,
    /// Asked, and the store could not be told.
    Untold,
    /// Nobody was asked: the store did not show the record, or a caller in line asks. Or it panicked.
    NotAsked,
}

impl Reply {
    /// Whether another claim is worth it.
    const fn changed(self) -> bool {
        matches!(self, Self::Resolved | Self::Moved | Self::Running { .. })
    }

    /// Whether it was one of the questions that the options allow.
    pub(super) const fn counts(self) -> bool {
        matches!(self, Self::Unknown | Self::Running { for_long: true })
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

    /// The record, where it is about that attempt still, and not settled. Whether its lease lapsed the
    /// store says when it is told the answer.
    async fn open(&self) -> Result<Option<Entry>, StoreError> {
        let entry = self.guard.store().get(&self.digest).await?;
        Ok(entry.filter(|Entry { record, .. }| {
            let renewed = match self.asker {
                Asker::Caller(_) => false,
                Asker::Background { lease_until, .. } => record.lease_until != lease_until,
            };
            record.token.fence == self.fence
                && match record.state {
                    State::InFlight => !renewed,
                    State::Unknown => true,
                    _ => false,
                }
        }))
    }

    const fn is_last(&self) -> bool {
        self.asked >= self.options.attempts
    }

    /// Asks once, about the record as it is now.
    pub(super) async fn ask(&self) -> Reply {
        let entry = match self.open().await {
            Ok(Some(entry)) => entry,
            Ok(None) => return Reply::Moved,
            Err(_) => {
                self.guard.tell(&Seen {
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
        let reply = match self.find_out(&case).await {
            Ok((resolution, took)) => self.record(&case, resolution, took).await,
            Err(reply) => reply,
        };
        if caller.is_none() && reply.counts() && self.is_last() {
            if matches!(self.open().await, Ok(None)) {
                // Somebody else resolved it meanwhile: no operator has to look.
                return Reply::Moved;
            }
            self.tell(&case, &Reconciled::GaveUp, None);
        }
        reply
    }

    /// What the reconciler says, as the store will be told it, and how long it took.
    async fn find_out(&self, case: &Case<'_>) -> Result<(Resolution, Duration), Reply> {
        self.guard
            .tell(&Seen::of_case(case, Signal::ReconcileAsked));
        let since = Instant::now();
        let asking = catch_panic(async { self.reconciler.reconcile(case).await });
        let answered = timeout(self.options.timeout, asking).await;
        let took = since.elapsed();
        let tell = |news| self.tell(case, &news, Some(took));
        Err(match answered {
            Ok(Ok(Ok(answer))) => match self.resolution(answer) {
                Ok(Some(resolution)) => return Ok((resolution, took)),
                Ok(None) => tell(Reconciled::StillUnknown),
                Err(error) => tell(Reconciled::Store(&error)),
            },
            Ok(Ok(Err(error))) => tell(Reconciled::Failed(&*error)),
            Ok(Err(_)) => tell(Reconciled::Panicked),
            Err(_) => tell(Reconciled::TimedOut),
        })
    }

    /// Records it. The store decides whether the record is still as it was when the question was asked.
    async fn record(&self, case: &Case<'_>, mut known: Resolution, took: Duration) -> Reply {
        let told = catch_panic(self.resolve(case, &mut known)).await;
        let told = told.unwrap_or_else(|_| {
            let why = "the store panicked when it was told";
            Err(StoreError::new(StoreErrorKind::Corrupt, why))
        });
        let news = match (&told, &known.verdict) {
            (Ok(Fenced::Refused(refusal)), _) => Reconciled::Refused(*refusal),
            (Ok(Fenced::Applied), Verdict::DidNotHappen) => Reconciled::DidNotHappen,
            (Ok(Fenced::Applied), _) => Reconciled::Happened,
            (Err(error), _) => Reconciled::Store(error),
        };
        match (self.tell(case, &news, Some(took)), &self.asker) {
            (Reply::Running { .. }, Asker::Background { watched, .. }) => {
                if matches!(self.open().await, Ok(None)) {
                    // It came back.
                    return Reply::Moved;
                }
                let lease = self.guard.policy.lease;
                let for_long = watched.is_some_and(|since| since.elapsed() >= lease);
                Reply::Running { for_long }
            }
            (reply, _) => reply,
        }
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
                (Signal::ResolveRefused, Reply::Running { for_long: false })
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

    /// What the store is told of this finding, if it says something.
    fn resolution(&self, answer: Answer) -> Result<Option<Resolution>, StoreError> {
        let (said, verdict) = match answer.finding {
            Finding::Happened(outcome) => {
                let retention = self.guard.policy.retention;
                ("that it happened", Verdict::Happened { outcome, retention })
            }
            Finding::DidNotHappen => ("that it did not happen", Verdict::DidNotHappen),
            Finding::StillUnknown => return Ok(None),
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
        Ok(Some(Resolution {
            verdict,
            by: (*self.options.by).into(),
            reason: reason.into(),
            fence: self.fence,
            nonce: Nonce::random()?,
        }))
    }

    /// Tells the store, and where its answer is lost again, under the same nonce.
    async fn resolve(
        &self,
        case: &Case<'_>,
        resolution: &mut Resolution,
    ) -> Result<Fenced, StoreError> {
        let (guard, store) = (&self.guard, self.guard.store());
        let signal = |signal| guard.tell(&Seen::of_case(case, signal));
        let done = guard
            .insist(signal, || store.resolve(&self.digest, resolution))
            .await;
        let (Err(error), Verdict::Happened { outcome, .. }) = (&done, &mut resolution.verdict)
        else {
            return done;
        };
        if error.kind() != StoreErrorKind::TooLarge {
            return done;
        }
        *outcome = outcome.to_omitted();
        guard
            .insist(signal, || store.resolve(&self.digest, resolution))
            .await
    }
}
