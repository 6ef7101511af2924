//! One question, and what its answer does to the record.

use std::sync::Arc;

use tokio::time::{sleep, timeout};

use super::super::attempt::catch_panic;
use super::super::{Guard, Signal};
use super::{Answer, Case, Finding, ReconcileOptions, Reconciled, Reconciler};
use crate::backoff::jittered;
use crate::store::{Entry, Fence, Fenced, Nonce, Resolution, Store, Verdict};
use crate::{IdentityDigest, Key, State, StoreError, StoreErrorKind};

/// The most of a reconciler's own words that a record keeps, in characters.
const LONGEST_REASON: usize = 500;

/// Which question about which record.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) digest: &'a IdentityDigest,
    pub(super) key: Option<&'a Key>,
    pub(super) about: Option<&'a str>,
    /// The attempt that it is about.
    pub(super) fence: Fence,
    /// From 1.
    pub(super) asked: u32,
    /// Whether no caller waits for it.
    pub(super) background: bool,
}

impl<'a> Question<'a> {
    pub(super) const fn in_background(
        digest: &'a IdentityDigest,
        fence: Fence,
        asked: u32,
    ) -> Self {
        Self {
            digest,
            key: None,
            about: None,
            fence,
            asked,
            background: true,
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
    /// Asked, and it is still unknown.
    Unknown,
    /// The store did not show the record: nobody was asked.
    NotAsked,
}

impl Reply {
    /// Whether another claim is worth it.
    pub(super) const fn changed(self) -> bool {
        matches!(self, Self::Resolved | Self::Moved)
    }
}

impl<S> Guard<S> {
    pub(super) fn on_reconcile(&self, case: &Case<'_>, news: &Reconciled<'_>) {
        if let Some(observer) = &self.shared.plugged.observer {
            observer.on_reconcile(case, news);
        }
    }
}

impl<S: Store> Guard<S> {
    /// Asks as often as the options allow, with pauses.
    pub(super) async fn ask_until(
        &self,
        reconciler: &Arc<dyn Reconciler>,
        mut question: Question<'_>,
        options: &ReconcileOptions,
    ) -> Reply {
        loop {
            let reply = self.ask(reconciler, question, options).await;
            if reply.changed() || question.asked >= options.attempts {
                return reply;
            }
            sleep(jittered(options.pause_after(question.asked))).await;
            question.asked += 1;
        }
    }

    /// Asks once, about the record as it is now.
    pub(super) async fn ask(
        &self,
        reconciler: &Arc<dyn Reconciler>,
        question: Question<'_>,
        options: &ReconcileOptions,
    ) -> Reply {
        let entry = match self.store().get(question.digest).await {
            Ok(Some(entry)) if is_open(&entry, question.fence) => entry,
            Ok(_) => return Reply::Moved,
            Err(_) => {
                self.signal(Signal::StoreError);
                return Reply::NotAsked;
            }
        };
        let case = Case {
            key: question.key,
            about: question.about,
            asked: question.asked,
            ..Case::of(&entry)
        };
        self.signal(Signal::ReconcileAsked);
        let asking = catch_panic(async { reconciler.reconcile(&case).await });
        let failure;
        let news = match timeout(options.timeout, asking).await {
            Ok(Ok(Ok(answer))) => return self.take(&case, answer, question, options).await,
            Ok(Ok(Err(error))) => {
                failure = error;
                Reconciled::Failed(&*failure)
            }
            Ok(Err(_)) => Reconciled::Panicked,
            Err(_) => Reconciled::TimedOut,
        };
        self.signal(Signal::ReconcilerFailed);
        self.on_reconcile(&case, &news);
        self.still_unknown(&case, question, options)
    }

    async fn take(
        &self,
        case: &Case<'_>,
        answer: Answer,
        question: Question<'_>,
        options: &ReconcileOptions,
    ) -> Reply {
        let (said, news, verdict) = match answer.finding {
            Finding::Happened(outcome) => {
                let retention = self.policy().retention();
                let verdict = Verdict::Happened { outcome, retention };
                ("that it happened", Reconciled::Happened, verdict)
            }
            Finding::DidNotHappen => (
                "that it did not happen",
                Reconciled::DidNotHappen,
                Verdict::DidNotHappen,
            ),
            Finding::StillUnknown => {
                self.on_reconcile(case, &Reconciled::StillUnknown);
                return self.still_unknown(case, question, options);
            }
        };
        let place = match question.background {
            true => "in the background",
            false => "in line",
        };
        let asked = question.asked;
        let mut reason = format!("the reconciler said {said} (question {asked}, {place})");
        if let Some(own) = answer.reason {
            reason.push_str(": ");
            reason.extend(own.chars().take(LONGEST_REASON));
        }
        match self.resolve(case, verdict, &reason, &options.by).await {
            Ok(Fenced::Applied) => {
                self.signal(Signal::Resolved);
                self.on_reconcile(case, &news);
                Reply::Resolved
            }
            // An attempt took over, or went on, or somebody else resolved it.
            Ok(Fenced::Refused(_)) => {
                self.signal(Signal::ResolveRefused);
                self.on_reconcile(case, &Reconciled::Refused);
                Reply::Moved
            }
            Err(error) => {
                self.on_reconcile(case, &Reconciled::Store(&error));
                self.still_unknown(case, question, options)
            }
        }
    }

    fn still_unknown(
        &self,
        case: &Case<'_>,
        question: Question<'_>,
        options: &ReconcileOptions,
    ) -> Reply {
        self.signal(Signal::StillUnknown);
        if question.background && question.asked >= options.attempts {
            self.signal(Signal::ReconcileGaveUp);
            self.on_reconcile(case, &Reconciled::GaveUp);
        }
        Reply::Unknown
    }

    /// The store decides whether the record is still as it was when the question was asked. A lost
    /// answer is asked for again under the same nonce.
    async fn resolve(
        &self,
        case: &Case<'_>,
        verdict: Verdict,
        reason: &str,
        by: &str,
    ) -> Result<Fenced, StoreError> {
        let mut resolution = Resolution {
            verdict,
            by: by.into(),
            reason: reason.into(),
            fence: case.fence,
            nonce: Nonce::random()?,
        };
        let store = self.store();
        let done = self.insist(|| store.resolve(case.id, &resolution)).await;
        match (done, &mut resolution.verdict) {
            (Err(error), Verdict::Happened { outcome, .. })
                if error.kind() == StoreErrorKind::TooLarge =>
            {
                *outcome = outcome.to_omitted();
                self.insist(|| store.resolve(case.id, &resolution)).await
            }
            (done, _) => done,
        }
    }
}

/// Whether the record is about that attempt still, and not settled. Whether its lease lapsed the
/// store says when it is told the answer.
fn is_open(entry: &Entry, fence: Fence) -> bool {
    let record = &entry.record;
    record.token.fence == fence && matches!(record.state, State::InFlight | State::Unknown)
}
