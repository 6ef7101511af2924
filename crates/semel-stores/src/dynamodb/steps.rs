//! The steps that change a record: each a conditional write, decided by `semel::record` on what is
//! known of the record, and anew on what the write found.

use aws_sdk_dynamodb::types::ReturnValue;
use semel::record::{self, Change, Update as Asked};
use semel::store::{Claim, ClaimRequest, Fence, Fenced, Refusal, Result, Token};
use semel::{
    Fingerprint, Identity, IdentityDigest, Note, Progress, Record, State, StateKind, StoreError,
    StoreErrorKind, Timestamp,
};

use super::call::Written;
use super::item::{self, Item, Reader, Row};
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
                Some((row, _)) if record.state == State::InFlight => {
                    update::take_over(identity, request, row, &record)
                }
                Some((row, _)) => update::settle_as(row, &record),
            };
            let written = self
                .table
                .update(digest, update, ReturnValue::AllNew, &mut in_doubt);
            match written.await.map_err(|error| doubtful(error, in_doubt))? {
                Written::Yes(item) => {
                    if let State::InFlight = record.state {
                        return self.acquired(digest, &item, now);
                    }
                    self.seen.forget(digest, &record.token.nonce);
                    self.waiters.wake(digest);
                    return undoubted_claim(decision.claim, in_doubt);
                }
                Written::No(item) => {
                    now = self.now();
                    known = self.judged(digest, item, now)?;
                }
            }
        }
        Err(doubtful(unsettled(), in_doubt))
    }

    /// A change by an attempt's own token: written unread, and judged by the item that was in its way.
    pub(super) async fn held(
        &self,
        digest: &IdentityDigest,
        change: &Change,
        token: &Token,
        asked: &Asked,
        in_doubt: &mut bool,
    ) -> Result<Fenced> {
        let ends = change.ends_attempt();
        // What the write's condition goes by, as far as it is known.
        let (mut lease, mut steps) = self.seen.of_token(digest, token).unwrap_or_default();
        for _ in 0..ROUNDS {
            let now = self.now();
            let update = match asked {
                Asked::Renew(length) => {
                    let micros = item::micros(*length);
                    let until = now.after(*length);
                    Some(update::renew(token, micros, until, lease <= micros))
                }
                Asked::KeepStep { step, kept } => {
                    let length = kept.saturating_add(step.as_bytes().len());
                    let fits = length <= Progress::MAX_STORED;
                    fits.then(|| update::keep_step(token, step, *kept))
                }
                Asked::Complete(..) | Asked::Abandon | Asked::MarkUnknown => {
                    let Ok(Some(record)) = change.decide(Some(&held(*token, steps)), now, Fence(0))
                    else {
                        return Err(unsettled());
                    };
                    let from: &[StateKind] = match asked {
                        Asked::MarkUnknown => &[StateKind::InFlight],
                        _ => &[StateKind::InFlight, StateKind::Unknown],
                    };
                    Some(update::settle(token, from, &record))
                }
            };
            let returns = match ends {
                true => ReturnValue::None,
                false => ReturnValue::AllNew,
            };
            let written = match update {
                Some(update) => self.table.update(digest, update, returns, in_doubt).await?,
                // Never written: what is there says why.
                None => Written::No(self.table.read(digest.to_string(), None).await?),
            };
            let row = match written {
                Written::Yes(_) if ends => {
                    self.seen.forget(digest, &token.nonce);
                    return Ok(Fenced::Applied);
                }
                Written::Yes(item) => {
                    self.seen.judge(digest, &Reader(&item).row()?, now);
                    return Ok(Fenced::Applied);
                }
                Written::No(item) => item.map(|item| Reader(&item).row()).transpose()?,
            };
            match change.decide(row.as_ref().map(|row| &row.record), now, Fence(0)) {
                Ok(None) => return Ok(Fenced::Applied),
                Err(refusal) => return Ok(refusal.into()),
                Ok(Some(found)) => steps = !found.progress.is_bare(),
            }
            lease = row.map_or(lease, |row| row.lease);
        }
        Err(unsettled())
    }

    /// A decision from outside: replaces the record that was read, or watched until it lapsed, if it still
    /// is as it was.
    pub(super) async fn resolve(
        &self,
        digest: &IdentityDigest,
        change: &Change,
        in_doubt: &mut bool,
    ) -> Result<Fenced> {
        let mut now = self.now();
        // Nothing is answered by what is only remembered.
        let mut known = self.seen.lapsed(digest, now).filter(|(_, judged)| {
            let decided = change.decide(Some(judged), now, Fence(0));
            matches!(decided, Ok(Some(_)))
        });
        if known.is_none() {
            let item = self.table.read(digest.to_string(), None).await?;
            now = self.now();
            known = self.judged(digest, item, now)?;
        }
        for _ in 0..ROUNDS {
            let Some((row, judged)) = &known else {
                return Ok(Refusal::Missing.into());
            };
            let floor = self.fences.floor(Some(judged), now);
            let record = match change.decide(Some(judged), now, floor) {
                Ok(None) => return Ok(Fenced::Applied),
                Err(refusal) => return Ok(refusal.into()),
                Ok(Some(record)) => record,
            };
            let update = update::settle_as(row, &record);
            let written = self
                .table
                .update(digest, update, ReturnValue::None, in_doubt);
            match written.await? {
                Written::Yes(_) => {
                    self.seen.forget(digest, &row.record.token.nonce);
                    return Ok(Fenced::Applied);
                }
                Written::No(item) => {
                    now = self.now();
                    known = self.judged(digest, item, now)?;
                }
            }
        }
        Err(unsettled())
    }

    /// An item as a row, and as its record is judged by this handle.
    fn judged(
        &self,
        digest: &IdentityDigest,
        item: Option<Item>,
        now: Timestamp,
    ) -> Result<Option<(Row, Record)>> {
        let row = item.map(|item| Reader(&item).row()).transpose()?;
        Ok(row.map(|row| {
            let judged = self.seen.judge(digest, &row, now);
            (row, judged)
        }))
    }

    /// What a claim that was written answers.
    fn acquired(&self, digest: &IdentityDigest, item: &Item, now: Timestamp) -> Result<Claim> {
        let row = Reader(item).row()?;
        self.seen.judge(digest, &row, now);
        // Who waits for the attempt before.
        self.waiters.wake(digest);
        Ok(Claim::Acquired(row.record.acquired()))
    }
}

/// A record as the condition of a write wants it: `semel::record` says of it what to write.
fn held(token: Token, steps: bool) -> Record {
    Record {
        state: State::InFlight,
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
