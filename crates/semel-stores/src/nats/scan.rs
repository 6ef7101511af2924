//! Reading the bucket from a sequence on, in the order of the last change.
//!
//! A record that stands still keeps its sequence: reading on from the last one read meets it
//! exactly once. One that changes is met again at the end; its earlier messages stay where they are
//! until a purge removes them, and a listing leaves them out.

use std::collections::HashSet;
use std::sync::Arc;

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::consumer::{DeliverPolicy, PullConsumer};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use semel::store::{Cursor, Entry, ListQuery, Page, Result};
use semel::{IdentityDigest, State, StateKind, StoreError, StoreErrorKind, Timestamp};
use tokio::time::timeout;

use super::effort::Effort;
use super::frame::{self, Row};
use super::link::{Link, timestamp};
use super::shared::Shared;

/// Messages asked for at once.
const BATCH: usize = 256;
/// And their bytes, about.
const BATCH_BYTES: usize = 8 << 20;
/// Requests about single keys that are under way at the same time.
pub(super) const ABREAST: usize = 32;
/// Messages that one page looks at.
const PAGE: usize = 512;

/// A message of the bucket.
pub(super) struct Met {
    pub(super) identity: IdentityDigest,
    pub(super) sequence: u64,
    /// Which message of its key was the last when this one was stored; 0: there was none. `None`
    /// of what another program wrote without saying so.
    pub(super) replaces: Option<u64>,
    /// Its record, unless it is another program's mark that it deleted the key, or cannot be read.
    pub(super) row: Result<Option<Box<Row>>>,
}

/// Reads a stretch of the bucket.
pub(super) struct Scan<'a> {
    shared: &'a Shared,
    effort: Effort,
    consumer: Option<PullConsumer>,
    /// The next sequence to read.
    next: u64,
    /// The one before which reading ends.
    end: u64,
}

impl<'a> Scan<'a> {
    pub(super) fn new(shared: &'a Shared, effort: Effort, from: u64, end: u64) -> Self {
        Self {
            shared,
            effort,
            consumer: None,
            next: from.max(1),
            end,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.next >= self.end
    }

    /// Up to which sequence it has read.
    pub(super) fn reached(&self) -> u64 {
        self.next.min(self.end)
    }

    /// The next messages, in order. None only at the end.
    pub(super) async fn batch(&mut self) -> Result<Vec<Met>> {
        // Each batch has the time of a call.
        self.effort = Effort::new(self.shared.link.timeout);
        let mut met = Vec::new();
        if !self.is_over() {
            met = self.fetched().await?;
        }
        if met.len() < BATCH && !self.is_over() {
            // The node that serves the consumer may be behind: the leader knows the end.
            met.extend(self.following().await?);
        }
        if met.is_empty() && !self.is_over() {
            // Unless it stood still, and does not know that it is the leader no more.
            let info = self.shared.refresh(&mut self.effort).await?;
            if info.state.last_sequence + 1 < self.end {
                return Err(StoreError::new(
                    StoreErrorKind::NotApplied,
                    "the NATS bucket lacks what it had when this began: the node that answers for it is \
                     behind, or it was made anew",
                ));
            }
            match self.following().await? {
                Some(one) => met.push(one),
                None => self.next = self.end,
            }
        }
        met.retain(|met| met.sequence < self.end);
        Ok(met)
    }

    async fn fetched(&mut self) -> Result<Vec<Met>> {
        let consumer = match self.consumer.take() {
            Some(consumer) => consumer,
            None => {
                let from = DeliverPolicy::ByStartSequence {
                    start_sequence: self.next,
                };
                self.shared.consumer(&mut self.effort, from).await?
            }
        };
        let fetch = consumer.fetch().max_messages(BATCH).max_bytes(BATCH_BYTES);
        let mut met = Vec::new();
        let reading = async {
            let mut messages = fetch.messages().await.map_err(|_| ())?;
            while let Some(message) = messages.next().await {
                let message = message.map_err(|_| ())?;
                let info = message.info().map_err(|_| ())?;
                if info.stream_sequence < self.next {
                    continue;
                }
                // A consumer of a server that lost a message would skip it: the leader is asked.
                self.next = info.stream_sequence + 1;
                let stored = timestamp(info.published);
                met.extend(read(
                    &self.shared.link,
                    &message.subject,
                    info.stream_sequence,
                    stored,
                    message.headers.as_ref(),
                    &message.payload,
                ));
            }
            Ok::<(), ()>(())
        };
        // The leader is asked after it, where it takes too long.
        let done = timeout(self.shared.link.timeout / 3, reading).await;
        // After a fetch that broke off, another consumer goes on from what was read.
        if done == Ok(Ok(())) {
            self.consumer = Some(consumer);
        }
        Ok(met)
    }

    /// The next message, from the leader.
    async fn following(&mut self) -> Result<Option<Met>> {
        let link = &self.shared.link;
        let subjects = link.subjects();
        loop {
            let next = link.ask(&mut self.effort, |patience| {
                link.first(&subjects, self.next, patience)
            });
            let Some(message) = next.await? else {
                return Ok(None);
            };
            self.next = message.sequence + 1;
            let met = read(
                link,
                &message.subject,
                message.sequence,
                timestamp(message.time),
                Some(&message.headers),
                &message.payload,
            );
            if met.is_some() {
                return Ok(met);
            }
        }
    }

    /// Gives up the consumer.
    pub(super) async fn end(self) {
        if let Some(consumer) = &self.consumer {
            self.shared.drop_consumer(consumer).await;
        }
    }
}

fn read(
    link: &Link,
    subject: &str,
    sequence: u64,
    stored: Timestamp,
    headers: Option<&HeaderMap>,
    payload: &Bytes,
) -> Option<Met> {
    // A subject that is no digest is not ours.
    let identity = link.identity(subject)?;
    let replaces = headers.and_then(|said| said.get(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE));
    Some(Met {
        identity,
        sequence,
        replaces: replaces.and_then(|sequence| sequence.as_str().parse().ok()),
        row: frame::decode(&identity, sequence, stored, headers, payload),
    })
}

/// Whether operators see it as lapsed: by the server's time, the same in every process. No
/// decision is made by it.
fn looks_lapsed(row: &Row, now: Timestamp) -> bool {
    let lapses = row.stored.map(|stored| stored.after(row.lease));
    row.entry.record.state == State::InFlight && lapses.is_some_and(|lapses| now >= lapses)
}

impl Shared {
    pub(super) async fn page(self: &Arc<Self>, query: &ListQuery) -> Result<Page> {
        let (from, end) = match &query.after {
            // What changes later is not part of this listing: it would never end under load.
            None => {
                let info = self.refresh(&mut self.effort()).await?;
                (0, info.state.last_sequence + 1)
            }
            Some(cursor) => read_cursor(cursor)?,
        };
        let mut scan = Scan::new(self, self.effort(), from, end);
        let page = self.collect(query, &mut scan).await;
        scan.end().await;
        page
    }

