//! A store of one's own, and the suite run against it:
//! `cargo run -p semel --features conformance --example own_store`.
//!
//! `docs/write-a-store.md` goes through it. Copy the folder, replace what is in `database.rs`, and
//! run it until every case passes.

#![allow(missing_docs, unreachable_pub, reason = "a template, not a library")]

mod database;
mod store;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use semel::conformance::{Bench, CASES, Factory, Failure, run};

use database::Database;
use store::OwnStore;

struct Own;

impl Factory for Own {
    // Two handles, as two processes would have: what one keeps in its memory the other does not see.
    async fn open(&self) -> Result<Bench, Failure> {
        let database = Database::connect();
        let other = OwnStore::new(database.clone());
        Ok(Bench::new(OwnStore::new(database))
            .with_other(other)
            .exclusive())
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() -> ExitCode {
    let own = Arc::new(Own);
    let trials = CASES.iter().map(|case| {
        let own = own.clone();
        Trial::test(format!("own::{}", case.name), move || {
            // Several threads: on one the races are no races.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            Ok(runtime.block_on(run(case, &*own))?)
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
