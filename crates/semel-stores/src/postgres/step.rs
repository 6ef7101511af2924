//! A step as a statement with its parameters, and the answer in the rows that come back.
//!
//! Nothing here executes anything: the same step can run on a connection of the store's, in a group
//! with others, or in a transaction of the caller's.

use std::sync::Arc;

use semel::record::{self, Change, Update};
use semel::store::{
    Acquired, Claim, ClaimRequest, Cursor, Entry, Fence, Fenced, ListQuery, OnLost, Page, Purged,
    Refusal, Resolution, Result, Retention, Token,
};
use semel::{Identity, IdentityDigest, StateKind, StoreError, StoreErrorKind, Timestamp};

use super::row::{self, Columns, Param, escaped};
use super::sql::Kind;
use crate::common::Running;

/// A statement and its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(super) kind: Kind,
    /// The record that it may lock; no two steps of one group have the same.
    pub(super) digest: Option<IdentityDigest>,
    pub(super) params: Vec<Param>,
}

impl Step {
    /// The bytes in its parameters, to which no limit is set elsewhere.
    pub(super) fn bytes(&self) -> usize {
        let each = self.params.iter().map(|param| match param {
            Param::Bytes(Some(bytes)) => bytes.len(),
            _ => 0,
        });
        each.sum()
    }
}

/// What rows say: an answer, or that the record changed while the statement ran.
#[derive(Debug)]
pub(super) enum Answer<T> {
    Is(T),
    Again,
}

pub(super) fn step(
    kind: Kind,
    digest: &IdentityDigest,
    rest: impl IntoIterator<Item = Param>,
) -> Step {
    let mut params = vec![Param::bytes(digest.as_bytes())];
    params.extend(rest);
    Step {
        kind,
        digest: Some(*digest),
        params,
    }
}

fn fenced(
    kind: Kind,
    digest: &IdentityDigest,
    token: &Token,
    rest: impl IntoIterator<Item = Param>,
) -> Step {
    let token = [
        Param::fence(token.fence),
        Param::bytes(token.nonce.as_bytes()),
    ];
    step(kind, digest, token.into_iter().chain(rest))
}

/// The claim that hopes for an identity without a record.
pub(super) fn claim_new(identity: &Identity, request: &ClaimRequest) -> Step {
    let mut params = Vec::with_capacity(10);
    params.extend([
        Param::bytes(identity.digest().as_bytes()),
        Param::bytes(request.nonce.as_bytes()),
        Param::bytes(&request.fingerprint.to_bytes()),
        Param::micros(request.lease),
        Param::Text(row::array(identity.scope().segments())),
        Param::Text(escaped(identity.operation())),
        Param::Text(escaped(identity.hint())),
        // It has no NUL: nothing to escape.
        Param::Text(request.note.as_text().into()),
        Param::Bool(request.is_forgettable),
    ]);
    Step {
        kind: Kind::ClaimNew,
        digest: Some(*identity.digest()),
        params,
    }
}

/// The claim in full.
pub(super) fn claim(identity: &Identity, request: &ClaimRequest) -> Step {
    let mut step = claim_new(identity, request);
    step.kind = Kind::Claim;
    // Rare, and always on disk: whether it may be forgotten is not asked.
    step.params.pop();
    let retry = request.on_lost == OnLost::Retry;
    step.params.push(Param::Bool(retry));
    step
}

pub(super) fn change(identity: &IdentityDigest, change: &Change) -> Step {
    match change {
        Change::Held(token, update) => held(identity, token, update),
        Change::Resolve(resolution) => resolve(identity, resolution),
    }
}

/// The last change before a commit: fails where it writes nothing.
pub(super) fn sealing(identity: &IdentityDigest, change: &Change) -> Result<Step> {
    let mut step = self::change(identity, change);
    step.kind = match step.kind {
        Kind::Complete => Kind::CompleteOrFail,
        Kind::KeepStep => Kind::KeepStepOrFail,
        _ => {
            let what = "only completions and finished steps are committed with a transaction";
            return Err(StoreError::new(StoreErrorKind::NotApplied, what));
        }
    };
    Ok(step)
}

