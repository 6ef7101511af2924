//! The loops of reading, deciding and writing at a known revision.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use semel::record::{self, Change, Update};
use semel::store::{Claim, ClaimRequest, Entry, Fence, Fenced, Label, Result};
use semel::{
    Identity, IdentityDigest, Record, State, StateKind, StoreError, StoreErrorKind, Timestamp,
};
use tokio::time::Instant;

use super::NatsStore;
use super::effort::{Effort, contended};
use super::frame::{self, Meant, Row};
use super::link::{Put, Trouble, timestamp};
use super::seen::Left;
use crate::common::doubt::undoubted;

/// How often a read that must be stale is done again.
const STALE_READS: u32 = 4;

/// What is under a key.
enum Found {
    /// Nothing, or a mark of another program's that it was deleted (with its revision).
    Nothing(u64),
    Row(Box<Row>),
}

/// A write of one step.
struct Write<'a> {
    identity: &'a IdentityDigest,
    expected: u64,
    value: Bytes,
}

impl NatsStore {
    pub(super) fn effort(&self) -> Effort {
        Effort::new(self.shared.link.timeout())
    }

    /// Writes once. `None`: it may be stored.
    async fn put(&self, effort: &mut Effort, write: &Write<'_>) -> Result<Option<Put>> {
        self.fits(write.value.len()).map_err(|e| effort.failed(e))?;
        let link = &self.shared.link;
        let connected = link.connected(effort.until).await;
        connected.map_err(|e| effort.failed(e))?;
        let patience = effort.patience();
        let put = link.put(
            write.identity,
            write.expected,
            write.value.clone(),
            patience,
        );
        match put.await {
            Ok(put) => Ok(Some(put)),
            Err(Trouble::Silence(e)) => {
                effort.unheard(e);
                Ok(None)
            }
            Err(Trouble::Nobody(e)) => {
                // The bucket may have been made anew: its fences begin elsewhere then.
                self.shared.base_is_old();
                effort.pause(e).await?;
                Ok(Some(Put::Conflict))
            }
            Err(Trouble::Final(e)) => Err(effort.failed(e)),
        }
    }

