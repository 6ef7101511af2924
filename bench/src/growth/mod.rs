//! What a store costs as its records grow, and as more processes share it.
//!
//! Not part of `all`: ten million records take longer to make than everything else to measure.

mod copies;
mod file;
mod postgres;
mod redis;
mod shared;
mod sqlite;
mod turn;
mod usage;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use anyhow::{Result, ensure};
use semel::{AnyStore, Store as _};
use semel_bench_load::workers;
use semel_bench_report::{Goal, Measurement};
use tokio::runtime::Runtime;

use crate::disk;
use crate::inputs::identity;
use crate::run::{Run, progress};
use crate::stores::{self, open};
pub(crate) use shared::{PEER, peer};
use turn::{Work, turn};
use usage::Usage;

const SIZES: [usize; 3] = [10_000, 1_000_000, 10_000_000];
const QUICK_SIZES: [usize; 3] = [1_000, 10_000, 100_000];
const MANY: usize = 64;
/// So few that a step waits for the disk and not for other callers.
const FEW: usize = 4;
/// How many copies are replayed before anything is measured.
const CHECKED: usize = 1_000;

/// What is measured, in which unit, and what larger sizes should reach beside the smallest.
type Row = (&'static str, &'static str, Option<Goal>);

const RATE: Option<Goal> = Some(Goal::RatioAtLeast(0.8));

const ROWS: [Row; 8] = [
    ("steps", "steps/s", RATE),
    ("replays", "replays/s", RATE),
    ("p50", "ms", None),
    ("p99", "ms", None),
    ("processor-time", "µs a step", None),
    ("written", "bytes a step", None),
    ("bytes-per-record", "bytes", None),
    ("start-up", "ms", None),
];

/// The values of each row, a round each.
type Measured = BTreeMap<&'static str, Vec<f64>>;

/// Where there is a store for each size.
trait Place {
    fn url(&self, records: usize) -> String;

    /// Makes as many records of the first, which is there and completed. Says what a record takes, in bytes.
    fn fill(&self, records: usize) -> Result<f64>;

    /// The process that works and writes for the store.
    fn process(&self) -> u32;
}

type Start = fn() -> Result<Box<dyn Place>>;

const STORES: [(&str, Start); 4] = [
    ("file", file::start),
    ("sqlite", sqlite::start),
    ("postgres", postgres::start),
    ("redis", redis::start),
];

pub(crate) fn measure(run: &Run) -> Result<()> {
    let device = |folder| anyhow::Ok(std::fs::metadata(folder)?.dev());
    ensure!(
        device(disk::directory()?.path())? == device(&std::env::temp_dir())?,
        "servers would have their data on another disk than files: set TMPDIR"
    );
    let sizes = match run.quick {
        true => QUICK_SIZES,
        false => SIZES,
    };
    for (store, start) in STORES {
        let labels = sizes.map(label);
        if wants(run, store, &labels, &ROWS) {
            let measured = sizes_of(run, store, &*start()?, sizes)?;
            print(run, store, &labels, &ROWS, measured);
        }
    }
    shared::measure(run)
}

/// Rows are named by topic, store, size or number of processes, and what was measured: the tables are made of that.
fn name(store: &str, label: &str, what: &str) -> String {
    format!("growth/{store}/{label}/{what}")
}

fn wants(run: &Run, store: &str, labels: &[String], rows: &[Row]) -> bool {
    let mut names = labels
        .iter()
        .flat_map(|label| rows.iter().map(move |(what, ..)| name(store, label, what)));
    names.any(|name| run.wants(&name))
}

/// Prints the rows of each column, beside those of the first.
fn print(run: &Run, store: &str, labels: &[String], rows: &[Row], mut measured: Vec<Measured>) {
    for (what, unit, goal) in rows {
        let first = measured[0].get(what).cloned().unwrap_or_default();
        for (nth, (label, measured)) in labels.iter().zip(&mut measured).enumerate() {
            let name = name(store, label, what);
            let rounds = measured.remove(what).unwrap_or_default();
            if rounds.is_empty() || !run.wants(&name) {
                continue;
            }
            let mut row = Measurement::new(&name, unit, rounds);
            if nth > 0 {
                row = row.against(&labels[0], &first).goal(*goal);
            }
            row.print();
        }
    }
}

