//! Servers that tests start for themselves.

mod cache;
mod dynamodb;
mod guarded;
mod mariadb;
mod nats;
mod node;
mod port;
mod postgres;
mod rabbitmq;
mod redis;
mod template;

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

pub use dynamodb::DynamoDb;
pub use mariadb::MariaDb;
pub use nats::{Nats, NatsRelease};
pub use node::{Node, Signal};
pub use postgres::{PgBouncer, Pooled, Postgres};
pub use rabbitmq::Rabbitmq;
pub use redis::{Redis, RedisCluster};

/// What kinds of server there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// PostgreSQL with durable settings.
    Postgres,
    /// The same behind PgBouncer in transaction mode.
    PgBouncer,
    /// MariaDB with durable settings.
    MariaDb,
    /// A single Redis that syncs its log at every write.
    Redis,
    /// Three masters with a replica each.
    RedisCluster,
    /// A single NATS with JetStream.
    Nats,
    /// Three NATS nodes with JetStream, of a current release.
    NatsCluster,
    /// moto's DynamoDB behind one lock.
    DynamoDb,
    /// A single RabbitMQ: no store, but where events come from.
    Rabbitmq,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Postgres,
        Self::PgBouncer,
        Self::MariaDb,
        Self::Redis,
        Self::RedisCluster,
        Self::Nats,
        Self::NatsCluster,
        Self::DynamoDb,
        Self::Rabbitmq,
    ];

    /// The name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::PgBouncer => "pgbouncer",
            Self::MariaDb => "mariadb",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Nats => "nats",
            Self::NatsCluster => "nats-cluster",
            Self::DynamoDb => "dynamodb",
            Self::Rabbitmq => "rabbitmq",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The environment's variable with the URL of such a server.
    pub fn variable(self) -> String {
        format!(
            "SEMEL_TEST_{}",
            self.name().to_uppercase().replace('-', "_")
        )
    }
}

/// A server that lives as long as its handle.
pub trait Server: Send + Sync {
    /// The URL that semel opens it by.
    fn url(&self) -> String;

    /// The same URL, by way of a proxy that listens there. For a cluster: its first node's.
    fn url_through(&self, address: SocketAddr) -> String;

    /// Its processes. A single server has one.
    fn nodes(&self) -> Vec<&Node>;

    /// Where it listens: its first node.
    fn address(&self) -> SocketAddr {
        self.nodes()[0].address()
    }
}

/// Starts a server of this kind.
///
/// # Errors
/// Says what is not installed, or what the server printed, where it does not start.
pub fn start(kind: Kind) -> Result<Box<dyn Server>> {
    let server: Result<Box<dyn Server>> = match kind {
        Kind::Postgres => Postgres::start(&[]).map(boxed),
        Kind::PgBouncer => Pooled::start().map(boxed),
        Kind::MariaDb => MariaDb::start(&[]).map(boxed),
        Kind::Redis => Redis::start(&[]).map(boxed),
        Kind::RedisCluster => RedisCluster::start().map(boxed),
        Kind::Nats => Nats::start().map(boxed),
        Kind::NatsCluster => Nats::start_cluster().map(boxed),
        Kind::DynamoDb => DynamoDb::start().map(boxed),
        Kind::Rabbitmq => Rabbitmq::start().map(boxed),
    };
    server.with_context(|| format!("a server of one's own: {}", kind.name()))
}

/// What all servers that this process starts from now on find in their environment, beside its own.
pub fn environment(variables: Vec<(String, String)>) {
    guarded::environment(variables);
}

fn boxed(server: impl Server + 'static) -> Box<dyn Server> {
    Box::new(server)
}

/// The URL of a server that the tests of a run share: from the environment, or started once by this
/// process, which keeps it until it ends. Use names of your own in it.
///
/// # Errors
/// Those of [`start`].
pub fn shared(kind: Kind) -> Result<String> {
    static STARTED: Mutex<Vec<(Kind, Box<dyn Server>)>> = Mutex::new(Vec::new());
    if let Ok(url) = std::env::var(kind.variable()) {
        return Ok(url);
    }
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, server)) = started.iter().find(|(known, _)| *known == kind) {
        return Ok(server.url());
    }
    let server = start(kind)?;
    let url = server.url();
    started.push((kind, server));
    Ok(url)
}
