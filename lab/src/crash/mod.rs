//! Effects exactly once, by killing: workers run operations to the end on a database with
//! transactions, are killed at every point of them, and their callers ask again with the same key.
//!
//! The parent starts the database, a proxy before it for each worker, and the workers as processes.
//! What they did is judged after all callers were answered: by the ledger in the database, or the
//! payments of a service outside.

mod board;
pub(crate) mod bugs;
mod driver;
pub(crate) mod failpoints;
mod judge;
mod options;
mod payments;
pub(crate) mod point;
pub(crate) mod pointed;
mod report;
pub(crate) mod steps;
mod transaction;
pub(crate) mod wire;
pub(crate) mod worker;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use semel_stores::{MysqlStore, PostgresStore, SqliteStore};

pub use bugs::Bug;
pub use options::Options;
pub use point::{Point, Work};

use crate::base::{Base, Database, Place};
use crate::clock::now;
use crate::lines;
use crate::process::together;
use board::{Board, Found};
use driver::Run;
use judge::Verdict;
use payments::Service;
use report::Report;
use transaction::Tables;
use worker::Settings;

/// Does the run, and says what came of it. Whether nothing is wrong.
///
/// # Errors
/// Where the run could not be done.
pub async fn run(options: &Options) -> Result<bool> {
    match options.database {
        Database::Postgres => on::<PostgresStore>(options).await,
        Database::Sqlite => on::<SqliteStore>(options).await,
        Database::Mysql => on::<MysqlStore>(options).await,
    }
}

async fn on<B: Base>(options: &Options) -> Result<bool> {
    let folder = tempfile::Builder::new().prefix("semel-lab-").tempdir()?;
    let place = Place::start(options.database, options.url.as_deref(), folder.path()).await?;
    let store = B::open(place.url()).await.context("the store")?;
    let name = format!("{}_{:x}", options.seed, now());
    let tables = Tables::of(&name);
    tables.make(&store).await?;
    let service = Service::start(folder.path()).await?;
    let settings = Settings {
        options: options.clone(),
        url: String::new(),
        run: name.clone(),
        payments: service.address(),
        log: folder.path().join("steps"),
    };
    let mut points = Point::of(options.work(), &place);
    let only = &options.points;
    points.retain(|point| only.is_empty() || only.contains(point));
    let run = Arc::new(Run {
        place,
        store,
        tables,
        board: Board::new(&points, options.work(), options.kills, options.seed),
        settings,
    });
    let begun = Instant::now();
    let stopped = all(&run, options).await;
    let seconds = begun.elapsed().as_secs_f64();
    let found = run.board.found();
    let (mut verdict, steps) = judged(&run, &service, &found).await?;
    verdict.left_in_flight = judge::in_flight(&run.store, &name).await?;
    run.tables.drop(&run.store).await?;
    run.store.close().await?;
    let mut report = Report::new(options, &points, found, verdict, steps, seconds);
    if let Err(error) = stopped {
        report.reasons.failed(format!("{error:#}"));
    }
    report.print()
}

/// Every key until it is answered, every point until it was come to; then every key once more.
async fn all<B: Base>(run: &Arc<Run<B>>, options: &Options) -> Result<()> {
    let drivers = || {
        (1..=options.processes).map(|number| {
            let seed = options.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            driver::drive(run.clone(), seed)
        })
    };
    together(drivers()).await?;
    run.board.once_more();
    together(drivers()).await
}

async fn judged<B: Base>(
    run: &Run<B>,
    service: &Service,
    found: &Found,
) -> Result<(Verdict, Option<report::Steps>)> {
    let Run {
        store,
        tables,
        settings,
        ..
    } = run;
    if settings.options.work() == Work::Transaction {
        return Ok((judge::transactions(store, tables, found).await?, None));
    }
    let log = lines::read(&settings.log)?;
    let verdict = match settings.options.work() {
        Work::Mixed => {
            let (inside, outside) = found.split(steps::split);
            let inside = judge::transactions(store, tables, &inside).await?;
            inside.and(judge::steps(service, &log, &outside, &steps::OUTSIDE)?)
        }
        _ => judge::steps(service, &log, found, &steps::ALL)?,
    };
    let steps = report::Steps {
        reruns: verdict.reruns,
        repeats_honoured: service.repeats(),
    };
    Ok((verdict, Some(steps)))
}
