//! The process that is killed: it asks for the keys that it is told, one after the other.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use semel::guard::{Done, Guard, Policy, RunError};
use semel::store::{Claim, ClaimRequest, Nonce, OnLost, Retention, StoreExt as _};
use semel::{Fingerprint, FinishedStep, Identity, Key, Outcome, Scope, Store as _};
use semel_stores::{MysqlStore, PostgresStore, SqliteStore};
use serde::{Deserialize, Serialize};

use super::bugs::Bug;
use super::failpoints::{Failpoints, Order, Said};
use super::options::Options;
use super::point::Work;
use super::pointed::Pointed;
use super::steps;
use super::transaction::{self, Tables};
use crate::base::{Base, Database};
use crate::lines::Lines;
use crate::process::{Orders, say};

/// What a worker is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(super) options: Options,
    pub(super) url: String,
    /// What tells this run's keys and tables from those of others.
    pub(super) run: String,
    /// The service outside.
    pub(super) payments: SocketAddr,
    /// The file of the steps.
    pub(super) log: PathBuf,
}

/// A worker's insides.
#[derive(Debug)]
pub(super) struct Worker<B> {
    pub(super) settings: Settings,
    pub(super) guard: Guard<Pointed<B>>,
    pub(super) points: Arc<Failpoints>,
    pub(super) tables: Tables,
    pub(super) log: Arc<Lines>,
    /// How often the work ran again.
    pub(super) again: Arc<AtomicU32>,
    // Of a planted bug: who was not answered, and asks under another key.
    renamed: AtomicU64,
}

/// The worker's process. Its input ends with its parent, and so does it.
pub(crate) async fn run(settings: Settings) -> Result<()> {
    match settings.options.database {
        Database::Postgres => obey::<PostgresStore>(settings).await,
        Database::Sqlite => obey::<SqliteStore>(settings).await,
        Database::Mysql => obey::<MysqlStore>(settings).await,
    }
}

async fn obey<B: Base>(settings: Settings) -> Result<()> {
    let worker = Arc::new(Worker::<B>::open(settings).await?);
    worker.warm_up().await?;
    say(&Said::Ready);
    let mut orders = Orders::new();
    while let Some(order) = orders.next().await? {
        match order {
            Order::Go => worker.points.go(),
            Order::Ask { key, point } => {
                worker.points.arm(point);
                let worker = worker.clone();
                tokio::spawn(async move { say(&worker.ask(key).await) });
            }
        }
    }
    Ok(())
}

impl<B: Base> Worker<B> {
    async fn open(settings: Settings) -> Result<Self> {
        let points = Arc::new(Failpoints::new(|point, fence| say(&Said::At(point, fence))));
        let log = Arc::new(Lines::open(&settings.log)?);
        let store = B::open(&settings.url).await.context("a worker's store")?;
        let (bug, store) = (settings.options.bug, Arc::new(store));
        let store = Pointed::new(store, points.clone(), bug, Some(log.clone()));
        let policy = Policy::default().with_lease(settings.options.lease);
        Ok(Self {
            tables: Tables::of(&settings.run),
            guard: Guard::new(store, policy),
            settings,
            points,
            log,
            again: Arc::default(),
            renamed: 0.into(),
        })
    }

    /// One of each step, on a key of its own: so that a point meets the step itself and not, for
    /// instance, the preparing of a statement.
    async fn warm_up(&self) -> Result<()> {
        let store = self.guard.store();
        let key = Key::new(&format!("{:032x}", fastrand::u128(..)))?;
        let identity = Identity::new(Scope::new(["lab", "warm-up"]), "crash", key);
        let request = ClaimRequest::new(
            Nonce::random()?,
            Fingerprint::of(b""),
            self.settings.options.lease,
        )
        .with_on_lost(OnLost::Retry);
        let Claim::Acquired(acquired) = store.claim(&identity, &request).await? else {
            bail!("a new identity is not acquired");
        };
        let (digest, token) = (identity.digest(), &acquired.token);
        let lease = self.settings.options.lease;
        let step = FinishedStep::new("warm-up", b"")?;
        let retention = Retention::new(Duration::from_secs(1));
        let _ = store.renew(digest, token, lease).await?;
        let _ = store.keep_step(digest, token, &step, 0).await?;
        let _ = store
            .complete(digest, token, &Outcome::void(), retention)
            .await?;
        Ok(())
    }

    pub(super) fn identity(&self, key: i64) -> Identity {
        let renamed = self.renamed.load(Ordering::Relaxed);
        let key = match renamed {
            0 => format!("key-{key}"),
            again => format!("key-{key}-{again:x}"),
        };
        let key = Key::new(&key).expect("a plain key is legal");
        let scope = Scope::new(["lab", self.settings.run.as_str()]);
        Identity::new(scope, "crash", key)
    }

    pub(super) fn fingerprint(&self, key: i64) -> Fingerprint {
        Fingerprint::of(&key.to_le_bytes())
    }

    async fn ask(&self, key: i64) -> Said {
        self.again.store(0, Ordering::Relaxed);
        let told = |ran| told(key, ran, self.again.load(Ordering::Relaxed));
        match self.settings.options.work() {
            Work::Transaction => loop {
                let said = told(transaction::ask(self, key).await.map_err(Why::of));
                let lost = matches!(&said, Said::Again { why, .. } if why == STORE);
                if self.settings.options.bug != Some(Bug::NewKey) || !lost {
                    return said;
                }
                let name = fastrand::u64(1..);
                self.renamed.store(name, Ordering::Relaxed);
            },
            Work::Steps | Work::Mixed => told(steps::ask(self, key).await.map_err(Why::of)),
        }
    }
}

const STORE: &str = "the store failed";

/// Why there was no answer, and how long its caller was told to wait.
struct Why {
    what: String,
    after: Duration,
}

impl Why {
    fn of<E: std::fmt::Display>(error: RunError<E>) -> Self {
        let mut after = Duration::ZERO;
        let what = match error {
            RunError::InFlight { retry_after } => {
                after = retry_after;
                "in flight".into()
            }
            RunError::Store { .. } => STORE.into(),
            RunError::Superseded { .. } => "superseded".into(),
            RunError::Failed(_) => "the work failed".into(),
            other => other.to_string(),
        };
        Self { what, after }
    }
}

/// What the caller was told.
fn told(key: i64, done: Result<Done<String>, Why>, again: u32) -> Said {
    match done {
        Ok(done) => Said::Answer {
            key,
            replayed: matches!(done, Done::Replayed(_)),
            answer: done.into_inner(),
            again,
        },
        Err(why) => Said::Again {
            after_ms: u64::try_from(why.after.as_millis()).unwrap_or(u64::MAX),
            why: why.what,
        },
    }
}
