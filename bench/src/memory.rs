//! The memory store beside a plain map and beside published stores.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use semel::memory::{Limits, MemoryStore};
use semel::store::{Claim, Fenced, Retention, StoreExt as _};
use semel::{Fingerprint, Identity, ManualClock, Outcome, Store, Timestamp};
use semel_bench_load::{Callers, Operation, Subject, rate};
use semel_bench_report::{Goal, Measurement};
use tokio::runtime::Handle;

use crate::inputs::{identity, outcome, request};
use crate::reference::map::PlainMap;
use crate::run::{Run, progress};

const PEERS: [&str; 3] = ["idempotent", "ullun-api", "minco-plugin-idempotency"];
const NO_LIMIT: Limits = Limits {
    records: 1 << 24,
    bytes: 1 << 36,
};

pub(crate) fn measure(run: &Run) -> Result<()> {
    let mut peers = Peers::default();
    rates(run, &mut peers)?;
    stalls(run, &mut peers)?;
    drop(peers);
    memory_per_record(run)
}

/// What a caller has in hand: the same for the store and for the map.
struct Inputs {
    fingerprint: Fingerprint,
    keyed: Vec<(Identity, Outcome)>,
}

impl Inputs {
    fn new(count: usize) -> Self {
        Self {
            fingerprint: Fingerprint::of(b"an order"),
            keyed: (0..count).map(|i| (identity(i), outcome(i))).collect(),
        }
    }
}

struct Semel {
    store: MemoryStore,
    inputs: Arc<Inputs>,
}

async fn pair(
    store: &impl Store,
    identity: &Identity,
    fingerprint: Fingerprint,
    outcome: &Outcome,
    retention: Retention,
) {
    let claim = store.claim(identity, &request(fingerprint)).await;
    let Ok(Claim::Acquired(acquired)) = claim else {
        panic!("the key is free, not {claim:?}");
    };
    let token = &acquired.token;
    let done = store.complete(identity.digest(), token, outcome, retention);
    let done = done.await.expect("the store is open");
    assert_eq!(done, Fenced::Applied);
}

impl Subject for Semel {
    type Inputs = Inputs;

    fn build(inputs: Arc<Inputs>, _runtime: &Handle) -> Self {
        let store = MemoryStore::new(NO_LIMIT);
        Self { store, inputs }
    }

    async fn pair(&self, index: usize) {
        let (identity, outcome) = &self.inputs.keyed[index];
        let fingerprint = self.inputs.fingerprint;
        pair(
            &self.store,
            identity,
            fingerprint,
            outcome,
            Retention::ORDER,
        )
        .await;
    }

    async fn replay(&self, index: usize) {
        let (identity, outcome) = &self.inputs.keyed[index];
        let request = request(self.inputs.fingerprint);
        let claim = self.store.claim(identity, &request).await;
        let Ok(Claim::Completed { outcome: kept, .. }) = claim else {
            panic!("the key is completed, not {claim:?}");
        };
        assert_eq!(kept.as_bytes().len(), outcome.as_bytes().len());
    }
}

struct Plain {
    map: PlainMap,
    inputs: Arc<Inputs>,
}

impl Subject for Plain {
    type Inputs = Inputs;

    fn build(inputs: Arc<Inputs>, _runtime: &Handle) -> Self {
        let map = PlainMap::new();
        Self { map, inputs }
    }

    async fn pair(&self, index: usize) {
        let (identity, outcome) = &self.inputs.keyed[index];
        let known = self.map.claim(identity, self.inputs.fingerprint);
        assert!(known.is_none(), "the key is free");
        let done = self.map.complete(identity.digest(), outcome);
        assert!(done, "the key is pending");
    }

    async fn replay(&self, index: usize) {
        let (identity, outcome) = &self.inputs.keyed[index];
        let kept = self
            .map
            .claim(identity, self.inputs.fingerprint)
            .expect("the key is completed");
        assert_eq!(kept.as_bytes().len(), outcome.as_bytes().len());
    }
}

