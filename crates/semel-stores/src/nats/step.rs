//! The loop of reading, deciding and writing at a known revision.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use semel::record::{self, Change, Update};
use semel::store::{Acquired, Claim, ClaimRequest, Entry, Fence, Fenced, Label, Result};
use semel::{Identity, IdentityDigest, Record, State, StoreError, Timestamp};

use super::effort::{Effort, contended, unsettled};
use super::frame::{self, Row};
use super::link::{Trouble, timestamp};
use super::shared::Shared;
use crate::common::doubt::undoubted;

/// How often a read that must be stale is done again.
const STALE_READS: u32 = 4;

/// What is left free in a message beside a record in flight.
const ROOM: usize = 256;

/// What is under a key.
struct Found {
    /// What the next write expects; 0: there was no message.
    revision: u64,
    /// `None`: nothing, or a mark of another program's that it was deleted.
    row: Option<Box<Row>>,
    /// As this handle wrote it, and not read since: nothing is answered by it alone.
    is_remembered: bool,
}

/// What a step makes of what it found.
struct Decided<T> {
    answer: T,
    /// What to write before that, and whose it is.
    write: Option<(Label, Record)>,
    /// How long the write holds the lease, at least; `None`: as long as it was.
    lease: Option<Duration>,
    /// Whether what was read may be older than what the caller knows.
    is_behind: bool,
}

impl Shared {
    pub(super) fn effort(&self) -> Effort {
        Effort::new(self.link.timeout)
    }

