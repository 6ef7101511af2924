//! A run: workers, faults, and what the checker says of them.
//!
//! The parent starts the server, puts a proxy before it, and starts the workers, which are
//! processes of their own. While they work it lets the planned faults happen. Then the faults stop,
//! the workers end what they do, and drive every key to an end. Histories and ledger are read and
//! checked only after that, so that checking does not compete with the run.

mod fleet;
pub mod local;
mod options;
mod recovery;
mod strike;
mod target;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

pub use options::{Options, Run};
pub use target::Target;

use crate::check::{self, check};
use crate::clock::{Nanos, millis, nanos, now};
use crate::history::read_all;
use crate::ledger::{self, Effect};
use crate::lines;
use crate::nemesis::plan;
use crate::part::Part;
use crate::reasons::{Faults, Reasons};
use crate::report::{self, Calls, Found, Report};
use crate::worker::Settings;
pub(crate) use fleet::{Fleet, walls};
pub(crate) use options::seconds;
pub(crate) use recovery::Recovery;
use strike::MOST_HOURS;
pub(crate) use strike::{Struck, on_store, strike};
pub(crate) use target::{check_faults, faults_of, faults_within};

/// Does the run, and says what came of it. Whether nothing is wrong.
///
/// # Errors
/// Where the run could not be done.
pub async fn run(options: &Options) -> Result<bool> {
    let (run, faults) = (&options.run, options.faults());
    run.announce(&faults);
    let temporary = tempfile::Builder::new().prefix("semel-lab-").tempdir()?;
    let directory = match &run.keep {
        Some(folder) => folder.clone(),
        None => temporary.path().to_owned(),
    };
    std::fs::create_dir_all(&directory)?;
    let target = Target::start(&run.store, &faults, &directory).await?;
    let planned = plan(&faults, options.length, run.lease, run.seed);
    let faults = async |fleet: &Mutex<Fleet>| {
        let begun = Instant::now();
        strike::all(&planned, &target, fleet, begun, begun + options.length).await
    };
    let mut report = through(options, &target, &directory, faults).await?;
    if !report.reasons.passed() && run.keep.is_none() {
        // For whoever looks for the cause.
        report.history = Some(temporary.keep());
    }
    report.reasons.tell(&report)
}

/// Lets workers loose on a store for the length of a run while `faults` happen, and checks.
pub(crate) async fn through(
    options: &Options,
    target: &Target,
    directory: &Path,
    faults: impl AsyncFnOnce(&Mutex<Fleet>) -> Result<Struck>,
) -> Result<Report> {
    let settings = settings(options, target, directory);
    let calm = recovery::calm(nanos(target.elects()));
    let ran = work(options, &settings, faults, calm).await?;
    examine(options, target, &settings, &ran)
}

fn settings(options: &Options, target: &Target, directory: &Path) -> Settings {
    let mut options = options.clone();
    if target.single {
        // A store that one process has open: as many tasks in one worker.
        options.tasks *= std::mem::replace(&mut options.processes, 1);
    }
    Settings {
        name: format!("{}-{:x}", options.run.seed, now()),
        directory: directory.into(),
        url: target.url.clone(),
        options,
    }
}

/// What the checker knew of a run, beside its histories.
const KNOWN: &str = "check.json";

/// Checks a run again whose histories and ledger were left in a folder, and prints what is wrong.
/// Whether nothing is.
///
/// # Errors
/// Where they cannot be read.
pub fn again(directory: &Path) -> Result<bool> {
    let known = std::fs::read(directory.join(KNOWN)).context("not the folder of a run")?;
    let ops = read_all(directory).context("the histories")?;
    let effects: Vec<Effect> = lines::read(&directory.join("ledger")).context("the ledger")?;
    let (accepted, _) = ledger::accepted(&effects);
    let findings = check(&ops, &accepted, &serde_json::from_slice(&known)?);
    let begun = ops.first().map_or(0, |op| op.invoked);
    let mut reasons = Reasons::with(report::details(&ops, &findings, begun));
    reasons.counted([("violations", findings.violations.len())]);
    #[derive(Serialize)]
    struct Again {
        operations: usize,
        #[serde(flatten)]
        found: Found,
    }
    reasons.tell(&Again {
        operations: ops.len(),
        found: Found::from(&findings),
    })
}

/// What a run left behind, besides the files.
struct Ran {
    begun: Nanos,
    settling: Nanos,
    struck: Struck,
    /// When the faults were over, and all workers were at work again.
    over: Nanos,
    /// Why the run ended before its time.
    broken: Option<anyhow::Error>,
}

