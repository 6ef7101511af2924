//! Walking over all records: for listings, and for clearing.
//!
//! Redis has no order of keys, and an index would be a second key, which a script in a Cluster could not
//! write together with the record. So `SCAN` finds them, in one of two ways:
//!
//! *Few keys* ([`FEW`] of the database, whoever's): a page is made of the smallest digests after the cursor,
//! found by a whole `SCAN`. Each key that stands throughout is seen by it at least once, sorting drops what is
//! seen twice, and the next page begins after the last digest of this one: a record that stands still is on
//! exactly one page.
//!
//! *Many keys*: a page looks at about [`PAGE`] of them, shows what it finds, and the next one goes on
//! from there ([`Place`]), so that a page takes as long with a million records as with ten thousand. `SCAN`
//! still misses no key that stands; where Redis makes its table smaller meanwhile (most keys were
//! removed), a record may be on two pages. A server that was started anew, or became the master, has another
//! order: the cursors of before are refused.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use redis::{Pipeline, Value};
use semel::record::StateKind;
use semel::store::{Cursor, Entry, ListQuery, Page, Result};
use semel::{IdentityDigest, StoreError, StoreErrorKind, Timestamp};

use super::Inner;
use super::error::{Effect, sent};
use super::value::{HEAD, Head, corrupt};
use super::wire::Node;

/// Keys that the server looks at in one go.
const STEP: usize = 1_000;

/// No page is longer: a store may answer fewer than were asked for.
const LONGEST: usize = 1_000;

/// Up to so many keys are all looked at for each page.
const FEW: u64 = 10_000;

/// About so many a page looks at where there are more.
const PAGE: usize = 1_000;

/// Records that are read at once.
const READERS: usize = 32;

/// Where a page among many keys begins. The positions of `SCAN` are in the order of a hash of the keys,
/// which grows from one position to the next, whatever the size of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// Which of the servers, in the order of their names.
    nth: u16,
    /// And which run of it, by its digits: each has an order of its own.
    run: [u8; 40],
    cursor: u64,
    /// Of a step that had more than fit on the page: where it ended, and what was shown of it.
    shown: Option<(u64, IdentityDigest)>,
}

impl Place {
    fn to_bytes(self) -> Box<[u8]> {
        let mut bytes = Vec::with_capacity(90);
        bytes.extend_from_slice(&self.nth.to_be_bytes());
        bytes.extend_from_slice(&self.run);
        bytes.extend_from_slice(&self.cursor.to_be_bytes());
        if let Some((end, last)) = self.shown {
            bytes.extend_from_slice(&end.to_be_bytes());
            bytes.extend_from_slice(last.as_bytes());
        }
        bytes.into()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (nth, rest) = bytes.split_first_chunk()?;
        let (run, rest) = rest.split_first_chunk()?;
        let (cursor, rest) = rest.split_first_chunk()?;
        let shown = match rest.split_first_chunk() {
            None => rest.is_empty().then_some(None)?,
            Some((end, last)) => {
                let last = IdentityDigest::from_bytes(last.try_into().ok()?);
                Some((u64::from_be_bytes(*end), last))
            }
        };
        Some(Self {
            nth: u16::from_be_bytes(*nth),
            run: *run,
            cursor: u64::from_be_bytes(*cursor),
            shown,
        })
    }
}