fn held(identity: &IdentityDigest, token: &Token, update: &Update) -> Step {
    match update {
        Update::Renew(lease) => fenced(Kind::Renew, identity, token, [Param::micros(*lease)]),
        Update::Complete(outcome, retention) => fenced(
            Kind::Complete,
            identity,
            token,
            [
                Param::int(outcome.code().into()),
                Param::Bytes(Some(outcome.as_bytes().clone())),
                Param::micros(retention.replay),
                Param::micros(retention.tombstone),
            ],
        ),
        Update::KeepStep { step, kept } => {
            // More than there can be is as wrong as any number that does not fit.
            let kept = i64::try_from(*kept).unwrap_or(i64::MAX);
            let step = Param::bytes(step.as_bytes());
            fenced(Kind::KeepStep, identity, token, [step, Param::int(kept)])
        }
        Update::Abandon => fenced(Kind::Abandon, identity, token, []),
        Update::MarkUnknown => fenced(Kind::MarkUnknown, identity, token, []),
    }
}

fn resolve(identity: &IdentityDigest, resolution: &Resolution) -> Step {
    let (outcome, retention) = resolution.verdict.outcome().unzip();
    let retention = retention.unwrap_or(Retention::new(std::time::Duration::ZERO));
    // The record's present fence, and the nonce that comes in.
    let token = Token {
        fence: resolution.fence,
        nonce: resolution.nonce,
    };
    fenced(
        Kind::Resolve,
        identity,
        &token,
        [
            Param::Text(escaped(&resolution.text_end())),
            Param::Bool(outcome.is_some()),
            Param::Int(outcome.map(|outcome| outcome.code().into())),
            Param::Bytes(outcome.map(|outcome| outcome.as_bytes().clone())),
            Param::micros(retention.replay),
            Param::micros(retention.tombstone),
            Param::Bool(resolution.verdict.amends()),
        ],
    )
}

pub(super) fn get(identity: &IdentityDigest) -> Step {
    step(Kind::Get, identity, [])
}

pub(super) fn look(identity: &IdentityDigest, fence: Fence) -> Step {
    step(Kind::Look, identity, [Param::fence(fence)])
}

pub(super) fn watch(identity: &IdentityDigest, fence: Fence) -> Step {
    step(Kind::Watch, identity, [Param::fence(fence)])
}

/// The most records on one page.
const PAGE: usize = 1000;

/// How far one page looks for settled records; also in the statement.
const STRETCH: i64 = 1024;

pub(super) fn list(query: &ListQuery) -> Step {
    let kind = match query.state {
        StateKind::InFlight if query.only_lapsed() => Kind::ListLapsed,
        StateKind::InFlight => Kind::ListInFlight,
        StateKind::Unknown => Kind::ListUnknown,
        StateKind::Completed => Kind::ListCompleted,
        StateKind::Released => Kind::ListReleased,
    };
    let after = query.after.as_ref().map_or(&[][..], |cursor| &*cursor.0);
    Step {
        kind,
        digest: None,
        params: vec![Param::bytes(after), Param::int(page(query))],
    }
}

fn page(query: &ListQuery) -> i64 {
    i64::try_from(query.limit.min(PAGE)).unwrap_or(i64::MAX)
}

/// Looks at what is due from `from` on.
pub(super) fn purge(limit: usize, from: Timestamp) -> Step {
    Step {
        kind: Kind::Purge,
        digest: None,
        params: vec![
            Param::int(i64::try_from(limit).unwrap_or(i64::MAX)),
            Param::int(i64::try_from(from.as_micros()).unwrap_or(i64::MAX)),
        ],
    }
}

pub(super) const fn clear() -> Step {
    Step {
        kind: Kind::Clear,
        digest: None,
        params: Vec::new(),
    }
}

/// Several steps of one kind as one statement. Its rows begin with the digest of their step.
pub(super) fn many(steps: &[Arc<Step>]) -> Option<Step> {
    let kind = match steps.first()?.kind {
        Kind::ClaimNew => Kind::ClaimMany,
        Kind::Complete => Kind::CompleteMany,
        _ => return None,
    };
    let numbers = 0..steps[0].params.len();
    let params = numbers.map(|number| Param::Each(steps.to_vec(), number));
    Some(Step {
        kind,
        digest: None,
        params: params.collect(),
    })
}

/// What the row of a claim that hoped for no record answers. `Again`: it is to be made in full.
pub(super) fn claimed_new(rows: &[impl Columns], request: &ClaimRequest) -> Result<Answer<Claim>> {
    let Some(row) = rows.first() else {
        return Ok(Answer::Again);
    };
    let Some(fence) = row::get::<Option<i64>>(row, 1)? else {
        return unwritten(row, 2, request);
    };
    let acquired = Acquired {
        token: Token {
            fence: Fence(fence.cast_unsigned()),
            nonce: request.nonce,
        },
        attempt: 1,
        since: row::time(row, 2)?,
        is_repeated: false,
    };
    Ok(Answer::Is(Claim::Acquired(acquired)))
}