fn rates(run: &Run, peers: &mut Peers) -> Result<()> {
    let count = run.size(400_000, 20_000);
    let callers = [
        ("1-thread", Callers::Threads(1)),
        ("2-threads", Callers::Threads(2)),
        ("64-tasks", Callers::Tasks(64)),
    ];
    let operations = [("pair", Operation::Pair), ("replay", Operation::Replay)];
    let mut inputs = None;
    for (operation_name, operation) in operations {
        for (callers_name, callers) in callers {
            let name = format!("memory/{operation_name}/{callers_name}");
            let beside_map = format!("{name}/beside-map");
            let beside_peers: Vec<(&str, String)> = PEERS
                .iter()
                .map(|peer| (*peer, format!("{name}/beside-{peer}")))
                .filter(|(_, name)| run.wants(name))
                .collect();
            if !run.wants(&beside_map) && beside_peers.is_empty() {
                continue;
            }
            let inputs = inputs.get_or_insert_with(|| Arc::new(Inputs::new(count)));
            let mut semel = Vec::new();
            let mut plain = Vec::new();
            let mut published = vec![Vec::new(); beside_peers.len()];
            for round in 1..=run.rounds() {
                progress(format_args!("{name}: round {round}"));
                semel.push(rate::<Semel>(operation, callers, count, inputs));
                plain.push(rate::<Plain>(operation, callers, count, inputs));
                for ((peer, _), rates) in beside_peers.iter().zip(&mut published) {
                    rates.push(peers.rate(peer, operation_name, callers, count)?);
                }
            }
            if run.wants(&beside_map) {
                Measurement::new(&beside_map, "operations/s", semel.clone())
                    .against("plain sharded map", &plain)
                    .goal(Goal::RatioAtLeast(0.8))
                    .print();
            }
            for ((peer, name), rates) in beside_peers.iter().zip(published) {
                Measurement::new(name, "operations/s", semel.clone())
                    .against(peer, &rates)
                    .goal(Goal::RatioAbove(1.0))
                    .print();
            }
        }
    }
    Ok(())
}

/// The longest claim while expired records are purged beside it.
fn stalls(run: &Run, peers: &mut Peers) -> Result<()> {
    let name = "memory/longest-claim-during-purge";
    if !run.wants(name) {
        return Ok(());
    }
    let count = run.size(1_000_000, 100_000);
    // The third has no expiry.
    let with_expiry = &PEERS[..2];
    let mut semel = Vec::new();
    let mut published = vec![Vec::new(); with_expiry.len()];
    for round in 1..=run.few_rounds() {
        progress(format_args!("{name}: {count} records, round {round}"));
        semel.push(stall(count)?);
        for (peer, stalls) in with_expiry.iter().zip(&mut published) {
            stalls.push(peers.ask(&format!("stall {peer} {count}"))?);
        }
    }
    for (peer, stalls) in with_expiry.iter().zip(published) {
        Measurement::new(&format!("{name}/beside-{peer}"), "ms", semel.clone())
            .against(peer, &stalls)
            .goal(Goal::ValueBelow(2.0))
            .print();
    }
    Ok(())
}

fn stall(count: usize) -> Result<f64> {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
    let store = Arc::new(MemoryStore::with_clock(NO_LIMIT, clock.clone()));
    let fingerprint = Fingerprint::of(b"an order");
    let runtime = semel_bench_load::workers();
    runtime.block_on(async {
        let outcome = outcome(0);
        for index in 0..count {
            let identity = identity(index);
            pair(&*store, &identity, fingerprint, &outcome, Retention::EMAIL).await;
        }
        clock.advance(Retention::EMAIL.replay);
        let purging = tokio::spawn({
            let store = store.clone();
            async move { store.purge(usize::MAX).await }
        });
        let mut longest = Duration::ZERO;
        let mut index = count;
        while !purging.is_finished() {
            let (identity, request) = (identity(index), request(fingerprint));
            let started = Instant::now();
            let claim = store.claim(&identity, &request).await?;
            longest = longest.max(started.elapsed());
            assert!(matches!(claim, Claim::Acquired(_)));
            index += 1;
        }
        purging.await??;
        assert_eq!(store.len(), index - count, "what expired is gone");
        Ok(longest.as_secs_f64() * 1000.0)
    })
}

/// Names the request for a process that tells how much memory it takes.
pub(crate) const RESIDENT: &str = "resident";

/// What filled stores hold, measured in a fresh process each.
fn memory_per_record(run: &Run) -> Result<()> {
    let [filled, left, refilled] =
        ["bytes-per-record", "left-after-expiry", "second-fill"].map(|n| format!("memory/{n}"));
    if ![&filled, &left, &refilled].iter().any(|n| run.wants(n)) {
        return Ok(());
    }
    let count = run.size(1_000_000, 50_000);
    let (mut semel, mut plain) = (Vec::new(), Vec::new());
    for round in 1..=run.few_rounds() {
        progress(format_args!("{filled}: {count} records, round {round}"));
        semel.push(resident_of("semel", count)?);
        plain.push(resident_of("plain", count)?);
    }
    let per_record = |rounds: &[Resident], moment: fn(&Resident) -> f64| -> Vec<f64> {
        let grown = |r: &Resident| (moment(r) - r.empty) / count as f64;
        rounds.iter().map(grown).collect()
    };
    let first_fill = per_record(&semel, |r| r.filled);
    for (name, value, reference, reference_value) in [
        (
            &filled,
            first_fill.clone(),
            "plain sharded map",
            per_record(&plain, |r| r.filled),
        ),
        (
            &left,
            per_record(&semel, |r| r.purged),
            "plain sharded map, emptied",
            per_record(&plain, |r| r.purged),
        ),
        (
            &refilled,
            per_record(&semel, |r| r.refilled),
            "the same store's first fill",
            first_fill,
        ),
    ] {
        if run.wants(name) {
            Measurement::new(name, "bytes", value)
                .against(reference, &reference_value)
                .print();
        }
    }
    Ok(())
}

