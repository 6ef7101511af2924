//! Operations: identities made of calls, and work run once under them, on the memory store.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::guard::{Guard, Policy, Ran, RunError};
use semel::memory::{Limits, MemoryStore};
use semel::operation::{Bound, Call, Caller, Part};
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

/// How often its work ran.
#[derive(Clone, Default)]
struct Count(Arc<AtomicU32>);

impl Count {
    /// Runs the operation; the answer is which run it was, from 1.
    async fn run<S: semel::Store>(
        &self,
        on: &Bound<S>,
        call: &Call,
    ) -> Result<Ran<String>, RunError<Infallible>> {
        let count = self.0.clone();
        on.run(call, |_| async move {
            Ok((count.fetch_add(1, Ordering::SeqCst) + 1).to_string())
        })
        .await
    }

    fn runs(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

fn first(run: u32) -> Ran<String> {
    Ran::First(run.to_string())
}

fn replayed(run: u32) -> Ran<String> {
    Ran::Replayed(run.to_string())
}
