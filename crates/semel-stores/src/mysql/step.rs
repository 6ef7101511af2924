//! A step before it is sent, and the answer that comes back.

use semel::store::{Fence, Result};
use semel::{IdentityDigest, State, Timestamp};
use sqlx::mysql::MySqlRow;

use super::error::Effect;
use super::link::Done;
use super::row::Reader;
use super::sql::{Held, LANE_BITS, New, Table};
use crate::common::exchange::{Reply, Request};
use crate::common::pool::Queued;

pub(super) enum Step {
    /// A claim that hopes for an identity without a record.
    Claim(New),
    /// A change by the attempt that holds the record's token.
    Change(Held),
    /// Any other packet; one that writes shares a transaction with nobody.
    Packet {
        digest: Option<IdentityDigest>,
        sql: String,
        effect: Effect,
        /// Not sent again where its answer was lost.
        once: bool,
    },
}

impl Step {
    pub(super) fn of(request: &Request<'_>, turn: u32, table: &Table) -> Self {
        match request {
            Request::Claim(identity, asked) => Self::Claim(New::of(identity, asked, turn)),
            Request::Update(digest, token, update) => {
                Self::Change(Held::new(digest, token, update))
            }
            Request::Read(digest) => Self::reads(table.read(digest)),
            Request::Replace(digest, replacement) => {
                Self::writes(digest, table.replace(digest, replacement))
            }
        }
    }

    pub(super) fn reads(sql: String) -> Self {
        Self::packet_of(None, sql, Effect::Reads)
    }

    pub(super) fn writes(digest: &IdentityDigest, sql: String) -> Self {
        Self::packet_of(Some(*digest), sql, Effect::Writes)
    }

    /// One that may not be the same step when it is sent again.
    pub(super) const fn once(sql: String) -> Self {
        Self::Packet {
            digest: None,
            sql,
            effect: Effect::Writes,
            once: true,
        }
    }

    const fn packet_of(digest: Option<IdentityDigest>, sql: String, effect: Effect) -> Self {
        Self::Packet {
            digest,
            sql,
            effect,
            once: false,
        }
    }

    /// Whether its first statement writes; that of a claim looks for a record.
    pub(super) const fn writes_at_once(&self) -> bool {
        matches!(
            self,
            Self::Packet {
                effect: Effect::Writes,
                ..
            }
        )
    }

    /// What is sent where it is sent alone.
    pub(super) fn packet(&self, table: &Table) -> String {
        match self {
            Self::Claim(new) => table.claim(new),
            Self::Change(held) => table.held(held),
            Self::Packet { sql, .. } => sql.clone(),
        }
    }
}

impl Queued for Step {
    fn digest(&self) -> Option<IdentityDigest> {
        match self {
            Self::Claim(new) => Some(new.digest),
            Self::Change(held) => Some(held.digest),
            Self::Packet { digest, .. } => *digest,
        }
    }

    fn inserts(&self) -> bool {
        matches!(self, Self::Claim(_))
    }

    fn alone(&self) -> bool {
        match self {
            Self::Claim(new) => new.is_endless(),
            Self::Change(_) => false,
            Self::Packet { .. } => !self.reads(),
        }
    }

    fn reads(&self) -> bool {
        matches!(
            self,
            Self::Packet {
                effect: Effect::Reads,
                ..
            }
        )
    }

    fn is_repeatable(&self) -> bool {
        !matches!(self, Self::Packet { once: true, .. })
    }

    fn size(&self) -> usize {
        match self {
            Self::Claim(new) => new.size(),
            Self::Change(held) => held.size(),
            Self::Packet { sql, .. } => sql.len(),
        }
    }
}

/// What came back for one step.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) rows: Vec<MySqlRow>,
    /// How many rows its last statement found to write.
    pub(super) wrote: u64,
    /// What a claim's insert left: its time and lane; another attempt's: its fence.
    pub(super) left: u64,
}

impl From<Vec<Done>> for Answer {
    fn from(all: Vec<Done>) -> Self {
        let last = all.last().map(|done| (done.found, done.left));
        let (wrote, left) = last.unwrap_or_default();
        let rows = all.into_iter().flat_map(|done| done.rows).collect();
        Self { rows, wrote, left }
    }
}

impl Answer {
    pub(super) fn reply(&self, request: &Request<'_>) -> Result<Reply> {
        let found = self.rows.first().map(|row| Reader::new(row).current());
        let found = found.transpose()?;
        let wrote = self.wrote > 0;
        Ok(match (request, found) {
            // A group reads what it has inserted.
            (Request::Claim(_, asked), Some((_, record)))
                if record.token.nonce == asked.nonce && record.claimed_at == time(self.left) =>
            {
                Reply::Inserted(record.token.fence, record.created_at)
            }
            (Request::Claim(..) | Request::Read(_), Some((now, record))) => {
                Reply::Found(now, Some(record))
            }
            (Request::Claim(..), None) if wrote => {
                let since = time(self.left);
                let first = since.as_micros() >> LANE_BITS << LANE_BITS;
                let lane = self.left & !(u64::MAX << LANE_BITS);
                Reply::Inserted(Fence(first + lane), since)
            }
            // The time decides nothing where there is no record.
            (Request::Read(_), None) => Reply::Found(Timestamp::default(), None),
            (Request::Update(_, token, _), _) if wrote => Reply::Wrote(token.fence),
            (Request::Replace(_, replacement), _) if wrote => {
                Reply::Wrote(match replacement.next.state {
                    State::InFlight => Fence(self.left),
                    // Nobody asks for it.
                    _ => replacement.seen.token.fence,
                })
            }
            _ => Reply::Missed,
        })
    }
}

/// The time in what a claim's insert left.
const fn time(left: u64) -> Timestamp {
    Timestamp::from_micros(left >> LANE_BITS)
}
