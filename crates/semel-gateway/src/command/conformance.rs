//! `semel conformance`: the suite that every store passes, run against a store.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::ArgMatches;
use semel::conformance::{Bench, CASES, Case, Factory, Failure, run};
use semel::store::Store as _;
use semel_stores::{OpenError, OpenOptions, Schema};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{FAILED, MISUSED, block_on, fail, with_causes};
use crate::config::values;

/// Runs the cases and prints a table. Exit code 1 where one failed.
pub fn main(flags: &ArgMatches) -> ExitCode {
    // The flag alone: a file or the environment may name the store of a gateway, in which the suite
    // would leave its records.
    let url = flags.get_one::<String>("store").map_or("", String::as_str);
    let store = match values::store(url) {
        Ok(store) => store,
        Err(reason) => return fail(MISUSED, format_args!("error: --store: {reason}")),
    };
    let only = flags.get_one::<String>("only").map_or("", String::as_str);
    let cases: Vec<&'static Case> = CASES.iter().filter(|c| c.name.contains(only)).collect();
    if cases.is_empty() {
        return fail(
            MISUSED,
            format_args!("error: no case has `{only}` in its name"),
        );
    }
    let jobs = flags.get_one::<u16>("jobs").copied().unwrap_or(1);
    block_on(async {
        match check(Opener::new(store), &cases, jobs.into()).await {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(FAILED),
            Err(error) => fail(FAILED, format_args!("error: {}", with_causes(&error))),
        }
    })
}

async fn check(opener: Opener, cases: &[&'static Case], jobs: usize) -> Result<bool, OpenError> {
    let from = Instant::now();
    let store = opener.store().await?;
    let probe = store.probe().await?;
    store.close().await?;
    let mut out = io::stdout();
    // Where stdout is closed the exit code still tells.
    writeln!(
        out,
        "store {}, durability {:?}",
        probe.store, probe.durability
    )
    .ok();
    for warning in &probe.warnings {
        writeln!(out, "warning: {warning}").ok();
    }
    let results = run_all(opener, cases, jobs).await;
    print(&mut out, cases, &results, from).ok();
    Ok(results.values().all(Result::is_ok))
}

type Results = BTreeMap<&'static str, Result<(), Failure>>;

async fn run_all(opener: Opener, cases: &[&'static Case], jobs: usize) -> Results {
    let (opener, seats) = (Arc::new(opener), Arc::new(Semaphore::new(jobs)));
    let mut running = JoinSet::new();
    for &case in cases {
        let (opener, seats) = (Arc::clone(&opener), Arc::clone(&seats));
        running.spawn(async move {
            // Never closed.
            let _seat = seats.acquire().await;
            // A task of its own: a panic of the store fails this case alone.
            let done = tokio::spawn(async move { run(case, &*opener).await }).await;
            let result = done.unwrap_or_else(|e| Err(Failure::new(format!("it panicked: {e}"))));
            (case.name, result)
        });
    }
    running.join_all().await.into_iter().collect()
}

fn print(
    out: &mut impl io::Write,
    cases: &[&Case],
    results: &Results,
    from: Instant,
) -> io::Result<()> {
    let mut groups: Vec<(&str, usize, usize)> = Vec::new();
    for case in cases {
        let group = case
            .name
            .split_once("::")
            .map_or(case.name, |(group, _)| group);
        if groups.last().is_none_or(|(last, ..)| *last != group) {
            groups.push((group, 0, 0));
        }
        if let (Some((_, passed, failed)), Some(result)) =
            (groups.last_mut(), results.get(case.name))
        {
            *(if result.is_ok() { passed } else { failed }) += 1;
        }
    }
    writeln!(out, "{:<12} {:>6} {:>6}", "group", "passed", "failed")?;
    for (group, passed, failed) in &groups {
        writeln!(out, "{group:<12} {passed:>6} {failed:>6}")?;
    }
    for case in cases {
        if let Some(Err(failure)) = results.get(case.name) {
            writeln!(
                out,
                "FAILED {}: {}\n       {failure}",
                case.name, case.promise
            )?;
        }
    }
    let failed = results.values().filter(|result| result.is_err()).count();
    let (all, took) = (results.len(), from.elapsed());
    writeln!(
        out,
        "{all} cases, {} passed, {failed} failed, {took:.1?}",
        all - failed
    )
}

/// Opens the store that a URL names, for each case anew.
struct Opener {
    url: String,
}

impl Opener {
    const fn new(url: String) -> Self {
        Self { url }
    }

    async fn store(&self) -> Result<semel::AnyStore, OpenError> {
        let mut options = OpenOptions::default();
        options.schema = Schema::Create;
        semel_stores::open(&self.url, &options).await
    }
}

impl Factory for Opener {
    async fn open(&self) -> Result<Bench, Failure> {
        let failed = |error: OpenError| Failure::new(with_causes(&error));
        // One process, and in it one handle, has these open.
        let (alone, in_directory) = match self.url.split_once(':') {
            Some(("memory", _)) => (true, None),
            Some(("file", path)) => (true, Some(path)),
            _ => (false, None),
        };
        if let Some(path) = in_directory {
            std::fs::create_dir_all(path).map_err(|error| Failure::new(error.to_string()))?;
            let directory = tempfile::Builder::new()
                .prefix("conformance-")
                .tempdir_in(path);
            let directory = directory.map_err(|error| Failure::new(error.to_string()))?;
            let own = Self::new(format!(
                "file:{}",
                directory.path().join("records").display()
            ));
            let store = own.store().await.map_err(failed)?;
            return Ok(Bench::new(store.clone())
                .with_other(store)
                .keeping(directory));
        }
        let store = self.store().await.map_err(failed)?;
        let other = if alone {
            store.clone()
        } else {
            self.store().await.map_err(failed)?
        };
        Ok(Bench::new(store).with_other(other))
    }

    async fn clean(&self, bench: Bench) -> Result<(), Failure> {
        bench.store().close().await?;
        Ok(())
    }
}