impl Inner {
    pub(super) async fn list(&self, query: &ListQuery) -> Result<Page> {
        let Some(Cursor(bytes)) = &query.after else {
            let mut keys = 0_u64;
            for node in self.nodes().await? {
                keys = keys.saturating_add(self.keys(&node).await?);
            }
            return match keys <= FEW {
                true => self.list_few(query, None).await,
                false => self.list_many(query, None).await,
            };
        };
        if let Ok(digest) = <[u8; 32]>::try_from(&**bytes) {
            let after = IdentityDigest::from_bytes(digest);
            return self.list_few(query, Some(after)).await;
        }
        let place = Place::from_bytes(bytes).ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Config,
                "the cursor is not one of this store",
            )
        })?;
        self.list_many(query, Some(place)).await
    }

    async fn list_many(&self, query: &ListQuery, from: Option<Place>) -> Result<Page> {
        let limit = query.limit.clamp(1, LONGEST);
        let nodes = self.nodes().await?;
        let (mut looked_at, mut found) = (0, BTreeSet::new());
        let mut next = None;
        let first = from.map_or(0, |from| usize::from(from.nth));
        'nodes: for (nth, node) in nodes.iter().enumerate().skip(first) {
            let run = self.run_of(node).await?;
            let nth = u16::try_from(nth).unwrap_or(u16::MAX);
            let place = |cursor, shown| Place {
                nth,
                run,
                cursor,
                shown,
            };
            let from = from.filter(|from| from.nth == nth);
            if from.is_some_and(|from| from.run != run) {
                let why =
                    "the server was started anew since the page before, or is another: begin again";
                return Err(StoreError::new(StoreErrorKind::Config, why));
            }
            let mut scan = Scan {
                node: node.clone(),
                cursor: Some(from.map_or(0, |from| from.cursor)),
                step: limit.clamp(100, STEP),
            };
            let mut shown = from.and_then(|from| from.shown);
            while let Some(cursor) = scan.cursor {
                if looked_at >= PAGE || found.len() == limit {
                    next = Some(place(cursor, shown));
                    break 'nodes;
                }
                let Some(digests) = scan.next(self).await? else {
                    break;
                };
                // Others' keys are looked at too.
                looked_at += digests.len().max(scan.step);
                let end = scan.cursor.unwrap_or_default();
                // Of the same stretch as before, what was not shown; of another, all.
                let after = shown.take().filter(|(before, _)| *before == end);
                let digests: BTreeSet<_> = digests
                    .into_iter()
                    .filter(|digest| after.is_none_or(|(_, last)| *digest > last))
                    .collect();
                let digests = digests.into_iter().collect();
                let mut wanted = self.matching(&scan.node, digests, query).await?;
                wanted.retain(|digest| !found.contains(digest));
                let room = limit - found.len();
                if wanted.len() > room {
                    wanted.truncate(room);
                    let last = wanted.last().copied();
                    found.extend(wanted);
                    next = last.map(|last| place(cursor, Some((end, last))));
                    break 'nodes;
                }
                found.extend(wanted);
            }
        }
        let next = next.map(|place| Cursor(place.to_bytes()));
        let entries = self.entries(found, query).await?;
        Ok(Page { entries, next })
    }

    async fn list_few(&self, query: &ListQuery, after: Option<IdentityDigest>) -> Result<Page> {
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
                for digest in self.matching(&scan.node, digests, query).await? {
                    smallest.insert(digest);
                    if smallest.len() > limit {
                        smallest.pop_last();
                    }
                }
            }
        }
        let last = smallest.last().filter(|_| smallest.len() == limit);
        let next = last.map(|last| Cursor(last.as_bytes().as_slice().into()));
        let entries = self.entries(smallest, query).await?;
        Ok(Page { entries, next })
    }

    /// The records of these names, in their order; but for what changed meanwhile: it is listed elsewhere, or
    /// no longer.
    async fn entries(
        &self,
        digests: BTreeSet<IdentityDigest>,
        query: &ListQuery,
    ) -> Result<Vec<Entry>> {
        let read = |digest| async move { self.get(&digest).await };
        let read = stream::iter(digests).map(read).buffered(READERS);
        let entries: Vec<Option<Entry>> = read.try_collect().await?;
        let entries = entries.into_iter().flatten();
        Ok(entries
            .filter(|entry| entry.record.state.kind() == query.state)
            .collect())
    }

    /// How many keys a server has, whoever's; many, where it does not tell this user.
    async fn keys(&self, node: &Node) -> Result<u64> {
        let answer = self.link.command(redis::cmd("DBSIZE"), node).await?;
        let keys = answer.and_then(|keys| Ok(redis::from_redis_value(keys)?));
        Ok(keys.unwrap_or(FEW + 1))
    }

    /// Which run of a server this is.
    async fn run_of(&self, node: &Node) -> Result<[u8; 40]> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let answer = self.link.command(info, node).await?;
        let text: Option<String> = answer
            .ok()
            .and_then(|text| redis::from_redis_value(text).ok());
        let run = text.as_deref().and_then(|text| {
            let run = text.lines().find_map(|line| line.strip_prefix("run_id:"))?;
            run.trim().as_bytes().try_into().ok()
        });
        run.ok_or_else(|| corrupt("INFO answered no run_id"))
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
            reads.cmd("GETRANGE").arg(key).arg(0).arg(HEAD - 1);
        }
        let mut answers = self.link.pipeline(&reads, node).await?.into_iter();
        let now = answers.next().and_then(time);
        let now = now.ok_or_else(|| corrupt("TIME answered no time"))?;
        let mut wanted = Vec::new();
        for (digest, answer) in digests.into_iter().zip(answers) {
            let head = match answer.extract_error() {
                Ok(Value::BulkString(head)) if !head.is_empty() => Head::of(&head, &digest)?,
                // A hash, as older versions wrote.
                Err(error) if error.code() == Some("WRONGTYPE") => {
                    return Err(
                        corrupt(format!("the key of {digest} holds no string")).with_source(error)
                    );
                }
                // Gone, or moved to another node.
                _ => continue,
            };
            let lapsed = head.state == StateKind::InFlight && now >= head.lease_until;
            let hidden = query.only_lapsed() && !lapsed;
            if head.state == query.state && now < head.purge_at && !hidden {
                wanted.push(digest);
            }
        }
        Ok(wanted)
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
                for answer in self.link.pipeline(&removals, &scan.node).await? {
                    answer
                        .extract_error()
                        .map_err(|e| sent(e, Effect::Read, false))?;
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
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let answer = self.link.command(slots, &None).await?.ok();
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
    /// Keys that the server looks at in one go.
    step: usize,
}

impl Scan {
    const fn of(node: Node) -> Self {
        Self {
            node,
            cursor: Some(0),
            step: STEP,
        }
    }

    /// The digests of the next step, which may be none; `None` at the end.
    async fn next(&mut self, inner: &Inner) -> Result<Option<Vec<IdentityDigest>>> {
        let Some(cursor) = self.cursor else {
            return Ok(None);
        };
        let mut scan = redis::cmd("SCAN");
        // No character of a prefix means anything in a pattern.
        let pattern = format!("{}*", inner.options.prefix);
        scan.arg(cursor).arg("MATCH").arg(pattern);
        scan.arg("COUNT").arg(self.step);
        let answer = inner.link.command(scan, &self.node).await?;
        let answer = answer.map_err(|e| sent(e, Effect::Read, false))?;
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
