//! The steps that change a record: each a conditional write, decided by `semel::record` on what is
//! known of the record, and anew on what the write found.

use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;
use semel::record::{self, Change, Update as Asked};
use semel::store::{Claim, ClaimRequest, Fence, Fenced, Result, Token};
use semel::{
    Fingerprint, Identity, IdentityDigest, Progress, Record, State, StoreError, StoreErrorKind,
    Timestamp,
};

use super::call::Written;
use super::item::{self, Item, Reader, Row};
use super::update::Update;
use super::{DynamoDbStore, update};
use crate::common::doubt::{doubtful, undoubted, undoubted_claim};

/// How often a step is decided anew because the record changed under it.
const ROUNDS: usize = 16;

/// A row, and its record as this handle judges it.
type Known = (Row, Record);

/// What became of a step.
struct Pursued<T> {
    answer: T,
    /// What it wrote, if it asked for that.
    row: Option<Row>,
    /// Whether a sending before the one that was answered may have had its effect.
    in_doubt: bool,
}

impl DynamoDbStore {
    pub(super) async fn claim_identity(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<Claim> {
        let digest = identity.digest();
        let decide = |known: Option<&Known>, now| {
            let judged = known.map(|(_, judged)| judged);
            let floor = self.fences.floor(judged, now);
            let decision = record::claim(judged, request, now, floor);
            let update = decision.write.map(|record| match known {
                None => update::claim(identity, request, &record),
                Some((row, _)) if record.state == State::InFlight => {
                    update::take_over(identity, request, row, &record)
                }
                Some((row, _)) => update::settle_as(row, &record),
            });
            (decision.claim, update)
        };
        // A lapse that this handle has watched: what follows from it is tried at once. Nothing is
        // answered by it alone.
        let now = self.now();
        let lapsed = self.seen.lapsed(digest, now).filter(|(_, judged)| {
            let decision = record::claim(Some(judged), request, now, Fence(0));
            decision.write.is_some()
        });
        let first = decide(lapsed.as_ref(), now);
        let pursued = self.pursue(digest, first, ReturnValue::AllNew, decide);
        let pursued = pursued.await?;
        if let Some(row) = &pursued.row {
            // Who waits for the attempt before.
            self.waiters.wake(digest);
            if row.record.state == State::InFlight {
                return Ok(Claim::Acquired(row.record.acquired()));
            }
        }
        undoubted_claim(pursued.answer, pursued.in_doubt)
    }

    pub(super) async fn change_record(
        &self,
        digest: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced> {
        let decide = |known: Option<&Known>, now| {
            let judged = known.map(|(_, judged)| judged);
            let floor = self.fences.floor(judged, now);
            let (answer, next) = match change.decide(judged, now, floor) {
                Err(refusal) => (refusal.into(), None),
                Ok(next) => (Fenced::Applied, next),
            };
            // Where there is none, all is refused.
            let update = known.zip(next).map(|((row, _), next)| match change {
                Change::Held(token, asked) => update::held(token, asked, row.lease, &next),
                Change::Resolve(_) => update::settle_as(row, &next),
            });
            (answer, update)
        };
        let now = self.now();
        let unread = match change {
            Change::Held(token, asked) => self.unread(digest, change, token, asked, now),
            // Replaces the record that was watched until it lapsed, if it still is as it was. Nothing is
            // answered by what is only remembered.
            Change::Resolve(_) => {
                let lapsed = self.seen.lapsed(digest, now);
                lapsed.and_then(|lapsed| decide(Some(&lapsed), now).1)
            }
        };
        let first = match unread {
            Some(update) => (Fenced::Applied, Some(update)),
            None => {
                let item = self.table.read(digest.to_string(), None).await?;
                let now = self.now();
                decide(self.judged(digest, item, now)?.as_ref(), now)
            }
        };
        let returns = match change.ends_attempt() {
            true => ReturnValue::None,
            false => ReturnValue::AllNew,
        };
        let pursued = self.pursue(digest, first, returns, decide).await?;
        undoubted(change, pursued.answer, pursued.in_doubt)
    }

    /// A change by an attempt's own token, before the record was read: its condition goes by what is known
    /// of that. The item that is in its way then judges it. `None`: only a record that is there can.
    fn unread(
        &self,
        digest: &IdentityDigest,
        change: &Change,
        token: &Token,
        asked: &Asked,
        now: Timestamp,
    ) -> Option<Update> {
        if let Asked::KeepStep { step, kept } = asked {
            let length = kept.saturating_add(step.as_bytes().len());
            return (length <= Progress::MAX_STORED).then(|| update::keep_step(token, step, *kept));
        }
        let (lease, has_steps) = self.seen.of_token(digest, token).unwrap_or_default();
        let decided = change.decide(Some(&held(*token, has_steps)?), now, Fence(0));
        let next = decided.ok().flatten()?;
        Some(update::held(token, asked, lease, &next))
    }

    /// Sends what was decided first, and decides anew on what was in its way.
    async fn pursue<T>(
        &self,
        digest: &IdentityDigest,
        first: (T, Option<Update>),
        returns: ReturnValue,
        decide: impl Fn(Option<&Known>, Timestamp) -> (T, Option<Update>),
    ) -> Result<Pursued<T>> {
        let mut in_doubt = false;
        let (mut answer, mut update) = first;
        for round in 0..ROUNDS {
            let Some(sent) = update else {
                return Ok(Pursued {
                    answer,
                    row: None,
                    in_doubt,
                });
            };
            let written = self
                .table
                .update(digest, sent, returns.clone(), &mut in_doubt);
            let written = written.await;
            let written = written.map_err(|error| match doubtful(error, in_doubt) {
                // The first only finds what is there.
                error if round > 1 => error.having_met_others(),
                error => error,
            });
            match written? {
                Written::Yes(item) => {
                    // Of an attempt that has ended nothing was asked for.
                    let item = (returns != ReturnValue::None).then_some(item);
                    let known = self.judged(digest, item, self.now())?;
                    return Ok(Pursued {
                        answer,
                        row: known.map(|(row, _)| row),
                        in_doubt,
                    });
                }
                Written::No(item) => {
                    let now = self.now();
                    let known = self.judged(digest, item, now)?;
                    (answer, update) = decide(known.as_ref(), now);
                }
            }
        }
        Err(doubtful(unsettled(), in_doubt))
    }

    /// An item as a row, and as its record is judged by this handle.
    fn judged(
        &self,
        digest: &IdentityDigest,
        item: Option<Item>,
        now: Timestamp,
    ) -> Result<Option<Known>> {
        let Some(item) = item else {
            // No attempt is in flight, that this handle knows of.
            self.seen.forget(digest);
            return Ok(None);
        };
        let row = Reader(&item).row()?;
        let judged = self.seen.judge(digest, &row, now);
        Ok(Some((row, judged)))
    }
}

/// A record as the condition of a write wants it: `semel::record` says of it what to write.
fn held(token: Token, has_steps: bool) -> Option<Record> {
    let request = ClaimRequest::new(token.nonce, Fingerprint::of(&[]), Duration::ZERO);
    let claimed = record::claim(None, &request, Timestamp::default(), Fence(0)).write?;
    Some(Record {
        token,
        progress: if has_steps {
            item::some_steps()
        } else {
            Progress::EMPTY
        },
        ..claimed
    })
}

pub(super) fn unsettled() -> StoreError {
    StoreError::new(
        StoreErrorKind::Contended,
        format!("the record changed each of the {ROUNDS} times that it was looked at"),
    )
}
