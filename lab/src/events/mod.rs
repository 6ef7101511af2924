//! A storm of events: each is delivered 3 to 10 times in random order, by a broker that delivers
//! again what is not acknowledged, to consumers that are killed. Each is to be applied once, and all
//! of them to come to what a single delivery of each comes to.
//!
//! The parent is the broker. Consumers are processes; half of them take one event at a time, half
//! of them batches. What they did is judged after everything was acknowledged.

pub(crate) mod apply;
mod broker;
mod bugs;
pub(crate) mod consumer;
mod driver;
pub(crate) mod judge;
mod options;
pub(crate) mod plan;
mod report;
pub(crate) mod shelf;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use semel::versioned::VersionedIn;
use semel_stores::{MysqlStore, PostgresStore, SqliteStore};

pub(crate) use broker::Kind;
pub use bugs::Bug;
pub use options::{Options, Storm};

use crate::base::{Base, Database, Place};
use crate::clock::now;
use crate::process::together;
use crate::versioned;
use apply::Tables;
use broker::{Broker, Counts};
use consumer::Settings;
use driver::{Kills, Run};
use judge::Verdict;
use plan::{Ends, Happening};
use report::Report;

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

async fn on<B: Base + VersionedIn>(options: &Options) -> Result<bool> {
    let folder = tempfile::Builder::new().prefix("semel-lab-").tempdir()?;
    let place = Place::start(options.database, options.url.as_deref(), folder.path()).await?;
    let store = B::open(place.url()).await.context("the store")?;
    let name = format!("{}_{:x}", options.seed, now());
    let tables = Tables::of(&name);
    tables.make(&store).await?;
    // Those bugs do without the inbox, whose dead letters they are.
    let plain = matches!(options.bug, Some(Bug::NoInbox | Bug::CommitsApart));
    let letters = folder.path().join("letters");
    let poison = options.storm == Storm::Events && !plain;
    let settings = Settings {
        options: options.clone(),
        url: String::new(),
        run: name.clone(),
        batches: false,
        slots: 0,
        letters: poison.then(|| letters.clone()),
    };
    let points = driver::points(&place, poison);
    let run = Arc::new(Run {
        place,
        settings,
        broker: Broker::new(plan::deliveries(options.seed, options.events)),
        kills: Kills::new(&points, options.kills, options.seed),
    });
    let begun = Instant::now();
    let drivers = (0..options.consumers).map(|number| driver::drive(run.clone(), number));
    let stopped = together(drivers).await;
    let seconds = begun.elapsed().as_secs_f64();
    let counts = run.broker.counts();
    let verdict = judged(&store, &tables, &run.settings, &counts).await?;
    tables.drop(&store).await?;
    store.close().await?;
    let hits = run.kills.hits();
    let mut report = Report::new(options, counts, &points, &hits, verdict, seconds);
    if let Err(error) = stopped {
        report.reasons.failed(format!("{error:#}"));
    }
    report.reasons.tell(&report)
}

async fn judged<B: Base + VersionedIn>(
    store: &B,
    tables: &Tables,
    settings: &Settings,
    counts: &Counts,
) -> Result<Verdict> {
    let options = &settings.options;
    let mut verdict = Verdict::default();
    let (shelf, poison) = match &settings.letters {
        Some(letters) => (shelf::read(letters)?, true),
        None => (BTreeMap::new(), false),
    };
    let poisonous = |number| {
        let event = Happening::of(options.seed, number).with_poison(poison);
        event.ends != Ends::Well
    };
    let poisonous: BTreeSet<u64> = (0..options.events).filter(|n| poisonous(*n)).collect();
    let told = &counts.set_aside;
    let aside = |event: &u64| poisonous.contains(event) || told.contains(event);
    let wanted = plan::single_delivery(options.seed, options.events, |event| aside(&event));
    let mut acknowledged = counts.acknowledged_events.clone();
    acknowledged.retain(|event| !aside(event));
    let applied = tables.applied(store).await?;
    match options.storm {
        Storm::Events => {
            let events = applied.iter().map(|[event, ..]| *event);
            verdict.applied(events.clone(), &acknowledged);
            verdict.set_aside(&shelf, &events.collect(), told, &poisonous);
            let mut found = tables.read(store).await?;
            found.retain(|id, asset| wanted.contains_key(id) || asset.events > 0);
            verdict.states(&found, &wanted);
        }
        Storm::Versioned => {
            let records = versioned::read(store, &settings.run).await?;
            versioned::judge(&mut verdict, &records, &applied, &wanted, &acknowledged);
        }
    }
    Ok(verdict)
}
