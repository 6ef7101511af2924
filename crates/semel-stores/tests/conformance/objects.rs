//! The memory store, with outcomes above a few bytes kept outside it.

use std::sync::Arc;

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel::memory::{Limits, MemoryStore};
use semel::{ManualClock, Timestamp};
use semel_stores::objects::object_store::memory::InMemory;
use semel_stores::objects::{Objects, Offloaded};

use super::trials;

pub(super) fn all() -> Vec<Trial> {
    trials("objects", Memory)
}

/// Above it, lists show less than reading a record alone does.
const ABOVE: usize = 16;

#[derive(Clone, Copy)]
struct Memory;

impl Factory for Memory {
    async fn open(&self) -> Result<Bench, Failure> {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
        let inner = Arc::new(MemoryStore::with_clock(Limits::default(), clock.clone()));
        let objects = Objects::new(Arc::new(InMemory::new()));
        let first = Offloaded::new(inner.clone(), objects.clone(), ABOVE);
        let second = Offloaded::new(inner, objects, ABOVE);
        let bench = Bench::new(Arc::new(first)).with_other(Arc::new(second));
        Ok(bench.with_clock(clock).exclusive())
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}
