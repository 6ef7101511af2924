//! The smallest store there can be, wrong where it is told to be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use semel::record::{self, Change, Record, State, StateKind, Transition, Update};
use semel::store::{
    Claim, ClaimRequest, Cursor, Durability, Entry, Fence, Fenced, Label, ListQuery, OnLost, Page,
    Probe, Purged, Refusal, Result, Store, Token, Waited,
};
use semel::{
    Clock, Identity, IdentityDigest, ManualClock, Note, Outcome, Progress, StoreError,
    StoreErrorKind, Timestamp,
};
use tokio::sync::Notify;

use crate::bug::Bug;

type Records = BTreeMap<IdentityDigest, Entry>;

pub(crate) struct SmallStore {
    bug: Option<Bug>,
    clock: Arc<ManualClock>,
    records: Mutex<(Records, Fence)>,
    changed: Notify,
    closed: AtomicBool,
}

impl SmallStore {
    pub(crate) fn new(bug: Option<Bug>, clock: Arc<ManualClock>) -> Self {
        Self {
            bug,
            clock,
            records: Mutex::default(),
            changed: Notify::new(),
            closed: AtomicBool::new(false),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn open(&self) -> Result<(MutexGuard<'_, (Records, Fence)>, Timestamp)> {
        if self.closed.load(Ordering::Relaxed) && !self.has(Bug::ClosedWorks) {
            return Err(StoreError::new(StoreErrorKind::Closed, "closed"));
        }
        Ok((self.records.lock(), self.clock.now()))
    }

    fn purgeable(&self, record: &Record, now: Timestamp) -> bool {
        let wrongly = match record.state.kind() {
            StateKind::Unknown => self.has(Bug::UnknownPurged),
            StateKind::InFlight => self.has(Bug::LapsedPurged) && record.is_lapsed(now),
            _ => self.has(Bug::TombstonePurged) && now >= record.expires_at,
        };
        wrongly || record.is_purgeable(now)
    }

    /// The token as the step sees it.
    fn seen(&self, current: Option<&Record>, token: &Token) -> Token {
        match current.map(|r| r.token) {
            Some(current)
                if self.has(Bug::UnfencedSteps)
                    || (self.has(Bug::NonceIgnored) && current.fence == token.fence)
                    || (self.has(Bug::FenceIgnored) && current.nonce == token.nonce) =>
            {
                current
            }
            _ => *token,
        }
    }

    /// What an attempt's change makes of the record, with the bugs that are about it.
    fn updated(
        &self,
        record: Option<&Record>,
        token: &Token,
        update: &Update,
        now: Timestamp,
    ) -> Transition {
        let token = self.seen(record, token);
        let mut before = record.cloned();
        let mut update = update.clone();
        match (&mut update, &mut before) {
            (Update::Complete(outcome, _), _)
                if outcome.body().is_none() && self.has(Bug::VoidIsEmpty) =>
            {
                *outcome = Outcome::success(b"");
            }
            (Update::Complete(..), Some(record)) if record.state.kind() == StateKind::Completed => {
                if self.has(Bug::SecondCompletionRefused) {
                    return Err(Refusal::Settled(StateKind::Completed));
                }
                if self.has(Bug::SecondCompletionWins) {
                    record.state = State::InFlight;
                }
            }
            // Whatever is there, the step goes behind it.
            (Update::KeepStep { kept, .. }, Some(record)) if self.has(Bug::StepsUnordered) => {
                *kept = record.progress.as_bytes().len();
            }
            _ => {}
        }
        let Some(mut next) =
            Change::Held(token, update.clone()).decide(before.as_ref(), now, Fence(0))?
        else {
            return Ok(None);
        };
        match update {
            Update::Renew(lease) if self.has(Bug::RenewalShortens) => {
                next.lease_until = now.after(lease);
            }
            Update::Complete(_, retention) if self.has(Bug::RetentionFromClaim) => {
                next.expires_at = next.claimed_at.after(retention.replay);
                next.purge_at = next.expires_at.after(retention.tombstone);
            }
            Update::Abandon if self.has(Bug::MarkIsAStep) && !next.progress.is_empty() => {
                next.expires_at = now.after(record::RELEASED_WITH_STEPS_FOR);
                next.purge_at = next.expires_at;
            }
            _ => {}
        }
        Ok(Some(next))
    }

    fn resolved(&self, record: Option<&Record>, change: &Change, now: Timestamp) -> Transition {
        let late = match record {
            Some(record) if self.has(Bug::RunningResolved) => now.max(record.lease_until),
            _ => now,
        };
        let mut next = change.decide(record, late, Fence(0))?;
        if let (true, Some(before), Some(next)) =
            (self.has(Bug::FenceKeptOnResolve), record, &mut next)
        {
            next.token = before.token;
        }
        Ok(next)
    }

    /// What a claim finds, with the bugs that are about what it finds.
    fn found(&self, record: Option<&Record>, now: Timestamp, request: &ClaimRequest) -> Seen {
        let mut seen = Seen {
            record: record.cloned(),
            request: request.clone(),
            now,
        };
        if self.has(Bug::HoldRetries) {
            seen.request.on_lost = OnLost::Retry;
        }
        let Some(record) = &mut seen.record else {
            return seen;
        };
        match record.state.kind() {
            StateKind::InFlight if self.has(Bug::MismatchWhenCompletedOnly) => {
                seen.request.fingerprint = record.fingerprint;
            }
            StateKind::Released if self.has(Bug::CopyRuns) => {
                record.token.nonce = semel::store::Nonce::from_bytes([0; 16]);
            }
            StateKind::InFlight if self.has(Bug::OwnNonceLoses) => {
                record.token.nonce = semel::store::Nonce::from_bytes([0; 16]);
            }
            StateKind::Completed if self.has(Bug::RetentionClosed) && now == record.expires_at => {
                record.expires_at = now.after(Duration::from_micros(1));
                record.purge_at = record.expires_at;
            }
            _ => {}
        }
        seen
    }
}

struct Seen {
    record: Option<Record>,
    request: ClaimRequest,
    now: Timestamp,
}

impl Store for SmallStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let digest = identity.digest();
        let decide = |records: &mut (Records, Fence), now| {
            let record = records.0.get(digest).map(|e| &e.record);
            let seen = self.found(record, now, request);
            let floor = if self.has(Bug::FenceResetOnPurge) || self.has(Bug::FencesByClock) {
                Fence(0)
            } else {
                records.1
            };
            let mut decision = record::claim(seen.record.as_ref(), &seen.request, seen.now, floor);
            if self.has(Bug::FenceResetOnPurge)
                && record.is_none_or(|r| r.is_purgeable(now))
                && let (Claim::Acquired(claim), Some(write)) =
                    (&mut decision.claim, &mut decision.write)
            {
                claim.token.fence = Fence(1);
                write.token.fence = Fence(1);
            }
            decision
        };
        let mut decision = {
            let (mut records, now) = self.open()?;
            decide(&mut records, now)
        };
        if self.has(Bug::CheckThenAct) {
            tokio::task::yield_now().await;
        }
        let (mut records, now) = self.open()?;
        if !self.has(Bug::CheckThenAct) {
            decision = decide(&mut records, now);
        }
        if let (true, Claim::Completed { .. }, Some(entry)) = (
            self.has(Bug::ReplayProlongs),
            &decision.claim,
            records.0.get_mut(digest),
        ) {
            entry.record.expires_at = entry.record.expires_at.after(Duration::from_millis(1));
        }
        if let (true, Claim::Acquired(claim)) =
            (self.has(Bug::SinceIsTheClaims), &mut decision.claim)
        {
            claim.since = now;
        }
        let kept = records.0.get_mut(digest);
        match (kept, &mut decision.write) {
            (Some(kept), Some(record)) if self.has(Bug::NoteStays) => {
                record.note = kept.record.note.clone();
            }
            (Some(kept), None) if self.has(Bug::NoteOfADuplicate) => {
                kept.record.note = request.note.clone();
            }
            _ => {}
        }
        if let Some(mut record) = decision.write {
            if self.has(Bug::StepsForgotten) {
                record.progress = Progress::EMPTY;
            }
            records.1 = records.1.max(record.token.fence);
            let label = Label::from(identity);
            records.0.insert(*digest, Entry { label, record });
            self.changed.notify_waiters();
        }
        Ok(decision.claim)
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let (mut records, now) = self.open()?;
        let entry = records.0.get_mut(identity);
        let record = entry.as_ref().map(|entry| &entry.record);
        let next = match change {
            Change::Held(token, update) => self.updated(record, token, update, now),
            Change::Resolve(_) => self.resolved(record, change, now),
        };
        match next {
            Err(refusal) => Ok(refusal.into()),
            Ok(None) => Ok(Fenced::Applied),
            Ok(Some(mut next)) => {
                if self.has(Bug::NoteForgotten) && next.settled_at.is_some() {
                    next.note = Note::EMPTY;
                }
                let silent = self.has(Bug::ReleaseWakesNobody) && next.state == State::Released;
                if let Some(entry) = entry {
                    entry.record = next;
                }
                if !silent {
                    self.changed.notify_waiters();
                }
                Ok(Fenced::Applied)
            }
        }
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let (records, now) = self.open()?;
        let entry = records.0.get(identity).cloned();
        Ok(entry.filter(|e| !e.record.is_purgeable(now)))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let (records, now) = self.open()?;
        let mut entries: Vec<Entry> = records
            .0
            .values()
            .filter(|Entry { label, record }| {
                let digest = label.digest.as_bytes();
                let past_edge = query.after.as_ref().is_none_or(|Cursor(edge)| {
                    digest[..] > edge[..]
                        || (self.has(Bug::PageEdgeTwice)
                            && query.limit > 1
                            && digest[..] == edge[..])
                });
                past_edge
                    && record.state.kind() == query.state
                    && (!query.only_lapsed() || record.is_lapsed(now))
                    && !record.is_purgeable(now)
            })
            .take(query.limit + 1)
            .cloned()
            .collect();
        let more = entries.len() > query.limit;
        entries.truncate(query.limit);
        let edge = entries.last().filter(|_| more);
        let next = edge.map(|e| Cursor((*e.label.digest.as_bytes()).into()));
        Ok(Page { entries, next })
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let (mut records, now) = self.open()?;
        let ended: Vec<IdentityDigest> = records
            .0
            .values()
            .filter(|e| self.purgeable(&e.record, now))
            .map(|e| e.label.digest)
            .collect();
        let limit = if self.has(Bug::PurgeUnbounded) {
            ended.len()
        } else {
            limit
        };
        for digest in ended.iter().take(limit) {
            let fence = records.0.remove(digest).map(|e| e.record.token.fence);
            records.1 = records.1.max(fence.unwrap_or_default());
        }
        Ok(Purged {
            removed: ended.len().min(limit),
            more: ended.len() > limit,
        })
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        let waits = || -> Result<bool> {
            let (records, _) = self.open()?;
            Ok(records.0.get(identity).is_some_and(|e| {
                e.record.token.fence == fence && e.record.state == State::InFlight
            }))
        };
        let end = tokio::time::Instant::now() + timeout;
        loop {
            if self.has(Bug::WakeLost) {
                if !waits()? {
                    return Ok(Waited::Changed);
                }
                tokio::task::yield_now().await;
            }
            let changed = self.changed.notified();
            if !self.has(Bug::WakeLost) && !waits()? {
                return Ok(Waited::Changed);
            }
            if tokio::time::timeout_at(end, changed).await.is_err() {
                return Ok(Waited::TimedOut);
            }
        }
    }

    async fn probe(&self) -> Result<Probe> {
        let _open = self.open()?;
        Ok(Probe {
            store: "small",
            durability: Durability::Process,
            warnings: Vec::new(),
        })
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
        Ok(())
    }
}
