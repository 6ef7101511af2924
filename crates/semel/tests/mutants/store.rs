//! The smallest store there can be, wrong where it is told to be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use semel::record::{self, Record, State, StateKind};
use semel::store::{
    Claim, ClaimRequest, Cursor, Durability, Entry, Fence, Fenced, Label, ListQuery, OnLost, Page,
    Probe, Purged, Refusal, Resolution, Result, Retention, Store, Token, Waited,
};
use semel::{
    Clock, FinishedStep, Identity, IdentityDigest, ManualClock, Outcome, Progress, StoreError,
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

    fn fenced(
        &self,
        digest: &IdentityDigest,
        step: impl FnOnce(Option<&Record>, Timestamp) -> record::Transition,
    ) -> Result<Fenced> {
        let (mut records, now) = self.open()?;
        let entry = records.0.get_mut(digest);
        match step(entry.as_ref().map(|e| &e.record), now) {
            Err(refusal) => Ok(refusal.into()),
            Ok(None) => Ok(Fenced::Applied),
            Ok(Some(next)) => {
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

    /// What a claim finds, with the bugs that are about what it finds.
    fn found(&self, record: Option<&Record>, now: Timestamp, request: &ClaimRequest) -> Seen {
        let mut seen = Seen {
            record: record.cloned(),
            request: *request,
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

    async fn renew(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        lease: Duration,
    ) -> Result<Fenced> {
        self.fenced(identity, |r, now| {
            let mut next = record::renew(r, &self.seen(r, token), lease, now)?;
            if self.has(Bug::RenewalShortens)
                && let Some(next) = &mut next
            {
                next.lease_until = now.after(lease);
            }
            Ok(next)
        })
    }

    async fn complete(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        outcome: &Outcome,
        retention: Retention,
    ) -> Result<Fenced> {
        let empty = Outcome::success(b"");
        let outcome = match outcome.body() {
            None if self.has(Bug::VoidIsEmpty) => &empty,
            _ => outcome,
        };
        self.fenced(identity, |r, now| {
            let token = self.seen(r, token);
            let mut before = r.cloned();
            if let Some(record) = &mut before
                && record.state.kind() == StateKind::Completed
            {
                if self.has(Bug::SecondCompletionRefused) {
                    return Err(Refusal::Settled(StateKind::Completed));
                }
                if self.has(Bug::SecondCompletionWins) {
                    record.state = State::InFlight;
                }
            }
            let mut next = record::complete(before.as_ref(), &token, outcome, retention, now)?;
            if self.has(Bug::RetentionFromClaim)
                && let Some(next) = &mut next
            {
                next.expires_at = next.claimed_at.after(retention.replay);
                next.purge_at = next.expires_at.after(retention.tombstone);
            }
            Ok(next)
        })
    }

    async fn keep_step(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        step: &FinishedStep,
        kept: usize,
    ) -> Result<Fenced> {
        self.fenced(identity, |r, _| {
            let token = self.seen(r, token);
            let next = record::keep_step(r, &token, step, kept);
            match r {
                // Whatever is there, the step goes behind it.
                Some(before) if self.has(Bug::StepsUnordered) => {
                    record::keep_step(r, &token, step, before.progress.as_bytes().len())
                }
                _ => next,
            }
        })
    }

    async fn abandon(&self, identity: &IdentityDigest, token: &Token) -> Result<Fenced> {
        self.fenced(identity, |r, now| {
            let mut next = record::abandon(r, &self.seen(r, token), now)?;
            if let Some(next) = &mut next
                && self.has(Bug::MarkIsAStep)
                && !next.progress.is_empty()
            {
                next.expires_at = now.after(record::RELEASED_WITH_STEPS_FOR);
                next.purge_at = next.expires_at;
            }
            Ok(next)
        })
    }

    async fn mark_unknown(&self, identity: &IdentityDigest, token: &Token) -> Result<Fenced> {
        self.fenced(identity, |r, now| {
            record::mark_unknown(r, &self.seen(r, token), now)
        })
    }

    async fn resolve(&self, identity: &IdentityDigest, resolution: &Resolution) -> Result<Fenced> {
        self.fenced(identity, |r, now| {
            let late = match r {
                Some(r) if self.has(Bug::RunningResolved) => now.max(r.lease_until),
                _ => now,
            };
            let Some(mut next) = record::resolve(r, resolution, late, Fence(0))? else {
                return Ok(None);
            };
            if let (true, Some(before)) = (self.has(Bug::FenceKeptOnResolve), r) {
                next.token = before.token;
            }
            Ok(Some(next))
        })
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
                    && (!query.lapsed || record.is_lapsed(now))
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
