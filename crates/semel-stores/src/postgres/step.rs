//! A step as a statement with its parameters, and the answer in the rows that come back.
//!
//! Nothing here executes anything: the same step can run on a connection of the store's, in a group
//! with others, or in a transaction of the caller's.

use std::sync::Arc;

use bytes::Bytes;
use semel::record::{Change, Update};
use semel::store::{ClaimRequest, Cursor, Entry, Fence, ListQuery, Page, Purged, Result, Token};
use semel::{Identity, IdentityDigest, State, StateKind, StoreError, StoreErrorKind, Timestamp};

use super::row::{self, Columns, Param, escaped};
use super::sql::Kind;
use crate::common::Running;
use crate::common::exchange::{Replacement, Reply, Request};

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

/// The statement of a request.
pub(super) fn of(request: &Request<'_>) -> Step {
    match request {
        Request::Claim(identity, asked) => claim(identity, asked),
        Request::Update(digest, token, update) => held(digest, token, update),
        Request::Read(digest) => get(digest),
        Request::Replace(digest, replacement) => replace(digest, replacement),
    }
}

/// What its rows say.
pub(super) fn reply(request: &Request<'_>, rows: &[impl Columns]) -> Result<Reply> {
    let Some(row) = rows.first() else {
        return Ok(match request {
            // The time decides nothing where there is no record.
            Request::Read(_) => Reply::Found(Timestamp::default(), None),
            _ => Reply::Missed,
        });
    };
    let found = |first| {
        let entry = row::entry(row, first + 1)?;
        let record = entry.map(|entry| entry.record);
        Ok(Reply::Found(row::time(row, first)?, record))
    };
    match request {
        Request::Claim(..) => match row::get::<Option<i64>>(row, 1)? {
            Some(fence) => {
                let fence = Fence(fence.cast_unsigned());
                Ok(Reply::Inserted(fence, row::time(row, 2)?))
            }
            None => found(2),
        },
        Request::Update(_, token, _) => Ok(Reply::Wrote(token.fence)),
        Request::Read(_) => found(0),
        Request::Replace(..) => {
            let fence = row::get::<i64>(row, 0)?.cast_unsigned();
            Ok(Reply::Wrote(Fence(fence)))
        }
    }
}

pub(super) fn step(
    kind: Kind,
    digest: &IdentityDigest,
    rest: impl IntoIterator<Item = Param>,
) -> Step {
    let rest = rest.into_iter();
    let mut params = Vec::with_capacity(1 + rest.size_hint().0);
    params.push(Param::bytes(digest.as_bytes()));
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

fn claim(identity: &Identity, request: &ClaimRequest) -> Step {
    let rest = [
        Param::bytes(request.nonce.as_bytes()),
        Param::bytes(&request.fingerprint.to_bytes()),
        Param::micros(request.lease),
        Param::text(row::array(identity.scope().segments())),
        Param::text(escaped(identity.operation())),
        Param::text(escaped(identity.hint())),
        // It has no NUL: nothing to escape.
        Param::text(request.note.as_text()),
        Param::Bool(request.is_forgettable),
    ];
    step(Kind::ClaimNew, identity.digest(), rest)
}

fn replace(digest: &IdentityDigest, Replacement { seen, next }: &Replacement) -> Step {
    let steps = seen.progress.as_bytes().len();
    let outcome = match &next.state {
        State::Completed(outcome) => Some(outcome),
        State::InFlight | State::Unknown | State::Released => None,
    };
    let progress =
        (next.progress != seen.progress).then(|| Bytes::copy_from_slice(next.progress.as_bytes()));
    let resolved = next.resolved.as_ref();
    let rest = [
        Param::text(seen.state.kind().as_str()),
        Param::time(seen.lease_until),
        Param::int(i64::try_from(steps).unwrap_or(i64::MAX)),
        Param::text(next.state.kind().as_str()),
        Param::bytes(next.token.nonce.as_bytes()),
        Param::int(next.attempt.into()),
        Param::bytes(&next.fingerprint.to_bytes()),
        Param::time(next.created_at),
        Param::time(next.claimed_at),
        Param::time(next.lease_until),
        Param::Time(next.settled_at),
        Param::time(next.expires_at),
        Param::time(next.purge_at),
        Param::Int(outcome.map(|outcome| outcome.code().into())),
        Param::Bytes(outcome.map(|outcome| outcome.as_bytes().clone())),
        Param::Bytes(progress),
        Param::Text(resolved.map(|resolved| escaped(&resolved.to_text()))),
        Param::text(next.note.as_text()),
    ];
    fenced(Kind::Replace, digest, &seen.token, rest)
}

/// The last change before a commit: fails where it writes nothing.
pub(super) fn sealing(identity: &IdentityDigest, change: &Change) -> Result<Step> {
    let (kind, step) = match change {
        Change::Held(token, update @ Update::Complete(..)) => {
            (Kind::CompleteOrFail, held(identity, token, update))
        }
        Change::Held(token, update @ Update::KeepStep { .. }) => {
            (Kind::KeepStepOrFail, held(identity, token, update))
        }
        Change::Held(..) | Change::Resolve(_) => {
            let what = "only completions and finished steps are committed with a transaction";
            return Err(StoreError::new(StoreErrorKind::NotApplied, what));
        }
    };
    Ok(Step { kind, ..step })
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
