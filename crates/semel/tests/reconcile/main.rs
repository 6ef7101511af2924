//! Asking what became of lost attempts, on the memory store, in paused time.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod background;
mod in_line;
#[path = "../scripted/mod.rs"]
#[allow(dead_code, reason = "shared with tests that use the rest")]
mod scripted;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{
    Answer, Answered, Asked, Attempt, Begin, Case, Done, Finding, Guard, GuardBuilder, Held,
    Observer, Policy, Reconciled, Reconciler, RunError, Seen, Signal, StepKey,
};
use semel::memory::MemoryStore;
use semel::store::{Fence, Fenced, Nonce, OnLost, Resolution, Retention, StoreExt as _, Verdict};
use semel::{Fingerprint, Identity, Key, Note, Outcome, Record, Scope, Store};
use tokio::time::{Instant, sleep};

type Memory = Arc<MemoryStore>;

const LEASE: Duration = Duration::from_secs(30);
const KEY: &str = "order-4711-and-more";

/// What the reconciler does when it is asked.
#[derive(Clone)]
enum Act {
    Say(Answer),
    /// Says it after this long.
    Late(Duration, Finding),
    Fail,
    Panic,
    Hang,
}

fn say(finding: Finding) -> Act {
    Act::Say(finding.into())
}

/// What it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Question {
    key: Option<String>,
    about: Option<String>,
    note: String,
    hint: String,
    operation: String,
    fence: Fence,
    attempt: u32,
    asked: u32,
    charge: StepKey,
    reserved: Option<String>,
}

/// A reconciler by the book: one act for each question, the last one again and again; and the
/// observer who was told.
struct Script {
    acts: Vec<Act>,
    asked: Mutex<Vec<Question>>,
    times: Mutex<Vec<Instant>>,
    signals: Mutex<Vec<Signal>>,
    news: Mutex<Vec<String>>,
}

impl Script {
    fn new(acts: impl IntoIterator<Item = Act>) -> Arc<Self> {
        Arc::new(Self {
            acts: acts.into_iter().collect(),
            asked: Mutex::default(),
            times: Mutex::default(),
            signals: Mutex::default(),
            news: Mutex::default(),
        })
    }

    fn asked(&self) -> Vec<Question> {
        self.asked.lock().unwrap().clone()
    }

    fn count(&self, signal: Signal) -> usize {
        let signals = self.signals.lock().unwrap();
        signals.iter().filter(|seen| **seen == signal).count()
    }

    fn news(&self) -> Vec<String> {
        self.news.lock().unwrap().clone()
    }
}

impl Reconciler for Script {
    fn reconcile<'a>(&'a self, case: &'a Case<'_>) -> Answered<'a> {
        self.times.lock().unwrap().push(Instant::now());
        let act = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(Question {
                key: case.key.map(|key| key.as_str().to_owned()),
                about: case.about.map(str::to_owned),
                note: case.note.get("method").unwrap_or_default().to_owned(),
                hint: case.key_hint.to_owned(),
                operation: case.operation.to_owned(),
                fence: case.fence,
                attempt: case.attempt,
                asked: case.asked,
                charge: case.step_key("charge"),
                reserved: case.step_result("reserve"),
            });
            self.acts[(asked.len() - 1).min(self.acts.len() - 1)].clone()
        };
        Box::pin(async move {
            match act {
                Act::Say(answer) => Ok(answer),
                Act::Late(after, finding) => {
                    sleep(after).await;
                    Ok(finding.into())
                }
                Act::Fail => Err("the bank is closed".into()),
                Act::Panic => panic!("on purpose"),
                Act::Hang => std::future::pending().await,
            }
        })
    }
}

impl Observer for Script {
    fn on_event(&self, seen: &Seen<'_>) {
        self.signals.lock().unwrap().push(seen.signal);
    }

    fn on_reconcile(&self, case: &Case<'_>, news: &Reconciled<'_>) {
        let line = format!("{} {news:?}", case.asked);
        self.news.lock().unwrap().push(line);
    }
}

fn policy() -> Policy {
    Policy::default()
        .with_lease(LEASE)
        .with_on_lost(OnLost::Reconcile)
        .with_retention(Retention::PAYMENT)
}

fn guard(store: &Memory, script: &Arc<Script>) -> Guard<Memory> {
    builder(Arc::clone(store), script).build()
}

fn builder<S: Store>(store: S, script: &Arc<Script>) -> GuardBuilder<S> {
    Guard::builder(store)
        .policy(policy())
        .observer(script.clone())
        .reconciler(script.clone())
}

fn identity() -> Identity {
    of_operation("pay")
}

fn of_operation(operation: &str) -> Identity {
    let key = Key::new(KEY).unwrap();
    Identity::new(Scope::new(["tenant"]), operation, key)
}

fn asked() -> Asked {
    asks(identity())
}

fn asks(identity: Identity) -> Asked {
    Asked::new(identity, Fingerprint::of(b"7 EUR"))
        .about("7 EUR for a seat")
        .with_note(Note::new([("method", "POST")]))
}

async fn begin<S: Store>(guard: &Guard<S>, asked: &Asked) -> Held<S> {
    match guard.begin(asked).await.unwrap() {
        Begin::Acquired(held) => held,
        other => panic!("{other:?}"),
    }
}

/// An attempt that nobody settles: its process died, and its lease lapsed since.
async fn lost<S: Store>(guard: &Guard<S>, identity: Identity) {
    begin(guard, &asks(identity)).await.let_lapse();
    sleep(LEASE).await;
}

/// Lost between the call of the bank and its answer. Returns the key that the bank was given, and
/// the attempt's fence.
async fn lost_while_charging(guard: &Guard<Memory>) -> (StepKey, Fence) {
    let mut held = begin(guard, &asked()).await;
    let mut attempt = held.attempt();
    let seat = |_| async { Ok::<_, Infallible>("seat 12".to_owned()) };
    attempt.step("reserve", seat).await.unwrap();
    held.let_lapse();
    let (tell, given) = tokio::sync::oneshot::channel();
    let charge = |key| async move {
        tell.send(key).unwrap();
        std::future::pending::<Result<String, Infallible>>().await
    };
    tokio::time::timeout(LEASE, attempt.step("charge", charge))
        .await
        .unwrap_err();
    (given.await.unwrap(), attempt.fence)
}

async fn pay<S: Store>(guard: &Guard<S>) -> Result<Done<String>, RunError<Infallible>> {
    let paid =
        |attempt: Attempt<S>| async move { Ok(format!("paid by attempt {}", attempt.number)) };
    guard.run(asked(), paid).await
}

async fn record(store: &Memory) -> Record {
    store
        .get(identity().digest())
        .await
        .unwrap()
        .unwrap()
        .record
}

/// What an operator does.
async fn resolve(store: &Memory, verdict: Verdict) {
    let resolution = Resolution {
        verdict,
        by: "ada".into(),
        reason: "looked it up in the bank's books".into(),
        fence: record(store).await.token.fence,
        nonce: Nonce::random().unwrap(),
    };
    let resolved = store.resolve(identity().digest(), &resolution).await;
    assert_eq!(resolved.unwrap(), Fenced::Applied);
}

fn happened() -> Finding {
    Finding::Happened(Outcome::success(b"paid"))
}

fn replayed() -> Done<String> {
    Done::Replayed("paid".to_owned())
}

/// Counts how often work runs.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicU32>);

impl Runs {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}
