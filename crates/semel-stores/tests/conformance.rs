//! Every case of the suite, on every store whose feature is on.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use semel::conformance::{CASES, Case, Factory, run};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most cases sleep most of the time.
    arguments.test_threads.get_or_insert(8);
    let stores: Vec<Vec<Trial>> = Vec::from([
        #[cfg(feature = "file")]
        trials("file/system", file::File::System),
        #[cfg(feature = "file")]
        trials("file/manual", file::File::Manual),
    ]);
    let trials = stores.into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg_attr(
    not(feature = "file"),
    expect(dead_code, reason = "no store's feature is on")
)]
fn trials(store: &str, factory: impl Factory + Copy + Send + 'static) -> Vec<Trial> {
    let trial = |case: &'static Case| {
        Trial::test(format!("{store}::{}", case.name), move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_time()
                .build()?;
            Ok(runtime.block_on(run(case, &factory))?)
        })
    };
    CASES.iter().map(trial).collect()
}

#[cfg(feature = "file")]
mod file {
    use std::sync::Arc;

    use semel::conformance::{Bench, Factory, Failure};
    use semel::{ManualClock, Timestamp};
    use semel_stores::FileOptions;

    #[derive(Clone, Copy)]
    pub(super) enum File {
        System,
        Manual,
    }

    impl Factory for File {
        async fn open(&self) -> Result<Bench, Failure> {
            let directory = tempfile::tempdir().map_err(|e| Failure::new(e.to_string()))?;
            let options = FileOptions::new().for_tests();
            let bench = match self {
                Self::System => {
                    let store = Arc::new(options.open(directory.path())?);
                    Bench::new(store.clone()).with_other(store)
                }
                Self::Manual => {
                    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
                    let store = Arc::new(options.clock(clock.clone()).open(directory.path())?);
                    Bench::new(store.clone())
                        .with_other(store)
                        .with_clock(clock)
                }
            };
            Ok(bench.exclusive().keeping(directory))
        }

        async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
            Ok(())
        }
    }
}
