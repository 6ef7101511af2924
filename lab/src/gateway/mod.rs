//! Gateways tortured: clients call them over HTTP while the gateways, their store and the service behind
//! them break.
//!
//! The parent starts the store, the upstream and the gateways, which are processes of their own, and is
//! the clients itself. While they work it lets the planned faults happen. Then the faults stop, and the
//! clients ask for everything until it has an end. What was answered is checked against the upstream's
//! ledger after that.

mod bugs;
mod client;
mod faults;
mod judge;
mod options;
mod process;
mod program;
mod records;
mod report;
#[cfg(test)]
mod tests;
pub(crate) mod upstream;
mod work;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

pub use bugs::Bug;
pub use options::Options;

use crate::clock::{millis, nanos, now};
use crate::lines::{Lines, read};
use crate::nemesis::{Fault, Lane, plan};
use crate::reasons::{Faults, Reasons};
use crate::torture::{self, Target};
use bugs::Liar;
use faults::{Scene, Struck};
pub use judge::OnLost;
use judge::{Known, judge};
use process::{Gateway, Launch, Upstream, free_address};
use records::{CALLS, Call, Entry, LEDGER};
use report::{Found, Report};
use work::Board;

/// What the judge knew of a run, beside calls and ledger.
const KNOWN: &str = "gateway.json";

/// Whether a folder is that of a run through gateways.
pub fn is_of_a_run(folder: &Path) -> bool {
    folder.join(KNOWN).exists()
}

/// Does the run, and says what came of it. Whether nothing is wrong.
///
/// # Errors
/// Where the run could not be done.
pub async fn run(options: &Options) -> Result<bool> {
    let faults = options.faults();
    torture::check_faults(&faults, &options.run.store, true)?;
    options.run.announce(&faults);
    let temporary = tempfile::Builder::new().prefix("semel-lab-").tempdir()?;
    let folder = match &options.run.keep {
        Some(folder) => folder.clone(),
        None => temporary.path().to_owned(),
    };
    std::fs::create_dir_all(&folder)?;
    anyhow::ensure!(
        std::fs::read_dir(&folder)?.next().is_none(),
        "give --keep an empty folder: what an earlier run left would be judged with this one"
    );
    let mut report = through(options, &faults, &folder).await?;
    if !report.reasons.passed() {
        report.history = Some(folder.clone());
        if options.run.keep.is_none() {
            // For whoever looks for the cause.
            let _ = temporary.keep();
        }
    }
    report.reasons.tell(&report)
}

/// Checks a run again that was left in a folder, and prints what is wrong. Whether nothing is.
///
/// # Errors
/// Where it cannot be read.
pub fn again(folder: &Path) -> Result<bool> {
    let known: Known = serde_json::from_slice(&std::fs::read(folder.join(KNOWN))?)?;
    let (calls, ledger) = left(folder)?;
    let findings = judge(&known, &calls, &ledger);
    let mut reasons = Reasons::with(report::details(&known, &calls, &ledger, &findings));
    reasons.counted([("violations", findings.violations.len())]);
    reasons.tell(&Found::new(&calls, findings))
}

fn left(folder: &Path) -> Result<(Vec<Call>, Vec<Entry>)> {
    let calls = read(&folder.join(CALLS)).context("the calls")?;
    Ok((
        calls,
        read(&folder.join(LEDGER)).context("the upstream's ledger")?,
    ))
}

