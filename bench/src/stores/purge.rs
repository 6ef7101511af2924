//! How long claims take while expired records are purged, beside the same without.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use semel::purge::Purger;
use semel::store::Retention;
use semel::{AnyStore, Store as _};
use semel_bench_report::{Goal, Measurement};
use semel_testkit::servers::{Kind, start};

use super::{open, pair};
use crate::disk;
use crate::run::{Run, progress};

/// How many callers claim meanwhile.
const CALLERS: usize = 4;

pub(super) fn measure(run: &Run) -> Result<()> {
    let directory = disk::directory()?;
    let file = format!("sqlite:{}", directory.path().join("records.db").display());
    for (name, kind) in [
        ("postgres", Some(Kind::Postgres)),
        ("mariadb", Some(Kind::MariaDb)),
        ("sqlite", None),
    ] {
        let name = format!("stores/{name}/claims-while-purging");
        if !run.wants(&name) {
            continue;
        }
        let server = kind.map(start).transpose()?;
        let url = server.as_ref().map_or(file.clone(), |server| server.url());
        let runtime = semel_bench_load::workers();
        let expired = run.size(50_000, 5_000);
        let (mut without, mut with, mut next) = (Vec::new(), Vec::new(), 0);
        for round in 1..=run.few_rounds() {
            progress(format_args!(
                "{name}: {expired} expired records, round {round}"
            ));
            let (a, b, took) = runtime.block_on(both(&url, expired, &mut next, run))?;
            progress(format_args!("{name}: purged in {took:.1?}"));
            without.push(a);
            with.push(b);
        }
        Measurement::new(&name, "ms (99 %)", with)
            .against("without a purge", &without)
            .goal(Goal::RatioAtMost(2.0))
            .print();
    }
    Ok(())
}

/// The 99th percentile without a purge and with one, and how long that took. `next` numbers the
/// identities.
async fn both(
    url: &str,
    expired: usize,
    next: &mut usize,
    run: &Run,
) -> Result<(f64, f64, Duration)> {
    let store = open(url).await?;
    fill(&store, *next..*next + expired).await?;
    let enough = Duration::from_secs(run.size(5, 1) as u64);
    let stop = Arc::new(AtomicBool::new(false));
    let claims = tokio::spawn(claims(store.clone(), *next + expired, stop.clone()));
    tokio::time::sleep(enough).await;
    stop.store(true, Ordering::Relaxed);
    let (without, then) = claims.await??;

    let stop = Arc::new(AtomicBool::new(false));
    let claims = tokio::spawn(self::claims(store.clone(), then, stop.clone()));
    let started = Instant::now();
    let purged = Purger::new(store.clone()).once().await?;
    anyhow::ensure!(purged >= expired, "{purged} of {expired} were purged");
    let took = started.elapsed();
    stop.store(true, Ordering::Relaxed);
    let (with, then) = claims.await??;
    *next = then;
    store.close().await?;
    Ok((without, with, took))
}

/// Records whose retention is over at once.
async fn fill(store: &AnyStore, records: Range<usize>) -> Result<()> {
    let callers = 128;
    let running: Vec<_> = (0..callers)
        .map(|caller| {
            let (store, records) = (store.clone(), records.clone());
            tokio::spawn(async move {
                for index in records.skip(caller).step_by(callers) {
                    pair(&store, index, Retention::new(Duration::ZERO)).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for caller in running {
        caller.await??;
    }
    Ok(())
}

/// The 99th percentile of pairs of a few callers until they are stopped, in milliseconds, and the
/// next identity's number.
async fn claims(store: AnyStore, from: usize, stop: Arc<AtomicBool>) -> Result<(f64, usize)> {
    let running: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (store, stop) = (store.clone(), stop.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    let index = from + caller + times.len() * CALLERS;
                    pair(&store, index, Retention::ORDER).await?;
                    times.push(started.elapsed().as_secs_f64() * 1000.0);
                }
                anyhow::Ok(times)
            })
        })
        .collect();
    let (mut all, mut most) = (Vec::new(), 0);
    for caller in running {
        let times = caller.await??;
        most = most.max(times.len());
        all.extend(times);
    }
    all.sort_by(f64::total_cmp);
    let at = all.len() * 99 / 100;
    Ok((
        all.get(at).copied().unwrap_or(f64::NAN),
        from + most * CALLERS,
    ))
}
