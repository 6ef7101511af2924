//! A worker: a process with a guard. Its parent says on standard input what to run; it says on
//! standard output how far each run is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use semel::guard::{
    Answered, Attempt, AttemptInfo, Background, Case, Done, Finding, Guard, Policy,
    ReconcileOptions, Reconciler, RunError,
};
use semel::{AnyStore, Fingerprint, Identity, Key, Scope, Store as _, Value as _, store};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::ledger::Ledger;
use super::{Bug, Options};
use crate::bugs::{self, Buggy};
use crate::gateway::OnLost;
use crate::process::{Orders, say};
use crate::worker::process::open;

const OPERATION: &str = "pay";

/// What a worker is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(super) options: Options,
    pub(super) url: String,
    pub(super) ledger: PathBuf,
    /// `reconcile` with the background.
    pub(super) policy: OnLost,
    /// Part of the scope of its identities.
    pub(super) run: String,
}

/// What the parent tells a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Run the operation on this key, and wait at this point.
    Run(String, Option<Point>),
    /// What waits goes on.
    Go,
    /// Say what the store knows of this key.
    State(String),
}

/// Before or after its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Point {
    Before,
    After,
}

/// What a worker tells its parent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    Ready,
    /// It waits there.
    At {
        key: String,
        point: Point,
        fence: u64,
    },
    /// A run ended.
    Done {
        key: String,
        result: String,
        body: String,
    },
    /// The state of a key, and who resolved it.
    State {
        state: String,
        by: String,
    },
}

/// Runs a worker until its input ends.
pub(crate) async fn run(settings: Settings) -> Result<()> {
    let store = open(&settings.url).await?;
    let bug = settings.options.bug;
    let store = match bug {
        Some(Bug::HoldReruns) => AnyStore::new(Buggy::new(store, bugs::Bug::HoldReruns)),
        _ => store,
    };
    let ledger = Ledger::new(&settings.ledger, bug != Some(Bug::NoFence));
    let policy = Policy::default().with_lease(settings.options.lease);
    let policy = match settings.policy {
        // What is not said.
        OnLost::Hold => policy,
        OnLost::Retry => policy.with_on_lost(store::OnLost::Retry),
        OnLost::Reconcile => policy.with_on_lost(store::OnLost::Reconcile),
    };
    let books = Arc::new(Books(ledger.clone()));
    let guard = Guard::builder(store)
        .policy(policy)
        .reconciler(books)
        .build();
    if settings.policy == OnLost::Reconcile {
        let background = Background::new(guard.clone(), [(OPERATION, policy)])
            .with_options(ReconcileOptions::background().with_by("books"))
            .with_every(Duration::from_millis(200));
        tokio::spawn(background.run());
    }
    let (go, waiting) = watch::channel(false);
    say(&Said::Ready);
    let mut orders = Orders::new();
    while let Some(order) = orders.next().await? {
        match order {
            Order::Run(key, point) => {
                let (guard, identity) = (guard.clone(), identity(&settings, &key)?);
                let call = Call {
                    key,
                    point,
                    ledger: ledger.clone(),
                    go: waiting.clone(),
                };
                tokio::spawn(async move { call.run(&guard, &identity).await });
            }
            Order::Go => {
                go.send_replace(true);
            }
            Order::State(key) => {
                let identity = identity(&settings, &key)?;
                let record = guard.store().get(identity.digest()).await?;
                let record = record.map(|entry| entry.record);
                let state = record.as_ref().map_or("none", |r| r.state.kind().as_str());
                let by = record.as_ref().and_then(|record| record.resolved.as_ref());
                say(&Said::State {
                    state: state.into(),
                    by: by.map_or("-", |r| &r.by).into(),
                });
            }
        }
    }
    Ok(())
}

/// The identity of a key, as the workers name it.
pub(super) fn identity(settings: &Settings, key: &str) -> Result<Identity> {
    let scope = Scope::new(["lost", &settings.run]);
    Ok(Identity::new(scope, OPERATION, Key::new(key)?))
}

/// One call of the operation.
struct Call {
    key: String,
    point: Option<Point>,
    ledger: Ledger,
    go: watch::Receiver<bool>,
}

impl Call {
    async fn run(self, guard: &Guard<AnyStore>, identity: &Identity) {
        let key = self.key.clone();
        let work = |attempt| self.work(attempt);
        let done = guard.run((identity, Fingerprint::of(b"7 EUR")), work).await;
        let (result, body) = match done {
            Ok(Done::Fresh(body)) => ("first", body),
            Ok(Done::Replayed(body)) => ("replayed", body),
            Ok(Done::Unprotected(body)) => ("unprotected", body),
            Err(RunError::Unknown) => ("unknown", "-".to_owned()),
            Err(RunError::InFlight { .. }) => ("in-flight", "-".to_owned()),
            Err(RunError::Superseded { .. }) => ("superseded", "-".to_owned()),
            Err(error) => ("error", error.to_string()),
        };
        let result = result.to_owned();
        say(&Said::Done { key, result, body });
    }

    async fn work(mut self, attempt: Attempt<AnyStore>) -> Result<String, String> {
        self.wait(Point::Before, &attempt).await;
        let fence = attempt.fence.0;
        let taken = self.ledger.effect(&attempt.id.to_string(), fence);
        taken.map_err(|error| error.to_string())?;
        self.wait(Point::After, &attempt).await;
        // Also where it was refused: a careless handler, whose completion must not count.
        Ok(paid(fence))
    }

    async fn wait(&mut self, point: Point, attempt: &AttemptInfo) {
        if self.point == Some(point) {
            say(&Said::At {
                key: self.key.clone(),
                point,
                fence: attempt.fence.0,
            });
            // The parent says so, or kills.
            let _ = self.go.wait_for(|go| *go).await;
        }
    }
}

/// The answer of the attempt with this fence.
pub(super) fn paid(fence: u64) -> String {
    format!("paid-{fence}")
}

/// Asks the ledger.
struct Books(Ledger);

impl Reconciler for Books {
    fn reconcile<'a>(&'a self, case: &'a Case<'_>) -> Answered<'a> {
        Box::pin(async {
            let found = self.0.settle(&case.id.to_string(), case.fence.0)?;
            Ok(match found {
                Some(fence) => Finding::Happened(paid(fence).to_outcome()).into(),
                None => Finding::DidNotHappen.because("closed in the ledger"),
            })
        })
    }
}
