//! The memory store answers every sequence of steps as the model of the protocol does.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use semel::conformance::Bench;
use semel::conformance::model::{Step, agree};
use semel::memory::{Limits, MemoryStore};
use semel::{ManualClock, Timestamp};

fuzz_target!(|data: &[u8]| {
    let (bytes, _) = data.as_chunks::<6>();
    let steps: Vec<Step> = bytes.iter().map(|bytes| Step::of(*bytes)).collect();
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
    let limits = Limits {
        records: 100,
        bytes: 1 << 20,
    };
    let store = MemoryStore::with_clock(limits, clock.clone());
    let bench = Bench::new(store).with_clock(clock).exclusive();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let agreed = runtime.expect("a runtime").block_on(agree(&bench, &steps));
    if let Err(failure) = agreed {
        panic!("{failure}");
    }
});
