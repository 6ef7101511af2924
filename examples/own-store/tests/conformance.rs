//! Every case of the suite, on this store.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use own_store::OwnDatabase;
use semel::backend::Recorded;
use semel::conformance::{Bench, CASES, Factory, Failure, run};

struct Own;

impl Factory for Own {
    // Two handles, as two processes would have: what one keeps in its memory the other does not see.
    async fn open(&self) -> Result<Bench, Failure> {
        let database = OwnDatabase::default();
        let other = Recorded::new(database.clone());
        Ok(Bench::new(Recorded::new(database))
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