/// What a record answers to a claim that did not write; the time is in the column `first`.
fn unwritten(row: &impl Columns, first: usize, request: &ClaimRequest) -> Result<Answer<Claim>> {
    let now = row::time(row, first)?;
    let entry = row::entry(row, first + 1)?;
    let record = entry.as_ref().map(|entry| &entry.record);
    let decision = record::claim(record, request, now, Fence(0));
    Ok(match decision.write {
        None => Answer::Is(decision.claim),
        Some(_) => Answer::Again,
    })
}

/// What a claim's row answers.
pub(super) fn claimed(rows: &[impl Columns], request: &ClaimRequest) -> Result<Answer<Claim>> {
    let Some(row) = rows.first() else {
        return Ok(Answer::Again);
    };
    if let Some(state) = row::get::<Option<&str>>(row, 0)? {
        let fence = Fence(row::get::<i64>(row, 1)?.cast_unsigned());
        let claim = if state == StateKind::Unknown.as_str() {
            Claim::Unknown { fence }
        } else {
            Claim::Acquired(Acquired {
                token: Token {
                    fence,
                    nonce: request.nonce,
                },
                attempt: u32::try_from(row::get::<i64>(row, 2)?).unwrap_or(u32::MAX),
                since: row::time(row, 3)?,
                is_repeated: false,
            })
        };
        return Ok(Answer::Is(claim));
    }
    unwritten(row, 5, request)
}

/// What the record that was read answers to a change that was not written.
pub(super) fn judged(rows: &[impl Columns], change: &Change) -> Result<Answer<Fenced>> {
    let Some(row) = rows.first() else {
        return Ok(Answer::Is(Refusal::Missing.into()));
    };
    let now = row::time(row, 0)?;
    let entry = row::entry(row, 1)?;
    let record = entry.as_ref().map(|entry| &entry.record);
    Ok(match change.decide(record, now, Fence(0)) {
        Ok(None) => Answer::Is(Fenced::Applied),
        Ok(Some(_)) => Answer::Again,
        Err(refusal) => Answer::Is(refusal.into()),
    })
}

pub(super) fn got(rows: &[impl Columns]) -> Result<Option<Entry>> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let now = row::time(row, 0)?;
    Ok(row::entry(row, 1)?.filter(|entry| !entry.record.is_purgeable(now)))
}

pub(super) fn listed(rows: &[impl Columns], query: &ListQuery) -> Result<Page> {
    let settled = matches!(query.state, StateKind::Completed | StateKind::Released);
    let first = if settled { 2 } else { 0 };
    let mut entries = Vec::with_capacity(rows.len());
    for row in rows {
        entries.extend(row::entry(row, first)?);
    }
    let full = entries.len() >= query.limit.min(PAGE);
    let last = || Some(entries.last()?.label.digest.as_bytes()[..].into());
    let next = match rows.first() {
        _ if full => last(),
        Some(row) if settled && row::get::<i64>(row, 0)? == STRETCH => {
            row::get::<Option<&[u8]>>(row, 1)?.map(Into::into)
        }
        _ => None,
    };
    Ok(Page {
        entries,
        next: next.map(Cursor),
    })
}

/// What a purge removed, and from where the next one looks.
pub(super) fn purged(rows: &[impl Columns]) -> Result<(Purged, Timestamp)> {
    let Some(row) = rows.first() else {
        let nothing = Purged {
            removed: 0,
            more: false,
        };
        return Ok((nothing, Timestamp::default()));
    };
    let (gone, found): (i64, i64) = (row::get(row, 0)?, row::get(row, 1)?);
    let purged = Purged {
        removed: usize::try_from(gone).unwrap_or(0),
        more: found > gone,
    };
    // After the last one from the beginning: what was locked, or committed late, is due before.
    let next = if purged.more {
        row::time(row, 2)?
    } else {
        Timestamp::default()
    };
    Ok((purged, next))
}

/// What a look says of the attempt: whether it is in flight, and whether a push is sure to come.
pub(super) fn looked(rows: &[impl Columns]) -> Result<Running> {
    let Some(row) = rows.first() else {
        // There always is one; if not, it is asked for again.
        return Ok(Running::Unheard);
    };
    Ok(match (row::get(row, 0)?, row::get(row, 1)?) {
        (false, _) => Running::No,
        (true, true) => Running::Yes,
        (true, false) => Running::Unheard,
    })
}
