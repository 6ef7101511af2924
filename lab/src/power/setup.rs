//! The set-ups: a store with the settings that decide what it keeps.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use semel_testkit::servers::{MariaDb, Nats, NatsRelease, Postgres, Redis, Server};
use serde::{Deserialize, Serialize};

use super::Measured;

/// The stores that have set-ups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Store {
    File,
    Sqlite,
    Postgres,
    Mariadb,
    Redis,
    Nats,
    NatsCluster,
}

/// A store and its setting.
#[derive(Debug)]
pub(super) struct Setup {
    /// Which.
    pub(super) store: Store,
    /// What decides.
    pub(super) setting: &'static str,
    /// What is expected of it.
    pub(super) expected: Expected,
    start: fn(&Path) -> Result<Running>,
}

/// What a set-up does with acknowledged steps when the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// It keeps them.
    Kept,
    /// It loses some. It is a control.
    Lost,
    /// It loses them, or does not serve again. It is a control.
    LostOrSilent,
}

impl Expected {
    /// How much is lost, for people.
    pub(super) const fn loss(self) -> &'static str {
        match self {
            Self::Kept => "none",
            Self::Lost | Self::LostOrSilent => "some",
        }
    }

    /// Whether this is what came of it.
    pub(super) const fn is_met(self, measured: &Measured) -> bool {
        match self {
            Self::Kept => measured.error.is_none() && measured.lost == 0,
            Self::Lost => measured.error.is_none() && measured.lost > 0,
            Self::LostOrSilent => measured.lost > 0,
        }
    }
}

/// A set-up that runs.
pub(super) struct Running {
    /// How to open the store.
    pub(super) url: String,
    /// Nothing where the store is in its callers' process.
    pub(super) server: Option<Box<dyn Server>>,
}

impl Setup {
    /// The one with this store and setting.
    pub(super) fn find(store: Store, setting: &str) -> Option<&'static Self> {
        ALL.iter()
            .find(|setup| setup.store == store && setup.setting == setting)
    }

    /// Starts it. Its data is on the disk mounted at `place`, which is where temporary folders are.
    pub(super) fn start(&self, place: &Path) -> Result<Running> {
        (self.start)(place)
    }
}

const fn keeps(store: Store, setting: &'static str, start: fn(&Path) -> Result<Running>) -> Setup {
    Setup {
        store,
        setting,
        expected: Expected::Kept,
        start,
    }
}

const fn loses(store: Store, setting: &'static str, start: fn(&Path) -> Result<Running>) -> Setup {
    Setup {
        expected: Expected::Lost,
        ..keeps(store, setting, start)
    }
}

/// All of them.
pub(super) const ALL: &[Setup] = &[
    keeps(Store::File, "as it comes", |place| {
        embedded("file:", place, "")
    }),
    keeps(Store::Sqlite, "synchronous=full", |place| {
        embedded("sqlite:", place, "")
    }),
    loses(Store::Sqlite, "synchronous=normal", |place| {
        embedded("sqlite:", place, "?synchronous=normal")
    }),
    keeps(Store::Postgres, "synchronous_commit=on", |_| {
        served(Postgres::start(&["synchronous_commit=on"])?)
    }),
    loses(Store::Postgres, "synchronous_commit=off", |_| {
        served(Postgres::start(&["synchronous_commit=off"])?)
    }),
    keeps(Store::Mariadb, "innodb_flush_log_at_trx_commit=1", |_| {
        served(MariaDb::start(&["innodb-flush-log-at-trx-commit=1"])?)
    }),
    loses(Store::Mariadb, "innodb_flush_log_at_trx_commit=2", |_| {
        served(MariaDb::start(&["innodb-flush-log-at-trx-commit=2"])?)
    }),
    loses(Store::Mariadb, "innodb_flush_log_at_trx_commit=0", |_| {
        served(MariaDb::start(&["innodb-flush-log-at-trx-commit=0"])?)
    }),
    keeps(Store::Redis, "appendfsync always", |_| redis("always")),
    loses(Store::Redis, "appendfsync everysec", |_| redis("everysec")),
    loses(Store::Redis, "appendonly no", |_| {
        served(Redis::start(&["--appendonly", "no"])?)
    }),
    keeps(Store::Nats, "sync_interval: always", |_| nats(1, ALWAYS)),
    loses(Store::Nats, "as it comes", |_| nats(1, "")),
    keeps(Store::NatsCluster, "sync_interval: always", |_| {
        nats(3, ALWAYS)
    }),
    // Its snapshots are synced and may tell of messages that no node has any more: then all nodes
    // wait for each other.
    Setup {
        expected: Expected::LostOrSilent,
        ..loses(Store::NatsCluster, "as it comes", |_| nats(3, ""))
    },
];

const ALWAYS: &str = "sync_interval: always";

fn embedded(scheme: &str, place: &Path, parameters: &str) -> Result<Running> {
    let path = place.join("store");
    Ok(Running {
        url: format!("{scheme}{}{parameters}", path.display()),
        server: None,
    })
}

fn served(server: impl Server + 'static) -> Result<Running> {
    Ok(Running {
        url: server.url(),
        server: Some(Box::new(server)),
    })
}

fn redis(sync: &str) -> Result<Running> {
    served(Redis::start(&[
        "--appendonly",
        "yes",
        "--appendfsync",
        sync,
    ])?)
}

// A current release: earlier ones do not know `always`.
fn nats(nodes: usize, jetstream: &str) -> Result<Running> {
    served(Nats::start_nodes_with(
        NatsRelease::Current,
        nodes,
        jetstream,
    )?)
}