async fn through(options: &Options, faults: &[Fault], folder: &Path) -> Result<Report> {
    let run = &options.run;
    let semel = tokio::task::block_in_place(program::find)?;
    let mut of_store = faults.to_vec();
    of_store.retain(|fault| matches!(fault.lane(), Lane::Server | Lane::Network));
    let target = Target::start(&run.store, &of_store, folder).await?;
    let address = free_address()?;
    let upstream = upstream::Settings {
        options: options.clone(),
        address,
        ledger: folder.join(LEDGER),
    };
    let upstream = Upstream::start(upstream).await?;
    let launch = Launch {
        options: options.clone(),
        program: semel,
        folder: folder.into(),
        store: target.url.clone(),
        upstream: address,
    };
    // Two of one service, and one of another beside them; one alone where one process has the store open.
    let services: &[u8] = if target.single { &[0] } else { &[0, 0, 1] };
    let mut gateways = Vec::new();
    for (number, service) in services.iter().enumerate() {
        gateways.push(Gateway::start(&launch, number, *service).await?);
    }
    let board = Arc::new(Board {
        seed: run.seed,
        pace: run.pace,
        liar: options.bug.map(Liar::new),
        gateways: gateways
            .iter()
            .map(|g| (g.service(), g.address()))
            .collect(),
        calls: Lines::open(&folder.join(CALLS))?,
        next_call: AtomicU64::new(0),
        next_key: AtomicU32::new(0),
        newest: AtomicU64::new(0),
        asked: Mutex::default(),
        stopped: AtomicBool::new(false),
        settle_within: 2 * run.lease + Duration::from_secs(5),
        holds: options.on_lost() == OnLost::Hold,
    });
    let gateways: Vec<_> = gateways.into_iter().map(tokio::sync::Mutex::new).collect();
    let scene = Scene {
        target,
        gateways,
        upstream: tokio::sync::Mutex::new(upstream),
        bug: options.bug,
    };
    let (known, struck, broken) = work(options, faults, &scene, &board).await;
    std::fs::write(folder.join(KNOWN), serde_json::to_vec(&known)?)?;
    let (calls, ledger) = left(folder)?;
    let findings = judge(&known, &calls, &ledger);
    let mut reasons = Reasons::with(report::details(&known, &calls, &ledger, &findings));
    if let Some(error) = broken {
        reasons.failed(format!("the run broke off: {error:#}"));
    }
    let faults = Faults::of(&struck.faults, faults, &mut reasons);
    let found = Found::new(&calls, findings);
    found.judge(options.enough, &mut reasons);
    let mut said = BTreeMap::new();
    for call in &calls {
        *said.entry(call.said.name()).or_default() += 1;
    }
    let took = millis(known.settling.unwrap_or(known.begun) - known.begun);
    Ok(Report {
        store: scene.target.name(),
        seed: run.seed,
        on_lost: known.on_lost,
        gateways: scene.gateways.len(),
        clients: options.tasks,
        seconds: (took / 10.0).round() / 100.0,
        found,
        said,
        faults,
        stalls: known.troubles.len() - struck.troubles.len(),
        bug: options.bug,
        reasons,
        history: None,
    })
}

async fn work(
    options: &Options,
    faults: &[Fault],
    scene: &Scene,
    board: &Arc<Board>,
) -> (Known, Struck, Option<anyhow::Error>) {
    let run = &options.run;
    // The rest of the time shows that all of it works again.
    let striking = options.length.mul_f64(0.7);
    let planned = plan(faults, striking, run.lease, run.seed);
    let stalls = Arc::new(Mutex::default());
    // By itself: a server that is restarted holds up the task that does it.
    let mut watching = JoinSet::new();
    watching.spawn(faults::watch(run.lease, Arc::clone(&stalls)));
    let (begun, start) = (now(), Instant::now());
    let mut clients = work::start(board, options.tasks);
    let end = start + options.length;
    let struck = self::faults::all(&planned, scene, board, start, start + striking).await;
    let calm = now();
    sleep_until(end.max(Instant::now())).await;
    while board.identities() < options.enough && Instant::now() < start + 4 * options.length {
        sleep(run.pace).await;
    }
    board.stopped.store(true, Ordering::Relaxed);
    while clients.join_next().await.is_some() {}
    let settling = now();
    if struck.is_ok() {
        work::settle(board, options.tasks as usize).await;
    }
    let (struck, broken) = match struck {
        Ok(struck) => (struck, None),
        Err(error) => (Struck::default(), Some(error)),
    };
    let mut troubles = struck.troubles.clone();
    troubles.extend(std::mem::take(&mut *stalls.lock()));
    troubles.sort_by_key(|trouble| trouble.from);
    let known = Known {
        on_lost: options.on_lost(),
        lease: nanos(run.lease),
        clockless: scene.target.clockless,
        elects: nanos(scene.target.elects()),
        clients: options.tasks as usize,
        begun,
        calm,
        settling: broken.is_none().then_some(settling),
        troubles,
        exits: struck.exits.clone(),
    };
    (known, struck, broken)
}