    pub(super) async fn claim(
        self: &Arc<Self>,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<Claim> {
        let digest = identity.digest();
        let mut effort = self.effort();
        // One that is new, as far as this handle knows, is made and looked for at the same time.
        // One that it has met is looked at first.
        let mut found = None;
        if !self.seen.knows(digest) {
            match self.create(&mut effort, identity, request).await? {
                Ok(claim) => return Ok(claim),
                Err(looked) => found = looked,
            }
        }
        let decide = |row: Option<&Row>, record: Option<&Record>, now| {
            let decision = record::claim(record, request, now, Fence(0));
            let acquires = matches!(decision.claim, Claim::Acquired(_));
            if let (true, None, Some(row)) = (acquires, &decision.write, row) {
                // Its own, sent again: the steps after it are this handle's.
                self.seen.remember(digest, row.clone());
            }
            Decided {
                answer: decision.claim,
                write: decision.write.map(|next| match row {
                    Some(row) if !acquires => amended(row, next, None),
                    _ => (Label::from(identity), next),
                }),
                lease: acquires.then_some(request.lease),
                is_behind: false,
            }
        };
        let (claim, stored) = self.pursue(&mut effort, digest, found, decide).await?;
        Ok(match (claim, stored) {
            (Claim::Acquired(_), Some(acquired)) => Claim::Acquired(acquired),
            (claim, _) => claim,
        })
    }

    /// Claims an identity that nobody has, and reads it at the same time: where it is taken, the
    /// answer is there after one round trip. `Err`: not acquired; with what was found.
    async fn create(
        self: &Arc<Self>,
        effort: &mut Effort,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<std::result::Result<Claim, Option<Found>>> {
        let digest = identity.digest();
        let decision = record::claim(None, request, self.now(), Fence(0));
        let next = decision.write.ok_or_else(contended)?;
        let reading = pin!(self.link.read(digest, effort.patience()));
        let label = Label::from(identity);
        let writing = pin!(self.write(effort, label, next, 0, None, request.lease));
        let (stored, read) = match select(writing, reading).await {
            Either::Left((stored, reading)) => match stored? {
                Ok(acquired) => (Some(acquired), Ok(None)),
                Err(_) => (None, reading.await),
            },
            Either::Right((read, writing)) => (writing.await?.ok(), read),
        };
        match (stored, read) {
            (Some(acquired), _) => Ok(Ok(Claim::Acquired(acquired))),
            // Sent before the write was refused, it may have come before the winner's record.
            (None, Ok(None) | Err(_)) => Ok(Err(None)),
            (None, Ok(message)) => Ok(Err(Some(self.found(digest, message)?))),
        }
    }

    /// A change of the record as this handle last wrote it, or as it is read.
    pub(super) async fn change(
        self: &Arc<Self>,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced> {
        let lease = match change {
            Change::Held(_, Update::Renew(lease)) => Some(*lease),
            _ => None,
        };
        let decide = |row: Option<&Row>, record: Option<&Record>, now: Timestamp| {
            let until = lease.map(|lease| now.after(lease));
            let (answer, next) = match change.decide(record, now, Fence(0)) {
                Err(refusal) => (refusal.into(), None),
                Ok(next) => (Fenced::Applied, next),
            };
            Decided {
                // A leader that is new may answer as of a moment ago. The fence tells: it holds the
                // sequence of its claim.
                is_behind: answer != Fenced::Applied
                    && self.issued_after(change.fence(), row.map_or(0, |row| row.revision)),
                lease,
                // Where there is none, all is refused.
                write: row.zip(next).map(|(row, next)| amended(row, next, until)),
                answer,
            }
        };
        let mut effort = self.effort();
        let remembered = self.seen.written(identity).map(|row| Found {
            revision: row.revision,
            row: Some(row),
            is_remembered: true,
        });
        let pursued = self.pursue(&mut effort, identity, remembered, decide);
        let (fenced, _) = pursued.await?;
        undoubted(change, fenced, effort.in_doubt())
    }

    /// The record itself, past its retention or not.
    pub(super) async fn row(&self, identity: &IdentityDigest) -> Result<Option<Box<Row>>> {
        let found = self.read(&mut self.effort(), identity).await?;
        if let Some(row) = &found.row {
            self.seen.left(identity, row);
        }
        Ok(found.row)
    }

    /// Decides what becomes of what was found, and writes that if nobody came in between; otherwise reads,
    /// and decides anew. With the answer: the attempt as it was written.
    async fn pursue<T>(
        self: &Arc<Self>,
        effort: &mut Effort,
        identity: &IdentityDigest,
        mut known: Option<Found>,
        decide: impl Fn(Option<&Row>, Option<&Record>, Timestamp) -> Decided<T>,
    ) -> Result<(T, Option<Acquired>)> {
        let mut stale = 0;
        loop {
            let found = match known.take() {
                Some(found) => found,
                None => self.read(effort, identity).await?,
            };
            let row = found.row.as_deref();
            let now = self.now();
            let left = match row {
                None => Some(Duration::ZERO),
                Some(row) => self.seen.left(identity, row),
            };
            let Some(left) = left else {
                // It is known to have changed since.
                if !found.is_remembered {
                    stale += 1;
                    // A server that lost messages (a backup restored) stays behind, and is believed in
                    // the end.
                    if stale > STALE_READS {
                        self.seen.unsee(identity);
                    }
                    effort.pause(unsettled()).await?;
                }
                continue;
            };
            let record = row.map(|row| judged(&row.entry.record, now, left));
            let decided = decide(row, record.as_ref(), now);
            let Some((label, next)) = decided.write else {
                if found.is_remembered {
                    continue;
                }
                if decided.is_behind && stale < STALE_READS {
                    stale += 1;
                    effort.pause(unsettled()).await?;
                    continue;
                }
                return Ok((decided.answer, None));
            };
            let lease = decided.lease.unwrap_or_default().max(left);
            let held = row.map(|row| &row.entry.record);
            let written = self.write(effort, label, next, found.revision, held, lease);
            match written.await? {
                Ok(acquired) => return Ok((decided.answer, Some(acquired))),
                // What is remembered may just be old: it is read at once.
                Err(_) if found.is_remembered => {}
                Err(why) => effort.pause(why).await?,
            }
        }
    }

    /// Reads until there is an answer, or the call's time is over.
    async fn read(&self, effort: &mut Effort, identity: &IdentityDigest) -> Result<Found> {
        let link = &self.link;
        let read = link.ask(effort, |patience| link.read(identity, patience));
        self.found(identity, read.await?)
    }

    fn found(
        &self,
        identity: &IdentityDigest,
        message: Option<async_nats::jetstream::message::StreamMessage>,
    ) -> Result<Found> {
        let mut found = Found {
            revision: 0,
            row: None,
            is_remembered: false,
        };
        if let Some(message) = message {
            let stored = timestamp(message.time);
            self.clock.reached(stored);
            found.revision = message.sequence;
            let (revision, headers) = (message.sequence, Some(&message.headers));
            found.row = frame::decode(identity, revision, stored, headers, &message.payload)?;
        }
        Ok(found)
    }

    /// Writes a record once, where the key's last message is `expected`. Gives its attempt as it is stored, or why it
    /// is not, or not known to be.
    ///
    /// `replaced`: the record before. The fence of another token is that of the message.
    async fn write(
        &self,
        effort: &mut Effort,
        label: Label,
        mut next: Record,
        expected: u64,
        replaced: Option<&Record>,
        lease: Duration,
    ) -> Result<std::result::Result<Acquired, StoreError>> {
        let is_new = replaced.is_none_or(|replaced| replaced.token != next.token);
        if is_new {
            next.token.fence = Fence(self.base(effort).await?);
        }
        let identity = label.digest;
        let mut entry = Entry {
            label,
            record: next,
        };
        let value = frame::encode(&entry, lease, is_new);
        let link = &self.link;
        // An attempt that is held is to be held on, and marked: later values are a little longer.
        let grows =
            is_new || replaced.is_some_and(|before| before.progress != entry.record.progress);
        if grows && entry.record.state == State::InFlight && value.len() + ROOM > link.most() {
            return Err(effort.failed(link.too_large()));
        }
        let connected = link.connected(effort.until).await;
        connected.map_err(|e| effort.failed(e))?;
        let put = link.put(&identity, expected, value, effort.patience());
        let revision = match put.await {
            Ok(Some(revision)) => revision,
            Ok(None) => return Ok(Err(contended())),
            Err(Trouble::Silence(e)) => {
                let silence = StoreError::new(e.kind(), e.to_string());
                effort.unheard(e);
                return Ok(Err(silence));
            }
            Err(Trouble::Nobody(e)) => {
                // The bucket may have been made anew: its fences begin elsewhere then.
                self.base_is_old();
                return Ok(Err(e));
            }
            Err(Trouble::Final(e)) => return Err(effort.failed(e)),
        };
        let record = &mut entry.record;
        if is_new {
            record.token.fence = Fence(record.token.fence.0.saturating_add(revision));
        }
        let acquired = record.acquired();
        let row = Row {
            revision,
            stored: None,
            lease,
            entry,
        };
        self.seen.wrote(&identity, row);
        Ok(Ok(acquired))
    }
}

/// The record as the protocol is to see it: its lease ends when this handle has seen it unchanged for
/// as long, not when a clock says so.
fn judged(record: &Record, now: Timestamp, left: Duration) -> Record {
    let mut judged = record.clone();
    if judged.state == State::InFlight {
        judged.lease_until = now.after(left);
    }
    judged
}

/// A record in a row's place, by another step than a claim. Its lease ends when it did, or where a renewal says
/// so, at `until`: the judged end was made up for the decision.
fn amended(row: &Row, next: Record, until: Option<Timestamp>) -> (Label, Record) {
    let before = row.entry.record.lease_until;
    let next = Record {
        lease_until: until.map_or(before, |until| until.max(before)),
        ..next
    };
    (row.entry.label.clone(), next)
}
