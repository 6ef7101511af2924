//! Stores on a server and on disk, each beside what its server does without us, in the same run:
//! the same number of callers, the same durability, rows of about the same size.
//!
//! A step is one durable write, as is a row inserted in a transaction of its own or a `SET`.

mod mariadb;
pub(crate) mod postgres;
mod purge;
mod redis;
mod sqlite;
mod wake;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use semel::store::{Claim, Fenced, Retention, StoreExt as _, Token};
use semel::{AnyStore, Fingerprint, Store as _};
use semel_bench_report::{Goal, Measurement};
use semel_stores::{OpenOptions, Schema};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Runtime;

use crate::callers::rate;
use crate::inputs::{identity, outcome, request};
use crate::reference::group::Group;
use crate::run::{Run, progress};

const CALLERS: [(&str, usize); 2] = [("1-caller", 1), ("64-callers", 64)];
const STEPS_PER_PAIR: f64 = 2.0;
/// About what a completed record takes, key and names and times included.
const ROW_BYTES: usize = 400;

pub(crate) fn measure(run: &Run) -> Result<()> {
    redis::measure(run)?;
    postgres::measure(run)?;
    sqlite::measure(run)?;
    mariadb::measure(run)?;
    wake::measure(run)?;
    purge::measure(run)
}

/// Opens a store, and makes its tables.
pub(crate) async fn open(url: &str) -> Result<AnyStore> {
    let mut options = OpenOptions::default();
    options.schema = Schema::Create;
    Ok(semel_stores::open(url, &options).await?)
}

/// Claims a new identity and completes it.
pub(crate) async fn pair(store: &AnyStore, index: usize, retention: Retention) -> Result<()> {
    let token = claim(store, index).await?;
    complete(store, index, &token, retention).await
}

/// Claims a new identity.
pub(crate) async fn claim(store: &AnyStore, index: usize) -> Result<Token> {
    let request = request(Fingerprint::of(b"an order"));
    match store.claim(&identity(index), &request).await? {
        Claim::Acquired(acquired) => Ok(acquired.token),
        other => bail!("the key of pair {index} is not free: {other:?}"),
    }
}

pub(crate) async fn complete(
    store: &AnyStore,
    index: usize,
    token: &Token,
    retention: Retention,
) -> Result<()> {
    let (identity, outcome) = (identity(index), outcome(index));
    let done = store.complete(identity.digest(), token, &outcome, retention);
    ensure!(
        done.await? == Fenced::Applied,
        "pair {index} is not completed"
    );
    Ok(())
}

/// A key as random as a digest, so that an index is met in no order, and a body.
fn row(index: usize) -> ([u8; 32], Vec<u8>) {
    let key = Sha256::digest(index.to_be_bytes());
    (key.into(), vec![b'a'; ROW_BYTES - 32])
}

/// What a server does without us: rows written a second by so many callers.
struct Reference<'a> {
    /// The end of the measurement's name.
    name: &'static str,
    what: &'static str,
    /// Commits what waits together, as we do: says something with many callers only.
    groups: bool,
    goals: [Option<f64>; 2],
    rate: Box<dyn FnMut(usize, Duration) -> Result<f64> + 'a>,
}

impl<'a> Reference<'a> {
    /// Callers whose rows one writer commits together.
    fn group_commit(what: &'static str, writer: Group<usize>, runtime: &'a Runtime) -> Self {
        let (writer, mut next) = (Arc::new(writer), 0);
        Self {
            name: "group-commit",
            what,
            groups: true,
            goals: [None; 2],
            rate: Box::new(move |callers, time| {
                let writer = Arc::clone(&writer);
                let work = move |_, index| {
                    let writer = Arc::clone(&writer);
                    async move {
                        ensure!(writer.step(index).await, "a row was not inserted");
                        Ok(())
                    }
                };
                runtime.block_on(rate(callers, time, &mut next, work))
            }),
        }
    }
}

/// Measures a store and its references in turn, with one caller and with many.
fn compare(run: &Run, store: &str, url: &str, references: &mut [Reference<'_>]) -> Result<()> {
    let runtime = semel_bench_load::workers();
    let opened = runtime.block_on(open(url))?;
    let mut next = 0;
    for (at, (callers_name, callers)) in CALLERS.into_iter().enumerate() {
        let name = |reference: &Reference<'_>| {
            format!(
                "stores/{store}/steps/{callers_name}/beside-{}",
                reference.name
            )
        };
        let mut wanted: Vec<_> = references
            .iter_mut()
            .filter(|reference| callers > 1 || !reference.groups)
            .filter(|reference| run.wants(&name(reference)))
            .map(|reference| (reference, Vec::new()))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let mut ours = Vec::new();
        for round in 1..=run.rounds() {
            progress(format_args!(
                "stores/{store}/steps/{callers_name}: round {round}"
            ));
            for (reference, rates) in &mut wanted {
                rates.push((reference.rate)(callers, run.turn())?);
            }
            let pairs = rate(callers, run.turn(), &mut next, {
                let store = opened.clone();
                move |_, index| {
                    let store = store.clone();
                    async move { pair(&store, index, Retention::ORDER).await }
                }
            });
            ours.push(runtime.block_on(pairs)? * STEPS_PER_PAIR);
        }
        for (reference, rates) in wanted {
            Measurement::new(&name(reference), "steps/s", ours.clone())
                .against(reference.what, &rates)
                .goal(reference.goals[at].map(Goal::RatioAtLeast))
                .print();
        }
    }
    runtime.block_on(opened.close())?;
    Ok(())
}

/// A number that follows `label` in what a program printed.
pub(crate) fn number_after(printed: &str, label: &str) -> Option<f64> {
    let (_, rest) = printed.split_once(label)?;
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let rest = rest.trim_start_matches(|c| !digits(c));
    rest[..rest.find(|c| !digits(c)).unwrap_or(rest.len())]
        .parse()
        .ok()
}