async fn work(
    options: &Options,
    settings: &Settings,
    faults: impl AsyncFnOnce(&Mutex<Fleet>) -> Result<Struck>,
    calm: Nanos,
) -> Result<Ran> {
    let count = settings.options.processes;
    let walls = walls(&options.faults(), &settings.directory, count)?;
    let settings = settings.clone();
    let part = move |number, life| Part::Worker(settings.clone(), number, life);
    let fleet = Fleet::start(part, count, walls).await?;
    let fleet = Mutex::new(fleet);
    let (begun, start) = (now(), Instant::now());
    let mut ran = Ran {
        begun,
        settling: Nanos::MAX,
        struck: Struck::default(),
        over: begun,
        broken: None,
    };
    let struck = faults(&fleet).await;
    let mut fleet = fleet.into_inner();
    let ready = match struck {
        Ok(struck) => {
            ran.struck = struck;
            fleet.all_ready().await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = ready {
        ran.broken = Some(error);
        return Ok(ran);
    }
    ran.over = now();
    let mut end = start + options.length;
    if ran.struck.first.is_some() {
        end = end.max(Instant::now() + Duration::from_nanos(calm));
    }
    sleep_until(end).await;
    let stop = async {
        fleet.all("stop", "stopped").await?;
        let settling = now();
        fleet.all("settle", "settled").await?;
        fleet.end().await?;
        anyhow::Ok(settling)
    };
    match stop.await {
        Ok(settling) => ran.settling = settling,
        Err(error) => ran.broken = Some(error),
    }
    Ok(ran)
}

fn examine(options: &Options, target: &Target, settings: &Settings, ran: &Ran) -> Result<Report> {
    let ops = read_all(&settings.directory).context("the histories")?;
    let effects: Vec<Effect> = lines::read(&settings.ledger()).context("the ledger")?;
    let (accepted, refused) = ledger::accepted(&effects);
    let known = checked(options, target, ran);
    std::fs::write(settings.directory.join(KNOWN), serde_json::to_vec(&known)?)?;
    let findings = check(&ops, &accepted, &known);
    let mut reasons = Reasons::with(report::details(&ops, &findings, ran.begun));
    let recovery = ran.struck.first.map(|first| {
        let elects = nanos(target.elects());
        recovery::recovery(&ops, ran.begun, (first, ran.over), elects)
    });
    if recovery.is_some_and(|recovery| recovery.recovered_after.is_none()) {
        // The machine may be slow for another reason.
        reasons
            .too_little("half of the rate before the faults did not come back in time after them");
    }
    if let Some(error) = &ran.broken {
        reasons.failed(format!("the run broke off: {error:#}"));
    }
    let faults = Faults::of(&ran.struck.faults, &options.faults(), &mut reasons);
    let (calls, floor) = (Calls::of(&ops), options.floor());
    if calls.completions < floor {
        let few = calls.completions;
        let why = format!("{few} completions were acknowledged, fewer than the floor of {floor}");
        reasons.too_little(why);
    }
    reasons.counted([("violations", findings.violations.len())]);
    // A run in which the search was given up for many calls proves too little.
    let (searched, given_up) = (findings.searched.calls, findings.undecided.calls);
    if searched < 9 * given_up {
        let all = searched + given_up;
        let why = format!("the search for an order was given up for {given_up} of {all} calls");
        reasons.too_little(why);
    }
    let took = millis(ran.settling.min(now()).saturating_sub(ran.begun));
    let seconds = (took / 10.0).round() / 100.0;
    let of = &settings.options;
    Ok(Report {
        store: target.name(),
        seed: of.run.seed,
        processes: of.processes,
        tasks: of.tasks,
        keys: of.keys,
        seconds,
        per_second: (calls.operations as f64 / seconds.max(0.01)) as usize,
        calls,
        effects: accepted.len(),
        effects_refused: refused,
        faults,
        recovery,
        found: Found::from(&findings),
        bug: of.bug,
        reasons,
        history: None,
    })
}

fn checked(options: &Options, target: &Target, ran: &Ran) -> check::Options {
    const SECOND: Nanos = 1_000_000_000;
    let lease = nanos(options.run.lease);
    check::Options {
        tolerance: match target.clock_moves(&options.faults()) {
            // Every lease may lapse at any time, and every retention end that is not much longer.
            true => (MOST_HOURS + 2) * 3600 * SECOND,
            false => nanos(options.tolerance) * if target.clockless { 5 } else { 1 },
        },
        clockless: target.clockless,
        troubles: ran.struck.troubles.clone(),
        // A look of NATS that is lost with its node is given up after 5 s, and again: docs/lab.md.
        wait_grace: SECOND * if target.clockless { 12 } else { 2 },
        settling: (ran.settling != Nanos::MAX).then_some(ran.settling),
        settle_within: lease * if target.clockless { 2 } else { 1 } + 5 * SECOND,
        keys: options.keys,
    }
}
