//! A step before it is sent, and the answer that comes back.

use semel::record::{self, Change};
use semel::store::{Acquired, Claim, ClaimRequest, Fence, Fenced, Result, Token};
use semel::{IdentityDigest, Timestamp};
use sqlx::mysql::MySqlRow;

use super::error::Effect;
use super::link::Done;
use super::row::Reader;
use super::sql::{Held, LANE_BITS, New, Table};
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
    /// What a claim's insert left: its time and lane.
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
    /// What a claim answers; `None`: it is to be made in full. A row that holds the claim's nonce was
    /// `written` by it just now where that is known, or else where it is as old as the insert.
    pub(super) fn claimed(&self, request: &ClaimRequest, written: bool) -> Result<Option<Claim>> {
        let Some(row) = self.rows.first() else {
            return Ok((self.wrote > 0).then(|| Claim::Acquired(self.inserted(request))));
        };
        let (now, record) = Reader::new(row).current()?;
        let mut decision = record::claim(Some(&record), request, now, Fence(0));
        if let Claim::Acquired(acquired) = &mut decision.claim {
            acquired.is_repeated = !written && record.claimed_at != time(self.left);
        }
        Ok(decision.write.is_none().then_some(decision.claim))
    }

    /// What [`Table::claim`] put, by what it left.
    fn inserted(&self, request: &ClaimRequest) -> Acquired {
        let since = time(self.left);
        let first = since.as_micros() >> LANE_BITS << LANE_BITS;
        let lane = self.left & !(u64::MAX << LANE_BITS);
        Acquired {
            token: Token {
                fence: Fence(first + lane),
                nonce: request.nonce,
            },
            attempt: 1,
            since,
            is_repeated: false,
        }
    }

    /// Why nothing was written, by the record that was read; `None` where it should have been.
    pub(super) fn judged(&self, change: &Change) -> Result<Option<Fenced>> {
        let found = self.rows.first().map(|row| Reader::new(row).current());
        let (now, record) = found.transpose()?.unzip();
        Ok(
            match change.decide(record.as_ref(), now.unwrap_or_default(), Fence(0)) {
                Err(refusal) => Some(refusal.into()),
                Ok(None) => Some(Fenced::Applied),
                Ok(Some(_)) => None,
            },
        )
    }
}

/// The time in what a claim's insert left.
const fn time(left: u64) -> Timestamp {
    Timestamp::from_micros(left >> LANE_BITS)
}
