//! The embedded durable store beside a bare log on the same disk.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use semel::store::{Claim, Fenced, Retention, StoreExt as _};
use semel::{Fingerprint, Store};
use semel_bench_load::{ANSWER, workers};
use semel_bench_report::{Goal, Measurement};
use semel_stores::{FileOptions, FileStore};

use crate::disk::{self, size};
use crate::inputs::{identity, outcome, request};
use crate::reference::log::BareLog;
use crate::run::{Run, progress};

const STEPS_PER_PAIR: usize = 2;

/// Something that does a claim and its completion durably.
trait Durable: Send + Sync + 'static {
    fn pair(&self, index: usize) -> impl Future<Output = ()> + Send;
    fn syncs(&self) -> u64;
}

impl Durable for FileStore {
    async fn pair(&self, index: usize) {
        let identity = identity(index);
        let request = request(Fingerprint::of(b"an order"));
        let claim = self.claim(&identity, &request).await;
        let Ok(Claim::Acquired(acquired)) = claim else {
            panic!("the key is free, not {claim:?}");
        };
        let (token, outcome) = (&acquired.token, outcome(index));
        let done = self.complete(identity.digest(), token, &outcome, Retention::ORDER);
        assert_eq!(done.await.ok(), Some(Fenced::Applied));
    }

    fn syncs(&self) -> u64 {
        self.syncs()
    }
}

impl Durable for BareLog {
    async fn pair(&self, index: usize) {
        let identity = identity(index);
        let digest = identity.digest().as_bytes();
        assert!(self.step(digest, None).await, "the key is free");
        let answer = outcome(index).as_bytes().clone();
        assert!(self.step(digest, Some(answer)).await, "the key is pending");
    }

    fn syncs(&self) -> u64 {
        self.syncs()
    }
}

/// What one round of callers saw.
struct Round {
    steps_per_second: f64,
    steps_per_sync: f64,
    longest_pair_ms: f64,
    next_index: usize,
}

async fn round(subject: &Arc<impl Durable>, callers: usize, from: usize, time: Duration) -> Round {
    let syncs = subject.syncs();
    let started = Instant::now();
    let running: Vec<_> = (0..callers)
        .map(|caller| {
            let subject = subject.clone();
            tokio::spawn(async move {
                let (mut pairs, mut longest) = (0, Duration::ZERO);
                while started.elapsed() < time {
                    let asked = Instant::now();
                    subject.pair(from + caller + pairs * callers).await;
                    longest = longest.max(asked.elapsed());
                    pairs += 1;
                }
                (pairs, longest)
            })
        })
        .collect();
    let (mut pairs, mut most, mut longest) = (0, 0, Duration::ZERO);
    for caller in running {
        let (its_pairs, its_longest) = caller.await.expect("a caller");
        pairs += its_pairs;
        most = most.max(its_pairs);
        longest = longest.max(its_longest);
    }
    let steps = (pairs * STEPS_PER_PAIR) as f64;
    Round {
        steps_per_second: steps / started.elapsed().as_secs_f64(),
        steps_per_sync: steps / (subject.syncs() - syncs) as f64,
        longest_pair_ms: longest.as_secs_f64() * 1000.0,
        next_index: from + most * callers,
    }
}

/// Of the store, and of the bare log.
type Rounds = (Vec<f64>, Vec<f64>);

pub(crate) fn measure(run: &Run) -> Result<()> {
    rates(run)?;
    million(run)
}

fn rates(run: &Run) -> Result<()> {
    for (name, callers) in [("1-caller", 1), ("64-callers", 64)] {
        let names = ["steps", "steps-per-sync", "longest-pair"]
            .map(|what| format!("embedded/{what}/{name}"));
        if !names.iter().any(|name| run.wants(name)) {
            continue;
        }
        let (ours, bare) = (disk::directory()?, disk::directory()?);
        let store = Arc::new(FileOptions::new().open(ours.path())?);
        let log = Arc::new(BareLog::open(bare.path())?);
        let runtime = workers();
        let (mut store_rounds, mut log_rounds) = (Vec::new(), Vec::new());
        let (mut store_index, mut log_index) = (0, 0);
        for number in 1..=run.rounds() {
            progress(format_args!("{}: round {number}", names[0]));
            let seen = runtime.block_on(round(&store, callers, store_index, run.turn()));
            store_index = seen.next_index;
            store_rounds.push(seen);
            let seen = runtime.block_on(round(&log, callers, log_index, run.turn()));
            log_index = seen.next_index;
            log_rounds.push(seen);
        }
        runtime.block_on(store.close())?;
        let both = |of: fn(&Round) -> f64| -> Rounds {
            let rounds = |rounds: &[Round]| rounds.iter().map(of).collect();
            (rounds(&store_rounds), rounds(&log_rounds))
        };
        let print = |name: &str, unit, (value, reference): Rounds, goal: Option<Goal>| {
            if run.wants(name) {
                Measurement::new(name, unit, value)
                    .against("bare log", &reference)
                    .goal(goal)
                    .print();
            }
        };
        let many = callers > 1;
        let rate = many.then_some(Goal::RatioAtLeast(0.3));
        print(&names[0], "steps/s", both(|r| r.steps_per_second), rate);
        let grouped = many.then_some(Goal::ValueAtLeast(20.0));
        print(&names[1], "steps", both(|r| r.steps_per_sync), grouped);
        print(&names[2], "ms", both(|r| r.longest_pair_ms), None);
    }
    Ok(())
}

/// Size and start-up with a million records.
fn million(run: &Run) -> Result<()> {
    let [bytes, start_up] = ["embedded/bytes-per-record", "embedded/start-up"];
    if !run.wants(bytes) && !run.wants(start_up) {
        return Ok(());
    }
    let count = run.size(1_000_000, 20_000);
    let callers = 256;
    let directory = disk::directory()?;
    let store = Arc::new(FileOptions::new().open(directory.path())?);
    let runtime = workers();
    progress(format_args!("{bytes}: {count} records"));
    runtime.block_on(async {
        let running: Vec<_> = (0..callers)
            .map(|caller| {
                let store = store.clone();
                tokio::spawn(async move {
                    for index in (caller..count).step_by(callers) {
                        store.pair(index).await;
                    }
                })
            })
            .collect();
        for caller in running {
            caller.await?;
        }
        store.close().await?;
        anyhow::Ok(())
    })?;
    drop(store);
    let mut times = Vec::new();
    for _ in 0..run.rounds() {
        let started = Instant::now();
        let store = FileOptions::new().open(directory.path())?;
        // Open means that it answers.
        let kept = runtime.block_on(store.get(identity(0).digest()))?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
        assert!(kept.is_some(), "the first record is there");
        runtime.block_on(store.close())?;
    }
    if run.wants(bytes) {
        let taken = size(directory.path())? / count as f64;
        Measurement::new(bytes, "bytes", vec![taken])
            .against("the answer alone", &[ANSWER as f64])
            .print();
    }
    if run.wants(start_up) {
        Measurement::new(start_up, "ms", times).print();
    }
    Ok(())
}