/// `10k`, `1M`.
fn label(records: usize) -> String {
    match records {
        1_000_000.. => format!("{}M", records / 1_000_000),
        _ => format!("{}k", records / 1_000),
    }
}

fn sizes_of(run: &Run, store: &str, place: &dyn Place, sizes: [usize; 3]) -> Result<Vec<Measured>> {
    let runtime = workers();
    let mut measured = vec![Measured::new(); sizes.len()];
    for (records, measured) in sizes.into_iter().zip(&mut measured) {
        let started = Instant::now();
        let url = place.url(records);
        runtime.block_on(async {
            let opened = open(&url).await?;
            stores::pair(&opened, 0, copies::RETENTION).await?;
            opened.close().await?;
            anyhow::Ok(())
        })?;
        let bytes = place.fill(records)?;
        measured.entry("bytes-per-record").or_default().push(bytes);
        runtime.block_on(check(&url, records))?;
        progress(format_args!(
            "growth/{store}: {records} records in {:.1?}",
            started.elapsed()
        ));
    }
    for _ in 0..run.few_rounds() {
        for (records, measured) in sizes.into_iter().zip(&mut measured) {
            let took = runtime.block_on(start_up(&place.url(records), records))?;
            measured.entry("start-up").or_default().push(took);
        }
    }
    let mut opened = Vec::new();
    for records in sizes {
        let store = runtime.block_on(open(&place.url(records)))?;
        let mut one = Opened {
            store,
            records,
            next: records,
            asked: 0,
        };
        one.warm_up(run, &runtime)?;
        opened.push(one);
    }
    for round in 1..=run.few_rounds() {
        progress(format_args!("growth/{store}: round {round}"));
        for (one, measured) in opened.iter_mut().zip(&mut measured) {
            for (what, value) in one.round(run, &runtime, place.process())? {
                measured.entry(what).or_default().push(value);
            }
        }
    }
    for one in opened {
        runtime.block_on(one.store.close())?;
    }
    Ok(measured)
}

/// Fails unless copies are what claims on their keys replay: the first, the last, and some between them.
async fn check(url: &str, records: usize) -> Result<()> {
    let store = open(url).await?;
    let step = (records / CHECKED).max(1);
    for index in (0..records).step_by(step).chain([records - 1]) {
        turn::replay(&store, index).await?;
    }
    store.close().await?;
    Ok(())
}

/// Milliseconds until a store that is opened has answered its first lookup.
async fn start_up(url: &str, records: usize) -> Result<f64> {
    let looked_up = identity(records / 2);
    let started = Instant::now();
    let store = open(url).await?;
    let found = store.get(looked_up.digest()).await?;
    let took = started.elapsed();
    ensure!(found.is_some(), "a record is not there");
    store.close().await?;
    Ok(took.as_secs_f64() * 1000.0)
}

/// An open store with so many records from the beginning.
struct Opened {
    store: AnyStore,
    records: usize,
    /// The number of the next new identity.
    next: usize,
    /// How many replays there were.
    asked: usize,
}

impl Opened {
    /// Connections are made, and what a step needs is in memory as far as it will be.
    fn warm_up(&mut self, run: &Run, runtime: &Runtime) -> Result<()> {
        let pairs = turn(&self.store, Work::Pairs, MANY, run.turn(), &mut self.next);
        runtime.block_on(pairs).map(|_| ())
    }

    fn round(
        &mut self,
        run: &Run,
        runtime: &Runtime,
        process: u32,
    ) -> Result<Vec<(&'static str, f64)>> {
        let old = Work::Replays { of: self.records };
        let before = Usage::of(process)?;
        let pairs = turn(&self.store, Work::Pairs, MANY, run.turn(), &mut self.next);
        let many = runtime.block_on(pairs)?;
        let used = Usage::of(process)?.since(&before);
        let replays = turn(&self.store, old, MANY, run.turn(), &mut self.asked);
        let replays = runtime.block_on(replays)?;
        let pairs = turn(&self.store, Work::Pairs, FEW, run.turn(), &mut self.next);
        let few = runtime.block_on(pairs)?;
        Ok(vec![
            ("steps", many.rate()),
            ("replays", replays.rate()),
            ("p50", few.percentile(0.50)),
            ("p99", few.percentile(0.99)),
            ("processor-time", used.seconds * 1e6 / many.steps()),
            ("written", used.written / many.steps()),
        ])
    }
}
