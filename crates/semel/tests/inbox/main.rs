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

use semel::guard::Policy;
use semel::inbox::{DeadLetter, Event, Inbox, InboxError, Receipt};
use semel::store::Retention;
use semel::{Store, StoreError};

type Answer = Result<Receipt, InboxError<String>>;

fn event(id: &str) -> Event {
    Event::new("orders", id, format!("body of {id}"))
}

/// What an inbox has unless it is given another one.
fn policy() -> Policy {
    Policy::default().with_retention(Retention::EVENT)
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
            let kind = semel::StoreErrorKind::NotApplied;
            return Err(StoreError::new(kind, "no room for it"));
        }
        Ok(())
    }

    fn all(&self) -> Vec<DeadLetter> {
        self.0.lock().unwrap().0.clone()
    }
}