/// Resident bytes of a process at four moments.
struct Resident {
    empty: f64,
    filled: f64,
    purged: f64,
    refilled: f64,
}

fn resident_of(subject: &str, count: usize) -> Result<Resident> {
    let output = Command::new(std::env::current_exe()?)
        .args([RESIDENT, subject, &count.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let values: Vec<f64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [empty, filled, purged, refilled] = values[..] else {
        anyhow::bail!("the measuring process said {text:?}");
    };
    Ok(Resident {
        empty,
        filled,
        purged,
        refilled,
    })
}

/// The process of its own: `semel|plain COUNT`, prints four numbers.
pub(crate) fn resident(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let subject = arguments.next().context("semel or plain")?;
    let count: usize = arguments.next().context("how many records")?.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let fingerprint = Fingerprint::of(b"an order");
    let mut moments = vec![resident_bytes()?];
    if subject == "semel" {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
        let store = MemoryStore::with_clock(NO_LIMIT, clock.clone());
        runtime.block_on(async {
            for fill in 0..2 {
                for index in fill * count..(fill + 1) * count {
                    let (identity, outcome) = (identity(index), outcome(index));
                    pair(&store, &identity, fingerprint, &outcome, Retention::EMAIL).await;
                }
                moments.push(resident_bytes()?);
                if fill == 0 {
                    clock.advance(Retention::EMAIL.replay);
                    let purged = store.purge(usize::MAX).await?;
                    assert_eq!(purged.removed, count);
                    moments.push(resident_bytes()?);
                }
            }
            anyhow::Ok(())
        })?;
    } else {
        let map = PlainMap::new();
        for fill in 0..2 {
            for index in fill * count..(fill + 1) * count {
                let identity = identity(index);
                map.claim(&identity, fingerprint);
                map.complete(identity.digest(), &outcome(index));
            }
            moments.push(resident_bytes()?);
            if fill == 0 {
                map.clear();
                moments.push(resident_bytes()?);
            }
        }
    }
    let words: Vec<String> = moments.iter().map(f64::to_string).collect();
    println!("{}", words.join(" "));
    Ok(())
}

fn resident_bytes() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|l| l.split_whitespace().next());
    Ok(kibibytes.context("VmRSS in kB")?.parse::<f64>()? * 1024.0)
}

/// The program in `peers/`, started when it is first asked, one thing at a time.
#[derive(Default)]
struct Peers(Option<Running>);

struct Running {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Running {
    fn start() -> Result<Self> {
        progress("building the published stores");
        // Two of them ask for a later compiler, and no configuration lifts that: only this flag.
        let mut process = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()))
            .args(["run", "--quiet", "--release", "--ignore-rust-version"])
            .args(["--package", "semel-bench-peers", "--manifest-path"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cargo, to run the published stores")?;
        let requests = process.stdin.take().context("a pipe")?;
        let answers = BufReader::new(process.stdout.take().context("a pipe")?);
        Ok(Self {
            process,
            requests,
            answers,
        })
    }
}

impl Peers {
    fn ask(&mut self, request: &str) -> Result<f64> {
        let running = match &mut self.0 {
            Some(running) => running,
            none => none.insert(Running::start()?),
        };
        writeln!(running.requests, "{request}")?;
        let mut answer = String::new();
        running.answers.read_line(&mut answer)?;
        answer
            .trim()
            .parse()
            .with_context(|| format!("{request} was answered {answer:?}"))
    }

    fn rate(&mut self, peer: &str, operation: &str, callers: Callers, count: usize) -> Result<f64> {
        let (kind, callers) = match callers {
            Callers::Threads(threads) => ("threads", threads),
            Callers::Tasks(tasks) => ("tasks", tasks),
        };
        self.ask(&format!("rate {peer} {operation} {kind} {callers} {count}"))
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        if let Some(Running {
            mut process,
            requests,
            ..
        }) = self.0.take()
        {
            // It ends with its input.
            drop(requests);
            if let Err(error) = process.wait() {
                progress(format_args!("the published stores did not end: {error}"));
            }
        }
    }
}
