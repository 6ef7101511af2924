//! Every case of the suite, on every store whose feature is on.

#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "objects")]
mod objects;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod transactions;
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
mod versioned;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use semel::conformance::{CASES, Case, Factory, run};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most cases sleep most of the time.
    arguments.test_threads.get_or_insert(16);
    let stores: Vec<Vec<Trial>> = Vec::from([
        #[cfg(feature = "dynamodb")]
        dynamodb::all(),
        #[cfg(feature = "file")]
        file::all(),
        #[cfg(feature = "mysql")]
        mysql::all(),
        #[cfg(feature = "nats")]
        nats::all(),
        #[cfg(feature = "objects")]
        objects::all(),
        #[cfg(feature = "postgres")]
        postgres::all(),
        #[cfg(feature = "redis")]
        redis::all(),
        #[cfg(feature = "sqlite")]
        sqlite::all(),
    ]);
    libtest_mimic::run(&arguments, in_turn(stores)).exit_code()
}

/// One of each store after the other, so that no server has all of them at once.
fn in_turn(stores: Vec<Vec<Trial>>) -> Vec<Trial> {
    let mut stores: Vec<_> = stores.into_iter().map(Vec::into_iter).collect();
    let mut trials = Vec::new();
    while !stores.is_empty() {
        trials.extend(stores.iter_mut().filter_map(Iterator::next));
        stores.retain(|store| store.len() > 0);
    }
    trials
}

/// Every case on one store.
#[cfg_attr(
    not(any(feature = "_server", feature = "file", feature = "objects")),
    expect(dead_code, reason = "no store's feature is on")
)]
fn trials(store: &str, factory: impl Factory + Copy + Send + 'static) -> Vec<Trial> {
    let trial = |case: &'static Case| {
        Trial::test(format!("{store}::{}", case.name), move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            Ok(runtime.block_on(run(case, &factory))?)
        })
    };
    CASES.iter().map(trial).collect()
}
