//! What is tortured: a store by its URL, or a server of the lab's own with a proxy before it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use semel_stores::OpenOptions;
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{self, Kind, Server};

use tempfile::TempDir;
use thiserror::Error;

use crate::base::mariadb;
use crate::named::Named as _;
use crate::nemesis::{Fault, Lane, Wall};

/// A store to be tortured, and all of it that can be broken.
pub struct Target {
    /// How workers open it.
    pub url: String,
    /// The server, where it is the lab's own.
    pub server: Option<Box<dyn Server>>,
    /// What stands before it.
    pub proxy: Option<Proxy>,
    /// The server's wall clock, where it can be set.
    pub(crate) wall: Option<Wall>,
    /// So many hours it was set forward for good.
    pub(crate) hours: AtomicI64,
    // What it is read from.
    _clock: Option<TempDir>,
    /// Whether one process has it open at a time: the workers are then one process.
    pub single: bool,
    /// Whether it has no clock of its own.
    pub clockless: bool,
    kind: Option<Kind>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A URL may hold a password.
        f.debug_struct("Target").field("kind", &self.kind).finish()
    }
}

impl Target {
    /// Starts it, and makes what it needs. Embedded stores are put into `folder`.
    ///
    /// # Errors
    /// Where it does not start, or a fault does not apply to it.
    pub async fn start(store: &str, faults: &[Fault], folder: &Path) -> Result<Self> {
        check_faults(faults, store, false)?;
        let (kind, embedded) = (Kind::from_name(store), is_embedded(store));
        let mut target = match kind {
            Some(kind) => Self::of_kind(kind, faults)?,
            None if embedded => {
                let path = folder.join("store").display().to_string();
                Self::at(format!("{store}:{path}"))
            }
            None => Self::at(store.into()),
        };
        let scheme = target.url.split(':').next().unwrap_or_default();
        if scheme == "memory" {
            bail!("memory: lives in one process and cannot be shared; the tests of the lab use it");
        }
        target.single = scheme == "file";
        target.clockless = matches!(scheme, "nats" | "dynamodb");
        target.prepare().await?;
        Ok(target)
    }

    /// Makes what the store needs on its server.
    pub(crate) async fn prepare(&self) -> Result<()> {
        semel_stores::migrate(&self.url, &OpenOptions::default())
            .await
            .context("the store cannot be prepared")?;
        Ok(())
    }

    /// A store that is there already, and that nobody here can break.
    pub(crate) fn at(url: String) -> Self {
        Self {
            url,
            server: None,
            proxy: None,
            wall: None,
            hours: AtomicI64::new(0),
            _clock: None,
            single: false,
            clockless: false,
            kind: None,
        }
    }

    fn of_kind(kind: Kind, faults: &[Fault]) -> Result<Self> {
        let clocks = |fault: &Fault| fault.lane() == Lane::Server && fault.is_of_clocks();
        let (wall, clock) = match faults.iter().any(clocks) {
            true => {
                let folder = readable()?;
                let wall = Wall::new(folder.path(), "server")?;
                servers::environment(wall.environment());
                (Some(wall), Some(folder))
            }
            false => (None, None),
        };
        let server = tokio::task::block_in_place(|| -> Result<Box<dyn Server>> {
            Ok(match kind {
                Kind::MariaDb => Box::new(mariadb()?),
                kind => servers::start(kind)?,
            })
        })?;
        let proxied = faults.iter().any(|fault| fault.lane() == Lane::Network);
        let proxy = match proxied {
            true => Some(Proxy::start(server.address())?),
            false => None,
        };
        let url = match &proxy {
            Some(proxy) => server.url_through(proxy.address()),
            None => server.url(),
        };
        Ok(Self {
            server: Some(server),
            proxy,
            wall,
            _clock: clock,
            kind: Some(kind),
            ..Self::at(url)
        })
    }

    /// The name in reports: never the URL.
    pub fn name(&self) -> String {
        let scheme = || self.url.split(':').next().unwrap_or_default();
        self.kind
            .map_or_else(|| scheme().into(), |kind| kind.name().into())
    }