    /// Whether the server takes a value of this length: nothing is sent where it does not.
    fn fits(&self, len: usize) -> Result<()> {
        // Subject, reply, headers and the protocol's own words count too.
        const ENVELOPE: usize = 512;
        let limit = self.shared.limit().saturating_sub(ENVELOPE);
        if len <= limit {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::TooLarge,
            format!(
                "the record has {len} bytes, this NATS server or bucket takes {limit}: raise \
                 max_payload, or keep less"
            ),
        ))
    }

    /// Reads until there is an answer, or the call's time is over.
    async fn read(&self, effort: &mut Effort, identity: &IdentityDigest) -> Result<Found> {
        let link = &self.shared.link;
        let read = link.ask(effort, |patience| link.read(identity, patience));
        self.found(identity, read.await?)
    }

    fn found(
        &self,
        identity: &IdentityDigest,
        message: Option<async_nats::jetstream::message::StreamMessage>,
    ) -> Result<Found> {
        let Some(message) = message else {
            return Ok(Found::Nothing(0));
        };
        let stored = timestamp(message.time);
        self.shared.clock.reached(stored);
        if message.headers.get("KV-Operation").is_some() {
            return Ok(Found::Nothing(message.sequence));
        }
        frame::decode(identity, message.sequence, stored, &message.payload)
            .map(|row| Found::Row(Box::new(row)))
    }

    /// The record as the protocol is to see it: its lease ends when this handle has seen it
    /// unchanged for as long, not when a clock says so. `None`: it is known to have changed since.
    fn judged(
        &self,
        identity: &IdentityDigest,
        row: &Row,
        now: Timestamp,
    ) -> Option<(Record, Left)> {
        let left = self.shared.seen.left(identity, row)?;
        let mut record = row.entry.record.clone();
        if record.state == State::InFlight {
            record.lease_until = now.after(left.longest);
        }
        Some((record, left))
    }

    /// What was read is behind: it is to be read again, a little later. A server that lost messages
    /// (a backup restored) stays behind, and is believed in the end.
    async fn behind(
        &self,
        effort: &mut Effort,
        stale: &mut u32,
        identity: &IdentityDigest,
    ) -> Result<()> {
        *stale += 1;
        if *stale > STALE_READS {
            self.shared.seen.unsee(identity);
        }
        effort.pause(contended()).await
    }

    /// The record itself, past its retention or not.
    pub(super) async fn row(&self, identity: &IdentityDigest) -> Result<Option<Box<Row>>> {
        let mut effort = self.effort();
        match self.read(&mut effort, identity).await? {
            Found::Nothing(_) => Ok(None),
            Found::Row(row) => {
                self.shared.seen.left(identity, &row);
                Ok(Some(row))
            }
        }
    }

    pub(super) async fn claim_step(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<Claim> {
        let digest = identity.digest();
        let mut effort = self.effort();
        // One that is new, as far as this handle knows, is made and looked for at the same time.
        // One that it has met is looked at first.
        let (mut early, mut stale) = (None, 0);
        if !self.shared.seen.knows(digest) {
            match self.create(&mut effort, identity, request).await? {
                (Some(claim), _) => return Ok(claim),
                (None, found) => early = found,
            }
        }
        loop {
            let found = match early.take() {
                Some(found) => found,
                None => self.read(&mut effort, digest).await?,
            };
            let row = match found {
                // Never taken as free: only the server's word for the write makes it ours.
                Found::Nothing(0) => {
                    effort.pause(contended()).await?;
                    match self.create(&mut effort, identity, request).await? {
                        (Some(claim), _) => return Ok(claim),
                        (None, found) => early = found,
                    }
                    continue;
                }
                Found::Nothing(revision) => Err(revision),
                Found::Row(row) => Ok(row),
            };
            let now = self.shared.now();
            let judged = match &row {
                Err(_) => None,
                Ok(row) => match self.judged(digest, row, now) {
                    Some((record, _)) => Some(record),
                    None => {
                        self.behind(&mut effort, &mut stale, digest).await?;
                        continue;
                    }
                },
            };
            let decision = record::claim(judged.as_ref(), request, now, Fence(0));
            let Some(mut next) = decision.write else {
                if let (Claim::Acquired(_), Ok(row)) = (&decision.claim, row) {
                    // Its own, sent again: the steps after it are this handle's.
                    self.shared.seen.remember(digest, *row);
                }
                return Ok(decision.claim);
            };
            let expected = row.as_ref().map_or_else(|mark| *mark, |row| row.revision);
            let took_over = next.token.nonce == request.nonce && next.state == State::InFlight;
            if took_over {
                let label = Label::from(identity);
                let put = self.acquire(&mut effort, label, request, next, expected);
                if let Some(claim) = put.await? {
                    return Ok(claim);
                }
            } else if let Ok(row) = row {
                // Found unknown: its lease ended when it ended.
                next.lease_until = row.entry.record.lease_until;
                if self
                    .write(&mut effort, digest, &row, next, row.lease)
                    .await?
                {
                    return Ok(decision.claim);
                }
            }
            effort.pause(contended()).await?;
        }
    }

    /// Claims an identity that nobody has, and reads it at the same time: where it is taken, the
    /// answer is there after one round trip. `None`: not acquired; with what was found.
    async fn create(
        &self,
        effort: &mut Effort,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<(Option<Claim>, Option<Found>)> {
        let digest = identity.digest();
        let now = self.shared.now();
        let Some(next) = record::claim(None, request, now, Fence(0)).write else {
            return Err(contended());
        };
        let mut reading = pin!(self.shared.link.read(digest, effort.patience()));
        let mut read = None;
        let acquired = {
            let mut writing = pin!(self.acquire(effort, Label::from(identity), request, next, 0));
            loop {
                tokio::select! {
                    biased;
                    acquired = &mut writing => break acquired?,
                    found = &mut reading, if read.is_none() => read = Some(found),
                }
            }
        };
        if acquired.is_some() {
            return Ok((acquired, None));
        }
        let read = match read {
            Some(read) => read,
            None => reading.await,
        };
        match read {
            // Sent before the write was refused, it may have come before the winner's record.
            Ok(None) | Err(_) => Ok((None, None)),
            Ok(message) => Ok((None, Some(self.found(digest, message)?))),
        }
    }

    /// Writes a claim. `None`: not stored, or not known to be.
    async fn acquire(
        &self,
        effort: &mut Effort,
        label: Label,
        request: &ClaimRequest,
        mut next: Record,
        expected: u64,
    ) -> Result<Option<Claim>> {
        let base = self.shared.base(effort).await?;
        next.token.fence = Fence(base);
        let digest = label.digest;
        let entry = Entry {
            label,
            record: next,
        };
        let write = Write {
            identity: &digest,
            expected,
            value: frame::encode(&entry, request.lease, Meant::WithSequence),
        };
        let sent = Instant::now();
        let Some(Put::Stored(revision)) = self.put(effort, &write).await? else {
            return Ok(None);
        };
        let mut row = Row {
            revision,
            stored: None,
            lease: request.lease,
            entry,
        };
        row.entry.record.token.fence = Fence(base.saturating_add(revision));
        let acquired = row.entry.record.acquired();
        self.shared.seen.wrote(&digest, row, sent);
        Ok(Some(Claim::Acquired(acquired)))
    }

    /// Writes a record at the row's revision. `false`: not stored, or not known to be.
    async fn replace(
        &self,
        effort: &mut Effort,
        identity: &IdentityDigest,
        row: &Row,
        mut entry: Entry,
        lease: Duration,
        meant: Meant,
    ) -> Result<bool> {
        let write = Write {
            identity,
            expected: row.revision,
            value: frame::encode(&entry, lease, meant),
        };
        let sent = Instant::now();
        let Some(Put::Stored(revision)) = self.put(effort, &write).await? else {
            self.shared.seen.forget(identity);
            return Ok(false);
        };
        if meant == Meant::WithSequence {
            let fence = &mut entry.record.token.fence;
            *fence = Fence(fence.0.saturating_add(revision));
        }
        if matches!(
            entry.record.state.kind(),
            StateKind::InFlight | StateKind::Unknown
        ) {
            let row = Row {
                revision,
                stored: None,
                lease,
                entry,
            };
            self.shared.seen.wrote(identity, row, sent);
        } else {
            self.shared.seen.settled(identity, revision, sent);
        }
        Ok(true)
    }

    /// A change of the record as this handle last wrote it, or as it is read.
    pub(super) async fn change_step(
        &self,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced> {
        // What a renewal asks for.
        let lease = match change {
            Change::Held(_, Update::Renew(lease)) => Some(*lease),
            _ => None,
        };
        let fence = change.fence();
        let mut effort = self.effort();
        let mut known = self.shared.seen.written(identity);
        let mut stale = 0;
        loop {
            let remembered = known.is_some();
            let row = match known.take() {
                Some(row) => Some(Box::new(row)),
                None => match self.read(&mut effort, identity).await? {
                    Found::Nothing(_) => None,
                    Found::Row(row) => Some(row),
                },
            };
            let now = self.shared.now();
            let judged = match &row {
                None => None,
                Some(row) => match self.judged(identity, row, now) {
                    Some(judged) => Some(judged),
                    None if remembered => continue,
                    None => {
                        self.behind(&mut effort, &mut stale, identity).await?;
                        continue;
                    }
                },
            };
            let record = judged.as_ref().map(|(record, _)| record);
            let decided = change.decide(record, now, Fence(0));
            let (row, left, next) = match (decided, row, judged) {
                (Ok(Some(next)), Some(row), Some((_, left)))
                    // A renewal that asks for less than is certainly left changes nothing.
                    if lease.is_none_or(|lease| lease > left.shortest) =>
                {
                    (row, left, next)
                }
                // What is refused, or done already, is never said by what is remembered.
                _ if remembered => continue,
                (Ok(_), ..) => return Ok(Fenced::Applied),
                (Err(refusal), row, _) => {
                    // A leader that is new may answer as of a moment ago. The fence tells: it holds
                    // the sequence of its claim.
                    let sequence = row.map_or(0, |row| row.revision);
                    if stale < STALE_READS && self.shared.issued_after(fence, sequence) {
                        stale += 1;
                        effort.pause(contended()).await?;
                        continue;
                    }
                    return undoubted(change, refusal.into(), effort.in_doubt());
                }
            };
            let mut next = next;
            let length = match lease {
                Some(lease) => lease.max(left.longest),
                None => {
                    // The judged end was made up for the decision.
                    next.lease_until = row.entry.record.lease_until;
                    // Other changes do not prolong it.
                    left.longest
                }
            };
            if self
                .write(&mut effort, identity, &row, next, length)
                .await?
            {
                return Ok(Fenced::Applied);
            }
            if !remembered {
                effort.pause(contended()).await?;
            }
        }
    }

    /// Writes what a step by a token makes of a row. `false`: not stored, or not known to be.
    async fn write(
        &self,
        effort: &mut Effort,
        identity: &IdentityDigest,
        row: &Row,
        mut next: Record,
        lease: Duration,
    ) -> Result<bool> {
        let mut meant = Meant::Said;
        if next.token != row.entry.record.token {
            // A resolution: its fence is its own message's.
            next.token.fence = Fence(self.shared.base(effort).await?);
            meant = Meant::WithSequence;
        }
        let entry = Entry {
            label: row.entry.label.clone(),
            record: next,
        };
        self.replace(effort, identity, row, entry, lease, meant)
            .await
    }
}
