//! Where a database is: a server of the lab's own, a file, or what a URL names.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use semel_stores::OpenOptions;
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{MariaDb, Node, Postgres, Server, Signal};
use serde::{Deserialize, Serialize};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use url::Url;

use crate::named::Named as _;

/// The kinds of database that have transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Database {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
    /// MySQL and MariaDB.
    Mysql,
}

impl Database {
    /// Whether there is a network between it and who uses it.
    pub const fn is_server(self) -> bool {
        !matches!(self, Self::Sqlite)
    }
}

/// A database that is there.
pub struct Place {
    /// Its kind.
    pub database: Database,
    url: String,
    // Ends with its handle.
    server: Option<Box<dyn Server>>,
    // Written while the server is down.
    down: RwLock<()>,
    restarts: AtomicU64,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A URL may hold a password.
        f.debug_tuple("Place").field(&self.database).finish()
    }
}

impl Place {
    /// Takes the one that the URL names, or starts one; a file is put into `folder`. Makes the
    /// store's tables.
    ///
    /// # Errors
    /// Where it does not start, or cannot be used.
    pub async fn start(database: Database, url: Option<&str>, folder: &Path) -> Result<Self> {
        let (url, server) = match url {
            Some(url) if url.split(':').next() == Some(&*database.name()) => (url.to_owned(), None),
            Some(_) => bail!("the URL for --db {0} begins with {0}:", database.name()),
            None => own(database, folder)?,
        };
        semel_stores::migrate(&url, &OpenOptions::default())
            .await
            .context("the store cannot be prepared")?;
        Ok(Self {
            database,
            url,
            server,
            down: RwLock::default(),
            restarts: AtomicU64::default(),
        })
    }

    /// Whether its server is the lab's own, and can be killed.
    pub fn is_own_server(&self) -> bool {
        self.server.is_some()
    }

    /// As long as this is held, nobody kills its server.
    pub(crate) async fn stays_up(&self) -> RwLockReadGuard<'_, ()> {
        self.down.read().await
    }

    /// As long as this is held, nobody else needs its server to be there.
    pub(crate) async fn goes_down(&self) -> RwLockWriteGuard<'_, ()> {
        self.down.write().await
    }

    /// How often its server was killed.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::SeqCst)
    }

    /// PostgreSQL's immediate shutdown, SIGKILL for others; and the start after it.
    pub(crate) fn restart(&self, _alone: &RwLockWriteGuard<'_, ()>) -> Result<()> {
        let server = self.server.as_ref().context("not a server of the lab's")?;
        self.restarts.fetch_add(1, Ordering::SeqCst);
        tokio::task::block_in_place(|| {
            for node in server.nodes() {
                match self.database {
                    Database::Postgres => node.end(Signal::QUIT),
                    _ => node.kill(),
                }
                start(node)?;
            }
            Ok(())
        })
    }

    /// How it is opened.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A proxy before its server, and how it is opened through that. Nothing where there is no server.
    ///
    /// # Errors
    /// Where there is no port for one.
    pub fn proxy(&self) -> Result<Option<(Proxy, String)>> {
        if !self.database.is_server() {
            return Ok(None);
        }
        let mut url = Url::parse(&self.url)?;
        let proxy = Proxy::start(self.address(&url)?)?;
        let at = proxy.address();
        let moved = url.set_host(Some(&at.ip().to_string())).is_ok();
        if !moved || url.set_port(Some(at.port())).is_err() {
            bail!("the URL of {} has no host", self.database.name());
        }
        Ok(Some((proxy, url.into())))
    }

    fn address(&self, url: &Url) -> Result<SocketAddr> {
        let host = url.host_str().context("the URL has no host")?;
        let port = url.port().unwrap_or(match self.database {
            Database::Mysql => 3306,
            _ => 5432,
        });
        let mut found = (host, port).to_socket_addrs()?;
        found.next().context("the URL's host has no address")
    }
}

/// Starts it again. A server's children may outlive it for a moment and hold what it needs, as
/// PostgreSQL's do.
pub(crate) fn start(node: &Node) -> Result<()> {
    let mut tries = 0;
    while let Err(error) = node.start() {
        tries += 1;
        if tries == 20 {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

/// With a binary log, MySQL's default: without it, others see what is not on disk yet, and a kill takes
/// back (docs/stores/mysql.md).
pub(crate) fn mariadb() -> Result<MariaDb> {
    MariaDb::start(&[
        "log-bin",
        "binlog-format=row",
        "sync-binlog=1",
        "server-id=1",
    ])
}

type Own = (String, Option<Box<dyn Server>>);

fn own(database: Database, folder: &Path) -> Result<Own> {
    Ok(match database {
        Database::Sqlite => {
            let path = folder.join("store.db");
            (format!("sqlite:{}", path.display()), None)
        }
        Database::Postgres => {
            // Deadlocks are found as fast as MariaDB does.
            let start = || Postgres::start(&["deadlock_timeout=20ms"]);
            let server = tokio::task::block_in_place(start)?;
            (server.url(), Some(Box::new(server)))
        }
        Database::Mysql => {
            let server = tokio::task::block_in_place(mariadb)?;
            (server.url(), Some(Box::new(server)))
        }
    })
}
