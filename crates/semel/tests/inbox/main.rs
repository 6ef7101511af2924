//! Events, on the memory store in paused time.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod receive;
#[path = "../scripted/mod.rs"]
mod scripted;
mod set_aside;
mod transact;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{Policy, Ran};
use semel::inbox::{DeadLetter, Event, Inbox, InboxError, Receipt};
use semel::store::Retention;
use semel::{Store, StoreError, StoreErrorKind};

type Answer = Result<Receipt, InboxError<String>>;

fn event(id: &str) -> Event {
    Event::new("orders", id, format!("body of {id}"))
}

/// What an inbox has unless it is given another one.
fn policy() -> Policy {
    Policy::default().with_retention(Retention::EVENT)
}

/// How long to keep the event back in seconds, whether it may be handled later by itself, and what ran.
#[test]
fn each_error_says_what_to_do_with_the_event() {
    let store = |kind| StoreError::new(kind, "as told");
    let not_committed = |attempt| InboxError::NotCommitted {
        attempt,
        source: store(StoreErrorKind::NotApplied),
    };
    let not_taken = |attempt| InboxError::NotDeadLettered {
        attempt,
        source: "no room".into(),
    };
    let failed = |ran, kind| InboxError::Store {
        ran,
        source: store(kind),
    };
    let retry_after = Duration::from_secs(7);
    let superseded = |ran| InboxError::Superseded { ran };
    let errors: [(InboxError<String>, u64, bool, Ran); _] = [
        (InboxError::NoId, 60, false, Ran::No),
        (InboxError::InFlight { retry_after }, 7, true, Ran::No),
        (InboxError::Unknown, 60, false, Ran::No),
        (InboxError::Unresolved, 10, true, Ran::No),
        (InboxError::Mismatch, 60, false, Ran::No),
        (InboxError::TransactionKept, 60, false, Ran::No),
        (superseded(Ran::No), 1, true, Ran::No),
        (superseded(Ran::Yes), 1, true, Ran::Yes),
        (not_committed(1), 1, true, Ran::No),
        (not_committed(3), 4, true, Ran::No),
        (not_taken(6), 32, true, Ran::No),
        (not_taken(u32::MAX), 60, true, Ran::No),
        // Set aside without an attempt.
        (not_taken(0), 60, true, Ran::No),
        (
            failed(Ran::No, StoreErrorKind::NotApplied),
            1,
            true,
            Ran::No,
        ),
        (
            failed(Ran::Yes, StoreErrorKind::Corrupt),
            60,
            false,
            Ran::Yes,
        ),
        // For another process with a store of its own.
        (failed(Ran::No, StoreErrorKind::Closed), 1, false, Ran::No),
    ];
    for (error, wait, retryable, ran) in errors {
        assert_eq!(error.retry_after().as_secs(), wait, "{error:?}");
        assert_eq!(error.is_retryable(), retryable, "{error:?}");
        assert_eq!(error.ran(), ran, "{error:?}");
    }
}

/// Longer than a released record without steps is kept.
const LATER: Duration = Duration::from_mins(10);

/// Receives it with work that fails, or does not.
async fn receive<S: Store>(inbox: &Inbox<S>, event: &Event, runs: &Runs, fails: bool) -> Answer {
    let runs = runs.clone();
    let work = move |_| async move {
        runs.ran();
        if fails {
            return Err(format!("failure {}", runs.count()));
        }
        Ok(())
    };
    inbox.receive(event, work).await
}

/// How often work ran.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicU32>);

impl Runs {
    fn ran(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// What was handed to the callback, which fails while it is told to.
#[derive(Clone, Default)]
struct Taken(Arc<Mutex<(Vec<DeadLetter>, u32)>>);

impl Taken {
    fn failing(times: u32) -> Self {
        let taken = Self::default();
        taken.0.lock().unwrap().1 = times;
        taken
    }

    fn inbox<S: Store>(&self, inbox: Inbox<S>) -> Inbox<S> {
        let taken = self.clone();
        inbox.with_dead_letters(move |letter| {
            let taken = taken.clone();
            async move { taken.take(letter) }
        })
    }

    fn take(&self, letter: DeadLetter) -> Result<(), StoreError> {
        let mut taken = self.0.lock().unwrap();
        taken.0.push(letter);
        if taken.1 > 0 {
            taken.1 -= 1;
            let kind = StoreErrorKind::NotApplied;
            return Err(StoreError::new(kind, "no room for it"));
        }
        Ok(())
    }

    fn all(&self) -> Vec<DeadLetter> {
        self.0.lock().unwrap().0.clone()
    }
}
