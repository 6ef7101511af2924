//! The steps that change a record: each a conditional write, decided by `semel::record` on what is
//! known of the record, and anew on what the write found.

use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;
use semel::record::{self, Change};
use semel::store::{Claim, ClaimRequest, Fence, Fenced, Nonce, Refusal, Resolution, Result, Token};
use semel::{
    Fingerprint, FinishedStep, Identity, IdentityDigest, Note, Outcome, Progress, Record, State,
    StateKind, StoreError, StoreErrorKind, Timestamp,
};

use super::call::Written;
use super::item::{self, Item, Reader};
use super::{DynamoDbStore, update};
use crate::common::doubt::{doubtful, undoubted_claim};

/// How often a step is decided anew because the record changed under it.
const ROUNDS: usize = 16;

impl DynamoDbStore {
    pub(super) async fn claim_identity(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<Claim> {
        let _under_way = self.gate.enter()?;
        let digest = identity.digest();
        let mut now = self.now();
        let mut in_doubt = false;
        // A lapse that this handle has watched: what follows from it is tried at once. Nothing is
        // answered by it alone.
        let mut known = self.seen.lapsed(digest, now).filter(|(_, judged)| {
            let decision = record::claim(Some(judged), request, now, Fence(0));
            decision.write.is_some()
        });
        for _ in 0..ROUNDS {
            let judged = known.as_ref().map(|(_, judged)| judged);
            let floor = self.fences.floor(judged, now);
            let decision = record::claim(judged, request, now, floor);
            let Some(record) = decision.write else {
                return undoubted_claim(decision.claim, in_doubt);
            };
            let update = match &known {
                None => update::claim(identity, request, &record),
                Some((row, _)) => update::replace(identity, request, row, &record),
            };
            let written = self
                .table
                .update(digest, update, ReturnValue::AllNew, &mut in_doubt);
            match written.await.map_err(|error| doubtful(error, in_doubt))? {
                Written::Yes(item) => {
                    if let State::InFlight = record.state {
                        return self.acquired(digest, &item, now);
                    }
                    self.changed(digest, &record.token.nonce);
                    return undoubted_claim(decision.claim, in_doubt);
                }
                Written::No(item) => {
                    let row = item.map(|item| Reader(&item).row()).transpose()?;
                    now = self.now();
                    known = row.map(|row| {
                        let judged = self.seen.judge(digest, &row, now);
                        (row, judged)
                    });
                }
            }
        }
        Err(doubtful(unsettled(), in_doubt))
    }

    pub(super) async fn prolong(
        &self,
        identity: &IdentityDigest,
        change: &Change,
        token: &Token,
        lease: Duration,
        in_doubt: &mut bool,
    ) -> Result<Fenced> {
        let micros = item::micros(lease);
        let known = self.seen.of_token(identity, token);
        let mut at_least = known.is_none_or(|(known, _)| known <= micros);
        for _ in 0..ROUNDS {
            let now = self.now();
            let update = update::renew(token, micros, now.after(lease), at_least);
            match self
                .table
                .update(identity, update, ReturnValue::AllNew, in_doubt)
                .await?
            {
                Written::Yes(item) => {
                    self.seen.judge(identity, &Reader(&item).row()?, now);
                    return Ok(Fenced::Applied);
                }
                Written::No(None) => return Ok(Refusal::Missing.into()),
                Written::No(Some(item)) => {
                    let row = Reader(&item).row()?;
                    if let Err(refusal) = change.decide(Some(&row.record), now, Fence(0)) {
                        return Ok(refusal.into());
                    }
                    at_least = row.lease <= micros;
                }
            }
        }
        Err(unsettled())
    }

    pub(super) async fn append(
        &self,
        identity: &IdentityDigest,
        change: &Change,
        token: &Token,
        step: &FinishedStep,
        kept: usize,
        in_doubt: &mut bool,
    ) -> Result<Fenced> {
        let room = kept.saturating_add(step.as_bytes().len()) <= Progress::MAX_STORED;
        for _ in 0..ROUNDS {
            let written = if room {
                let update = update::keep_step(token, step, kept);
                self.table
                    .update(identity, update, ReturnValue::AllNew, in_doubt)
                    .await?
            } else {
                // Never written: what is there says why.
                Written::No(self.table.read(identity.to_string(), None).await?)
            };
            match written {
                Written::Yes(item) => {
                    self.seen.judge(identity, &Reader(&item).row()?, self.now());
                    return Ok(Fenced::Applied);
                }
                Written::No(None) => return Ok(Refusal::Missing.into()),
                Written::No(Some(item)) => {
                    let found = Reader(&item).row()?.record;
                    match change.decide(Some(&found), self.now(), Fence(0)) {
                        Ok(None) => return Ok(Fenced::Applied),
                        Err(refusal) => return Ok(refusal.into()),
                        Ok(Some(_)) => {}
                    }
                }
            }
        }
        Err(unsettled())
    }

    pub(super) async fn resolve(
        &self,
        identity: &IdentityDigest,
        change: &Change,
        resolution: &Resolution,
        in_doubt: &mut bool,
    ) -> Result<Fenced> {
        let about = Token {
            fence: resolution.fence,
            nonce: Nonce::from_bytes([0; 16]),
        };
        let mut now = self.now();
        let mut lapsed = self.seen.lapsed(identity, now);
        let amends = resolution.verdict.amends();
        if lapsed
            .as_ref()
            .is_some_and(|(row, _)| amends || row.record.token.fence != resolution.fence)
        {
            lapsed = None;
        }
        let mut steps = false;
        for _ in 0..ROUNDS {
            let found = match &lapsed {
                Some((_, judged)) => judged.clone(),
                None if amends => a_record(State::Completed(Outcome::void()), about, false),
                None => a_record(State::Unknown, about, steps),
            };
            let floor = self.fences.floor(Some(&found), now);
            let Ok(Some(record)) = change.decide(Some(&found), now, floor) else {
                return Err(unsettled());
            };
            let row = lapsed.as_ref().map(|(row, _)| row);
            let from = found.state.kind();
            let update = update::resolve(resolution.fence, from, row, &record, now);
            match self
                .table
                .update(identity, update, ReturnValue::None, in_doubt)
                .await?
            {
                Written::Yes(_) => {
                    if let Some((row, _)) = &lapsed {
                        self.seen.forget(identity, &row.record.token.nonce);
                    }
                    self.waiters.wake(identity);
                    return Ok(Fenced::Applied);
                }
                Written::No(None) => return Ok(Refusal::Missing.into()),
                Written::No(Some(item)) => {
                    let row = Reader(&item).row()?;
                    now = self.now();
                    let judged = self.seen.judge(identity, &row, now);
                    match change.decide(Some(&judged), now, Fence(0)) {
                        Ok(None) => return Ok(Fenced::Applied),
                        Err(refusal) => return Ok(refusal.into()),
                        Ok(Some(_)) => {}
                    }
                    steps = !row.record.progress.is_bare();
                    let in_flight = row.record.state == State::InFlight;
                    lapsed = in_flight.then_some((row, judged));
                }
            }
        }
        Err(unsettled())
    }

    fn changed(&self, digest: &IdentityDigest, nonce: &Nonce) {
        self.seen.forget(digest, nonce);
        self.waiters.wake(digest);
    }

    /// What a claim that was written answers.
    fn acquired(&self, digest: &IdentityDigest, item: &Item, now: Timestamp) -> Result<Claim> {
        let row = Reader(item).row()?;
        self.seen.judge(digest, &row, now);
        // Who waits for the attempt before.
        self.waiters.wake(digest);
        Ok(Claim::Acquired(row.record.acquired()))
    }

    /// A change by an attempt's own token that ends it.
    pub(super) async fn settle(
        &self,
        digest: &IdentityDigest,
        change: &Change,
        token: &Token,
        in_doubt: &mut bool,
    ) -> Result<Fenced> {
        let now = self.now();
        let from: &[StateKind] = match change {
            Change::Held(_, record::Update::MarkUnknown) => &[StateKind::InFlight],
            _ => &[StateKind::InFlight, StateKind::Unknown],
        };
        let known = self.seen.of_token(digest, token);
        let mut steps = known.is_some_and(|(_, steps)| steps);
        for _ in 0..ROUNDS {
            let held = a_record(State::InFlight, *token, steps);
            let Ok(Some(record)) = change.decide(Some(&held), now, Fence(0)) else {
                return Err(unsettled());
            };
            let update = update::settle(token, from, &record);
            match self
                .table
                .update(digest, update, ReturnValue::None, in_doubt)
                .await?
            {
                Written::Yes(_) => {
                    self.changed(digest, &token.nonce);
                    return Ok(Fenced::Applied);
                }
                Written::No(None) => return Ok(Refusal::Missing.into()),
                Written::No(Some(item)) => {
                    let found = Reader(&item).row()?.record;
                    match change.decide(Some(&found), now, Fence(0)) {
                        Ok(None) => return Ok(Fenced::Applied),
                        Err(refusal) => return Ok(refusal.into()),
                        // It has steps that were not known of, or none.
                        Ok(Some(_)) => steps = !found.progress.is_bare(),
                    }
                }
            }
        }
        Err(unsettled())
    }
}

/// A record as the condition of a write wants it: `semel::record` says of it what to write.
fn a_record(state: State, token: Token, steps: bool) -> Record {
    Record {
        state,
        token,
        expires_at: Timestamp::MAX,
        purge_at: Timestamp::MAX,
        fingerprint: Fingerprint::of(&[]),
        attempt: 1,
        lease_until: Timestamp::default(),
        created_at: Timestamp::default(),
        claimed_at: Timestamp::default(),
        settled_at: None,
        resolved: None,
        progress: if steps {
            item::some_steps()
        } else {
            Progress::EMPTY
        },
        note: Note::EMPTY,
    }
}

pub(super) fn unsettled() -> StoreError {
    StoreError::new(
        StoreErrorKind::NotApplied,
        format!("the record changed each of the {ROUNDS} times that it was looked at"),
    )
}
