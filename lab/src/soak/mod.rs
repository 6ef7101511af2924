//! A soak: a steady load of short leases and retentions for hours, a fault now and then, and what
//! workers, server and store take meanwhile. What grows after the warm-up leaks; what is slow to
//! come back after a fault is not available.

mod judge;
mod options;
mod page;
mod resources;
mod rhythm;
pub(crate) mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_stores::OpenOptions;
use serde::Serialize;
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

pub use options::Options;

use crate::clock::{Nanos, now};
use crate::named::Named as _;
use crate::nemesis::{Fault, Planned, lasts};
use crate::part::Part;
use crate::reasons::Reasons;
use crate::torture::{self, Fleet, Struck, Target};
use judge::{Growth, Recovery};
use resources::Sample;
use worker::Settings;

/// The leases and retentions of all keys.
const LEASE: Duration = Duration::from_secs(1);
const RETENTION: Duration = Duration::from_secs(2);
/// A fault that is due later than this before the end could not be recovered from in time.
const LAST: Duration = Duration::from_secs(10);
/// A store that does not answer is looked at again for the next sample.
const PATIENCE: Duration = Duration::from_secs(2);

/// A fault that struck.
#[derive(Debug, Clone, Copy)]
struct Strike {
    fault: Fault,
    from: Nanos,
    until: Nanos,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    store: String,
    seed: u64,
    seconds: f64,
    /// Calls that were answered, and that the store failed.
    answered: u64,
    failed: u64,
    rate: f64,
    p50_ms: f64,
    p99_ms: f64,
    growth: Vec<Growth>,
    faults: Vec<Recovery>,
    /// The share of moments away from them that were as slow as they may not be after one.
    slow_anyway: f64,
    /// The page with the plots; the numbers are beside it.
    page: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    bug: Option<options::Bug>,
    #[serde(flatten)]
    pub(crate) reasons: Reasons,
}

/// Does the run, and says what came of it. Whether nothing grew, and every fault was recovered from in time.
///
/// # Errors
/// Where the run could not be done.
pub async fn run(options: &Options) -> Result<bool> {
    let folder = temporary()?;
    let target = Target::start(&options.store, &options.faults(), folder.path()).await?;
    let mut settings = Settings {
        options: options.clone(),
        url: target.url.clone(),
        folder: folder.path().into(),
    };
    let of = &mut settings.options;
    if target.single {
        of.tasks *= std::mem::replace(&mut of.processes, 1);
    }
    let processes = of.processes;
    let part = move |number, life| Part::SoakWorker(settings.clone(), number, life);
    let walls = torture::walls(&options.faults(), folder.path(), processes)?;
    let fleet = Fleet::start(part, processes, walls).await?;
    let fleet = Mutex::new(fleet);
    let (begun, start) = (now(), Instant::now());
    let end = start + options.length();
    let struck = strikes(options, &target, &fleet, start, end);
    let sampled = samples(options, &target, &fleet, folder.path(), end);
    let (strikes, samples) = tokio::try_join!(struck, sampled)?;
    let mut fleet = fleet.into_inner();
    fleet.all("stop", "stopped").await?;
    fleet.end().await?;

    let rhythm = rhythm::read(folder.path(), begun, options.length())?;
    let growth = judge::growth(&samples);
    let faults = judge::recoveries(&rhythm, &strikes, begun);
    let mut reasons = Reasons::default();
    for why in judge::why(&growth, &faults) {
        reasons.failed(why);
    }
    let all = rhythm::sum(&rhythm);
    if all.answered == 0 {
        reasons.too_little("no call was answered");
    }
    if growth.is_empty() {
        reasons.too_little("it was too short to say what grew");
    }
    let out = match &options.out {
        Some(out) => out.clone(),
        // Not the run's own, which holds the store.
        None => temporary()?.keep(),
    };
    std::fs::create_dir_all(&out)?;
    let page = out.join(format!("soak-{}.html", target.name()));
    let seconds = options.length().as_secs_f64();
    let report = Report {
        store: target.name(),
        seed: options.seed,
        seconds,
        answered: all.answered,
        failed: all.failed,
        rate: all.answered as f64 / seconds,
        p50_ms: all.quantile(0.5),
        p99_ms: all.quantile(0.99),
        growth,
        faults,
        slow_anyway: judge::slow_anyway(&rhythm, &strikes, begun),
        page: page.clone(),
        bug: options.bug,
        reasons,
    };
    let verdict = serde_json::to_string_pretty(&report)?;
    std::fs::write(
        &page,
        page::html(&report, &verdict, &rhythm, &samples, &strikes, begun),
    )?;
    std::fs::write(page.with_extension("csv"), resources::csv(&samples, begun))?;
    report.reasons.tell(&report)
}

fn temporary() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("semel-lab-").tempdir()
}

/// A fault now and then, each kind in its turn; the first worker is never killed, so that what it
/// takes is that of a process that lives as long as the run.
async fn strikes(
    options: &Options,
    target: &Target,
    fleet: &Mutex<Fleet>,
    start: Instant,
    end: Instant,
) -> Result<Vec<Strike>> {
    let mut chance = fastrand::Rng::with_seed(options.seed);
    let mut faults = options.faults();
    if target.single {
        // Its one worker is the first.
        faults.retain(|fault| *fault != Fault::KillWorker);
    }
    chance.shuffle(&mut faults);
    let mut strikes = Vec::new();
    let mut at = start;
    for fault in faults.iter().copied().cycle() {
        at += options.every.mul_f64(0.75 + chance.f64() / 2.0);
        if at + LAST.min(options.every) > end {
            break;
        }
        sleep_until(at).await;
        let whom = match options.processes {
            0 | 1 => 0,
            processes => chance.u32(1..processes),
        };
        let planned = Planned {
            fault,
            at: Duration::ZERO,
            lasts: lasts(fault, LEASE, &mut chance),
            whom,
        };
        let from = now();
        torture::strike(&planned, target, fleet, &mut Struck::default())
            .await
            .with_context(|| format!("the fault {}", fault.name()))?;
        let until = now();
        strikes.push(Strike { fault, from, until });
        at = at.max(Instant::now());
    }
    Ok(strikes)
}

async fn samples(
    options: &Options,
    target: &Target,
    fleet: &Mutex<Fleet>,
    folder: &Path,
    end: Instant,
) -> Result<Vec<Sample>> {
    // Another handle would be refused.
    let store = match target.single {
        true => None,
        false => Some(semel_stores::open(&target.url, &OpenOptions::default()).await?),
    };
    let every = options.sample_every();
    let worker = fleet.lock().await.id(0)?;
    let mut samples = Vec::new();
    let mut at = Instant::now();
    while at < end {
        sleep_until(at).await;
        let rows = match &store {
            Some(store) => timeout(PATIENCE, resources::rows(store))
                .await
                .ok()
                .flatten(),
            None => None,
        };
        let server = target.server.as_ref();
        samples.push(resources::sample(
            worker,
            server.map(|s| &**s),
            folder,
            rows,
        ));
        at += every;
    }
    Ok(samples)
}
