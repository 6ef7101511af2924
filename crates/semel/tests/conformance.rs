//! Every case of the suite, on the memory store: with the machine's clock and with one that stands
//! still until it is advanced.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use semel::conformance::{Bench, CASES, Factory, Failure, run};
use semel::memory::{Limits, MemoryStore};
use semel::versioned::MemoryVersioned;
use semel::{ManualClock, SystemClock, Timestamp};

#[derive(Clone, Copy)]
enum Memory {
    System,
    Manual,
    #[cfg(feature = "sealed")]
    Sealed,
}

impl Factory for Memory {
    async fn open(&self) -> Result<Bench, Failure> {
        let limits = Limits::default();
        let bench = match self {
            Self::System => {
                let store = Arc::new(MemoryStore::with_clock(limits, SystemClock::new()));
                Bench::new(store.clone()).with_other(store)
            }
            Self::Manual => {
                let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
                let store = Arc::new(MemoryStore::with_clock(limits, clock.clone()));
                Bench::new(store.clone())
                    .with_other(store)
                    .with_clock(clock)
            }
            #[cfg(feature = "sealed")]
            Self::Sealed => {
                let store = MemoryStore::with_clock(limits, SystemClock::new());
                let key = "2026-11 AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
                let keys =
                    semel::sealed::Keys::parse(key).map_err(|e| Failure::new(e.to_string()))?;
                let store = Arc::new(semel::sealed::Sealed::new(store, keys));
                Bench::new(store.clone()).with_other(store)
            }
        };
        Ok(bench.exclusive())
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most cases sleep most of the time.
    arguments.test_threads.get_or_insert(8);
    let mut trials = Vec::new();
    for (name, store) in [
        ("system", Memory::System),
        ("manual", Memory::Manual),
        #[cfg(feature = "sealed")]
        ("sealed", Memory::Sealed),
    ] {
        for case in CASES {
            trials.push(Trial::test(
                format!("memory/{name}::{}", case.name),
                move || {
                    let runtime = tokio::runtime::Builder::new_multi_thread()
                        .worker_threads(2)
                        .enable_time()
                        .build()?;
                    Ok(runtime.block_on(run(case, &store))?)
                },
            ));
        }
    }
    for case in semel::versioned::suite::cases() {
        trials.push(Trial::test(
            format!("memory/versioned::{}", case.name),
            move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_time()
                    .build()?;
                Ok(runtime.block_on((case.run)(Arc::new(MemoryVersioned::default())))?)
            },
        ));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
