//! Operations: identities made of calls, and work run once under them, on the memory store.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::guard::{Done, Guard, Policy, RunError};
use semel::memory::{Limits, MemoryStore};
use semel::operation::{Call, Caller, Operation, Part};
use semel::{ManualClock, Timestamp};

mod account;
mod identity;
mod running;
mod strategies;
mod windows;

type Clock = Arc<ManualClock>;
type Store = Arc<MemoryStore<Clock>>;

/// A store whose clock stands still until it is moved, and a guard on it.
struct Bench {
    clock: Clock,
    store: Store,
    guard: Guard<Store>,
}

/// A day's beginning, far from the epoch.
const START: Timestamp = Timestamp::from_micros(20_000 * 86_400_000_000);

impl Bench {
    fn new() -> Self {
        Self::with(Policy::default())
    }

    fn with(policy: Policy) -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let store = MemoryStore::with_clock(Limits::default(), clock.clone());
        let store = Arc::new(store);
        let guard = Guard::new(store.clone(), policy);
        Self {
            clock,
            store,
            guard,
        }
    }
}

fn caller() -> Caller {
    Caller::new()
        .with(Part::TENANT, "acme")
        .with(Part::ACCOUNT, "a-1")
        .with(Part::USER, "u-7")
        .with(Part::SESSION, "s-3")
}

fn call() -> Call {
    Call::by(&caller())
}

/// Runs operations on one guard, and counts how often their work ran.
struct Count {
    guard: Guard<Store>,
    runs: Arc<AtomicU32>,
}

impl Count {
    fn on(bench: &Bench) -> Self {
        Self {
            guard: bench.guard.clone(),
            runs: Arc::default(),
        }
    }

    /// Runs the operation; the answer is which run it was, from 1.
    async fn run(&self, op: &Operation, call: &Call) -> Result<Done<String>, RunError<Infallible>> {
        let runs = self.runs.clone();
        let work =
            move |_| async move { Ok((runs.fetch_add(1, Ordering::SeqCst) + 1).to_string()) };
        self.guard.run(op.asked(call).unwrap(), work).await
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

fn first(run: u32) -> Done<String> {
    Done::Fresh(run.to_string())
}

fn replayed(run: u32) -> Done<String> {
    Done::Replayed(run.to_string())
}