    async fn collect(self: &Arc<Self>, query: &ListQuery, scan: &mut Scan<'_>) -> Result<Page> {
        let end = scan.end;
        let mut entries = Vec::new();
        let mut looked = 0;
        loop {
            let batch = scan.batch().await?;
            let over = scan.is_over();
            let now = self.now();
            let in_state = |row: &Row| {
                row.entry.record.state.kind() == query.state
                    && (!query.only_lapsed() || looks_lapsed(row, now))
            };
            let wanted = |row: &Row| in_state(row) && !row.entry.record.is_purgeable(now);
            let replaced: HashSet<u64> = batch.iter().filter_map(|met| met.replaces).collect();
            let mut found = Vec::new();
            for met in batch {
                looked += 1;
                if replaced.contains(&met.sequence) {
                    continue;
                }
                let Some(row) = met.row? else {
                    continue;
                };
                if row.entry.record.state.kind() == StateKind::InFlight {
                    self.seen.left(&row.entry.label.digest, &row);
                }
                // Whether its retention is over the latest says, which may have been extended.
                if in_state(&row) {
                    found.push(row);
                }
            }
            let latest = |row: Box<Row>| async move {
                let met = row.revision;
                self.as_it_is(row, end).await.map(|latest| (met, latest))
            };
            let mut found = stream::iter(found.into_iter().map(latest)).buffered(ABREAST);
            while let Some(found) = found.next().await {
                let (met, latest) = found?;
                let Some(row) = latest.filter(|row| wanted(row)) else {
                    continue;
                };
                entries.push(row.entry);
                if entries.len() >= query.limit.max(1) {
                    return Ok(page(entries, met + 1, end));
                }
            }
            if over {
                return Ok(Page {
                    entries,
                    next: None,
                });
            }
            if looked >= PAGE {
                return Ok(page(entries, scan.reached(), end));
            }
        }
    }

    /// The record of a message that was met, as it is now. `None` where it has another message before
    /// `end`: that one is met, too, unless a purge that meets a later one removes it before.
    async fn as_it_is(&self, met: Box<Row>, end: u64) -> Result<Option<Box<Row>>> {
        let identity = met.entry.label.digest;
        let Some(last) = self.row(&identity).await? else {
            return Ok(None);
        };
        if last.revision <= met.revision {
            return Ok(Some(met));
        }
        let (link, after) = (&self.link, met.revision + 1);
        let (subject, mut effort) = (link.subject(&identity), self.effort());
        let next = link.ask(&mut effort, |patience| {
            link.first(&subject, after, patience)
        });
        // There is none where the record was removed meanwhile.
        Ok(next
            .await?
            .filter(|next| next.sequence >= end)
            .map(|_| last))
    }
}

fn page(entries: Vec<Entry>, next: u64, end: u64) -> Page {
    let cursor = [next, end].map(u64::to_be_bytes);
    Page {
        entries,
        next: Some(Cursor(cursor.concat().into())),
    }
}

/// The next sequence, and the one at which the listing ends.
fn read_cursor(Cursor(bytes): &Cursor) -> Result<(u64, u64)> {
    match bytes.as_chunks::<8>() {
        ([next, end], []) => Ok((u64::from_be_bytes(*next), u64::from_be_bytes(*end))),
        _ => Err(StoreError::new(
            StoreErrorKind::Config,
            "the cursor is not this store's",
        )),
    }
}