    /// Whether these faults move the clock that the store goes by: the server's; or, where it is
    /// that of the processes that open it, the one that the next of them starts by.
    pub(crate) fn clock_moves(&self, faults: &[Fault]) -> bool {
        let any = |wanted: fn(Fault) -> bool| faults.iter().any(|fault| wanted(*fault));
        let scheme = self.url.split(':').next().unwrap_or_default();
        match scheme {
            "file" | "sqlite" => {
                any(Fault::is_of_clocks) && any(|fault| fault == Fault::KillWorker)
            }
            "dynamodb" => any(Fault::is_of_clocks),
            _ => any(|fault| fault.is_of_clocks() && fault.lane() == Lane::Server),
        }
    }

    /// How long it may be without a leader once a fault is over. A node of NATS that hears nothing of its leader
    /// waits 4 to 9 seconds before it calls an election.
    pub(crate) fn elects(&self) -> Duration {
        Duration::from_secs(match self.kind {
            Some(Kind::NatsCluster) => 9,
            _ => 0,
        })
    }

    /// Whether PostgreSQL's signals are understood.
    pub fn is_postgres(&self) -> bool {
        self.kind == Some(Kind::Postgres)
    }
}

/// A folder that servers can read, whoever they run as.
fn readable() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("semel-lab-");
    builder.permissions(std::fs::Permissions::from_mode(0o755));
    Ok(builder.tempdir()?)
}

/// Shorter runs are over before a failover is.
const FAILOVER_FITS: Duration = Duration::from_secs(12);

fn is_embedded(store: &str) -> bool {
    matches!(store, "file" | "sqlite")
}

/// All kinds of fault that the store is to bear.
pub(crate) fn faults_of(store: &str) -> Vec<Fault> {
    let mut faults = applying(store, false);
    faults.retain(|fault| {
        // Without `wait_replicas` it loses acknowledged steps where another node takes over.
        let loses = store == Kind::RedisCluster.name() && fault.lane() == Lane::Server;
        // What clocks do is judged by rules of their own.
        !loses && !fault.is_of_clocks()
    });
    faults
}

/// Those of them that fit into a run.
pub(crate) fn faults_within(store: &str, length: Duration) -> Vec<Fault> {
    let mut faults = faults_of(store);
    faults.retain(|fault| *fault != Fault::Failover || length >= FAILOVER_FITS);
    faults
}

/// A fault that does not apply to a store.
#[derive(Debug, Error)]
#[error("the fault {} {why}; with {store} there are {}", .fault.name(), Fault::names(.allowed))]
pub(crate) struct DoesNotApply {
    fault: Fault,
    why: String,
    store: String,
    allowed: Vec<Fault>,
}

/// Whether these faults apply to a store, behind gateways or not.
pub(crate) fn check_faults(
    faults: &[Fault],
    store: &str,
    gateways: bool,
) -> Result<(), DoesNotApply> {
    for fault in faults {
        if let Err(why) = applies(*fault, store, gateways) {
            return Err(DoesNotApply {
                fault: *fault,
                why,
                // A URL may hold a password.
                store: store.split(':').next().unwrap_or_default().into(),
                allowed: applying(store, gateways),
            });
        }
    }
    Ok(())
}

fn applying(store: &str, gateways: bool) -> Vec<Fault> {
    let mut faults = Fault::value_variants().to_vec();
    faults.retain(|fault| applies(*fault, store, gateways).is_ok());
    faults
}

/// Says why a fault does not apply.
fn applies(fault: Fault, store: &str, gateways: bool) -> Result<(), String> {
    let (kind, embedded) = (Kind::from_name(store), is_embedded(store));
    let cluster = matches!(kind, Some(Kind::RedisCluster | Kind::NatsCluster));
    Err(match fault.lane() {
        Lane::Worker if gateways => "is of a run without gateways".into(),
        Lane::Gateway | Lane::Upstream if !gateways => "needs --through gateway".into(),
        Lane::Worker | Lane::Gateway | Lane::Upstream => return Ok(()),
        _ if embedded => format!("needs a server; {store} has none"),
        _ if kind.is_none() => format!(
            "needs a server of the lab's own: give --store one of {}",
            Kind::ALL.map(Kind::name).join(", ")
        ),
        Lane::Network if cluster => {
            format!("needs one address; the clients of {store} find its nodes by themselves")
        }
        Lane::Server
            if fault.is_of_clocks() && !matches!(kind, Some(Kind::Postgres | Kind::MariaDb)) =>
        {
            "is for postgres and mariadb: the others do not bear libfaketime".into()
        }
        Lane::Server if fault == Fault::Failover && !cluster => {
            "needs a cluster: redis-cluster or nats-cluster".into()
        }
        _ => return Ok(()),
    })
}
