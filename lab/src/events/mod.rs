//! A storm of events: each is delivered 3 to 10 times in random order, by a broker that delivers
//! again what is not acknowledged, to consumers that are killed. Each is to be applied once, and all
//! of them to come to what a single delivery of each comes to.
//!
//! The parent is the broker. Consumers are processes; half of them take one event at a time, half
//! of them batches. What they did is judged after everything was acknowledged.

pub(crate) mod apply;
mod broker;
mod bugs;
pub mod consumer;
mod driver;
pub(crate) mod judge;
mod options;
pub(crate) mod plan;
mod report;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use semel::versioned::VersionedIn;
use semel_stores::{MysqlStore, PostgresStore, SqliteStore};
use tokio::task::JoinSet;

pub(crate) use broker::Kind;
pub use bugs::Bug;
pub use options::{Options, Storm, USAGE};
pub use report::Report;

use crate::base::{Base, Database, Place};
use crate::clock::now;
use crate::versioned;
use apply::Tables;
use broker::Broker;
use consumer::Settings;
use driver::{Kills, Run};
use judge::Verdict;

/// Does the run with consumers of this program, and says what came of it.
///
/// # Errors
/// Where the run could not be done. What went wrong in it is in the report.
pub async fn run(options: &Options, program: &Path) -> Result<Report> {
    match options.database {
        Database::Postgres => on::<PostgresStore>(options, program).await,
        Database::Sqlite => on::<SqliteStore>(options, program).await,
        Database::Mysql => on::<MysqlStore>(options, program).await,
    }
}

async fn on<B: Base + VersionedIn>(options: &Options, program: &Path) -> Result<Report> {
    let folder = tempfile::Builder::new().prefix("semel-lab-").tempdir()?;
    let place = Place::start(options.database, options.url.as_deref(), folder.path()).await?;
    let store = B::open(place.url()).await.context("the store")?;
    let name = format!("{}_{:x}", options.seed, now());
    let tables = Tables::of(&name);
    tables.make(&store).await?;
    let settings = Settings {
        storm: options.storm,
        database: options.database,
        url: place.url().into(),
        run: name.clone(),
        seed: options.seed,
        lease: options.lease,
        batches: false,
        bug: options.bug,
    };
    let run = Arc::new(Run {
        program: program.into(),
        settings,
        broker: Broker::new(plan::deliveries(options.seed, options.events)),
        kills: Kills::new(options.kills, options.seed),
    });
    let begun = Instant::now();
    let stopped = all(&run, options.consumers as u64).await;
    let seconds = begun.elapsed().as_secs_f64();
    let acknowledged = run.broker.acknowledged();
    let verdict = judged(&store, &tables, options, &name, &acknowledged).await?;
    tables.drop(&store).await?;
    store.close().await?;
    let counts = run.broker.counts();
    let mut report = Report::new(options, counts, &run.kills.hits(), verdict, seconds);
    if let Err(error) = stopped {
        report.fail(format!("{error:#}"));
    }
    Ok(report)
}

async fn all(run: &Arc<Run>, consumers: u64) -> Result<()> {
    let mut drivers = JoinSet::new();
    for number in 0..consumers {
        drivers.spawn(driver::drive(run.clone(), number));
    }
    while let Some(ended) = drivers.join_next().await {
        ended??;
    }
    Ok(())
}

async fn judged<B: Base + VersionedIn>(
    store: &B,
    tables: &Tables,
    options: &Options,
    run: &str,
    acknowledged: &BTreeSet<u64>,
) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let wanted = plan::single_delivery(options.seed, options.events);
    let applied = tables.applied(store).await?;
    match options.storm {
        Storm::Events => {
            let events = applied.iter().map(|[event, ..]| *event);
            verdict.applied(events, acknowledged);
            let mut found = tables.read(store).await?;
            found.retain(|id, asset| wanted.contains_key(id) || asset.events > 0);
            verdict.states(&found, &wanted);
        }
        Storm::Versioned => {
            let records = versioned::read(store, run).await?;
            versioned::judge(&mut verdict, &records, &applied, &wanted, acknowledged);
        }
    }
    Ok(verdict)
}
