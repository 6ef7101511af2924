//! Walking over all records: for listings, and for clearing.
//!
//! Redis has no order of keys, and an index would be a second key, which a script in a Cluster could not
//! write together with the record. So a page is made of the smallest digests after the cursor, found by a
//! whole `SCAN`: each key that stands throughout is seen by it at least once, sorting drops what is seen
//! twice, and the next page begins after the last digest of this one. A record that stands still is
//! therefore on exactly one page. The price is that each page reads all keys of the database (by steps of
//! 1,000, so that other callers are not held up).

use std::collections::BTreeSet;
use std::sync::Arc;

use redis::{Pipeline, Value};
use semel::record::StateKind;
use semel::store::{Cursor, Entry, ListQuery, Page, Result};
use semel::{IdentityDigest, StoreError, StoreErrorKind, Timestamp};
use tokio::task::JoinSet;

use super::Inner;
use super::row::{corrupt, parse_at};
use super::wire::Node;

/// Keys that the server looks at in one go.
const STEP: usize = 1_000;

/// No page is longer: a store may answer fewer than were asked for.
const LONGEST: usize = 1_000;

/// Records that are read at once.
const READERS: usize = 32;

impl Inner {
    pub(super) async fn list(self: &Arc<Self>, query: &ListQuery) -> Result<Page> {
        let after = match &query.after {
            None => None,
            Some(Cursor(bytes)) => Some(IdentityDigest::from_bytes((**bytes).try_into().map_err(
                |_| {
                    StoreError::new(
                        StoreErrorKind::Config,
                        "the cursor is not one of this store",
                    )
                },
            )?)),
        };
        let limit = query.limit.clamp(1, LONGEST);
        let mut smallest: BTreeSet<IdentityDigest> = BTreeSet::new();
        for node in self.nodes().await? {
            let mut scan = Scan::of(node);
            while let Some(mut digests) = scan.next(self).await? {
                // What cannot be on this page need not be read.
                let full = smallest.len() == limit;
                let last = smallest.last().copied().filter(|_| full);
                digests.retain(|digest| {
                    after.is_none_or(|after| *digest > after)
                        && last.is_none_or(|last| *digest < last)
                });
                for digest in self.matching(scan.node(), digests, query).await? {
                    smallest.insert(digest);
                    if smallest.len() > limit {
                        smallest.pop_last();
                    }
                }
            }
        }
        let next = (smallest.len() == limit)
            .then(|| smallest.last())
            .flatten()
            .map(|last| Cursor(last.as_bytes().as_slice().into()));
        let mut entries = self.read_all(smallest).await?;
        // What changed meanwhile is listed elsewhere, or no longer.
        entries.retain(|entry| entry.record.state.kind() == query.state);
        Ok(Page { entries, next })
    }

    /// Which of these records the query wants.
    async fn matching(
        &self,
        node: &Node,
        digests: Vec<IdentityDigest>,
        query: &ListQuery,
    ) -> Result<Vec<IdentityDigest>> {
        if digests.is_empty() {
            return Ok(Vec::new());
        }
        let mut reads = Pipeline::with_capacity(digests.len() + 1);
        reads.cmd("TIME");
        for digest in &digests {
            let key = self.key(digest);
            reads.cmd("HMGET").arg(key).arg("state").arg("at");
        }
        let mut answers = self.link.pipeline(&reads, node).await?.into_iter();
        let now = answers.next().and_then(time);
        let now = now.ok_or_else(|| corrupt("TIME answered no time"))?;
        let mut wanted = Vec::new();
        for (digest, answer) in digests.into_iter().zip(answers) {
            // Gone, moved to another node, or not a record: not here.
            let Ok((state, at)) = redis::from_redis_value::<(String, String)>(answer) else {
                continue;
            };
            let [_, _, _, lease, _, _, purge] = parse_at(&at)?.map(Timestamp::from_micros);
            let lapsed = state == StateKind::InFlight.as_str() && now >= lease;
            let hidden = query.lapsed && query.state == StateKind::InFlight && !lapsed;
            if state == query.state.as_str() && now < purge && !hidden {
                wanted.push(digest);
            }
        }
        Ok(wanted)
    }

    /// Reads records, in the order of their digests.
    async fn read_all(self: &Arc<Self>, digests: BTreeSet<IdentityDigest>) -> Result<Vec<Entry>> {
        let mut digests = digests.into_iter();
        let mut reading = JoinSet::new();
        let mut entries = Vec::new();
        loop {
            while reading.len() < READERS
                && let Some(digest) = digests.next()
            {
                let inner = self.clone();
                reading.spawn(async move { inner.get(&digest).await });
            }
            match reading.join_next().await {
                None => break,
                Some(Ok(entry)) => entries.extend(entry?),
                Some(Err(_)) => {
                    let message = "reading a record was stopped";
                    return Err(StoreError::new(StoreErrorKind::NotApplied, message));
                }
            }
        }
        entries.sort_unstable_by_key(|entry| entry.label.digest);
        Ok(entries)
    }

    /// Removes every key of the prefix that names a record.
    pub(super) async fn clear(&self) -> Result<()> {
        for node in self.nodes().await? {
            let mut scan = Scan::of(node);
            while let Some(digests) = scan.next(self).await? {
                if digests.is_empty() {
                    continue;
                }
                let mut removals = Pipeline::with_capacity(digests.len());
                for digest in &digests {
                    removals.cmd("UNLINK").arg(self.key(digest));
                }
                for answer in self.link.pipeline(&removals, scan.node()).await? {
                    answer
                        .extract_error()
                        .map_err(|e| super::error::sent(e, super::error::Effect::Read, false))?;
                }
            }
        }
        Ok(())
    }

    /// The servers that hold records: one, or the masters of a Cluster.
    pub(super) async fn nodes(&self) -> Result<Vec<Node>> {
        if !self.link.target().is_cluster() {
            return Ok(vec![None]);
        }
        let mut slots = Pipeline::new();
        slots.cmd("CLUSTER").arg("SLOTS");
        let answer = self.link.pipeline(&slots, &None).await?.pop();
        let slots: Vec<Vec<Value>> = answer
            .and_then(|answer| redis::from_redis_value(answer).ok())
            .ok_or_else(|| corrupt("CLUSTER SLOTS answered no slots"))?;
        let masters: BTreeSet<(String, u16)> = slots
            .into_iter()
            .filter_map(|range| {
                // First slot, last slot, master, replicas.
                let master = range.into_iter().nth(2)?.into_sequence().ok()?;
                let mut parts = master.into_iter();
                let host = redis::from_redis_value(parts.next()?).ok()?;
                let port = redis::from_redis_value(parts.next()?).ok()?;
                Some((host, port))
            })
            .collect();
        Ok(masters.into_iter().map(Some).collect())
    }
}

fn time(answer: Value) -> Option<Timestamp> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(answer).ok()?;
    Some(Timestamp::from_micros(seconds * 1_000_000 + micros))
}

/// A walk over the keys of one server.
struct Scan {
    node: Node,
    // `None` at the end.
    cursor: Option<u64>,
}

impl Scan {
    const fn of(node: Node) -> Self {
        Self {
            node,
            cursor: Some(0),
        }
    }

    const fn node(&self) -> &Node {
        &self.node
    }

    /// The digests of the next step, which may be none; `None` at the end.
    async fn next(&mut self, inner: &Inner) -> Result<Option<Vec<IdentityDigest>>> {
        let Some(cursor) = self.cursor else {
            return Ok(None);
        };
        let mut scan = Pipeline::new();
        // No character of a prefix means anything in a pattern.
        let pattern = format!("{}*", inner.options.prefix);
        let step = scan.cmd("SCAN").arg(cursor).arg("MATCH").arg(pattern);
        step.arg("COUNT").arg(STEP);
        let answer = inner.link.pipeline(&scan, &self.node).await?.pop();
        let answer = answer.unwrap_or_default().extract_error();
        let answer =
            answer.map_err(|e| super::error::sent(e, super::error::Effect::Read, false))?;
        let (cursor, keys): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(answer).map_err(|_| corrupt("SCAN answered no keys"))?;
        self.cursor = Some(cursor).filter(|cursor| *cursor != 0);
        let digest = |key: &Vec<u8>| {
            let hex = key.strip_prefix(inner.options.prefix.as_bytes())?;
            IdentityDigest::from_hex(std::str::from_utf8(hex).ok()?)
        };
        Ok(Some(keys.iter().filter_map(digest).collect()))
    }
}
