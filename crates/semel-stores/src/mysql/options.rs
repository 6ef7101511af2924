//! How a store is opened.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use semel::StoreError;
use sqlx::mysql::MySqlConnectOptions;

use super::MysqlStore;
use crate::common::Location;
use crate::{Migrated, OpenError, Schema};

const KNOWN: &str =
    "schema, table, timeout, connections, unsafe, ssl-mode, ssl-ca, ssl-cert, ssl-key, socket";
const DRIVER: [&str; 5] = ["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket"];

/// How a [`MysqlStore`] is opened: a URL, and what it does not say.
///
/// `mysql://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETERS`. Parameters: `schema`, `table`, `timeout`
/// (as `5s` or `500ms`), `connections`, `unsafe`; and the driver's `ssl-mode` (`disabled`, `preferred`,
/// `required`, `verify_ca`, `verify_identity`), `ssl-ca`, `ssl-cert`, `ssl-key` and `socket`.
#[derive(Clone)]
pub struct MysqlOptions {
    pub(super) driver: MySqlConnectOptions,
    pub(super) table: String,
    pub(super) timeout: Duration,
    pub(super) connections: usize,
    pub(super) schema: Option<Schema>,
    pub(super) accept_unsafe: bool,
    pub(super) for_tests: bool,
}

impl MysqlOptions {
    /// Reads a URL. Reaches no server.
    ///
    /// # Errors
    /// [`OpenError::Invalid`], which says what would be right and repeats nothing of the URL but
    /// names of parameters.
    pub fn from_url(url: &str) -> Result<Self, OpenError> {
        let mut location = Location::parse("mysql", url)?;
        let schema = location.schema()?;
        let table = location.take::<TableName>("table", TableName::WANTED)?;
        let timeout = location.duration("timeout")?;
        let sensible = Duration::from_millis(10)..=Duration::from_mins(10);
        if timeout.is_some_and(|timeout| !sensible.contains(&timeout)) {
            return Err(location.invalid("parameter `timeout` must be from `10ms` to `10m`"));
        }
        let accept_unsafe = location.choice("unsafe", &[("refuse", false), ("warn", true)])?;
        let connections = location.take::<Count>("connections", "a number from 1 to 10000")?;
        let database = location.invalid("names no host or database: `mysql://USER@HOST/DATABASE`");
        let unread = location.invalid(
            "has a parameter that cannot be read; `ssl-mode` is one of \
            disabled, preferred, required, verify_ca, verify_identity",
        );
        let url = location.rest();
        for (name, _) in url.query_pairs() {
            if !DRIVER.contains(&&*name) {
                let plain = name.len() < 30
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
                let which = match plain {
                    true => format!("parameter `{name}`"),
                    false => "such parameter".into(),
                };
                return Err(OpenError::invalid(
                    "mysql",
                    format!("has no {which}; there are {KNOWN}"),
                ));
            }
        }
        if url.host_str().is_none_or(str::is_empty) || url.path().len() < 2 {
            return Err(database);
        }
        // Its error may repeat the URL.
        let driver = MySqlConnectOptions::from_str(url.as_str()).map_err(|_| unread)?;
        Ok(Self {
            driver,
            table: table.map_or_else(|| "semel_records".into(), |TableName(name)| name),
            timeout: timeout.unwrap_or(Duration::from_secs(5)),
            connections: connections.map_or(16, |Count(count)| count),
            schema,
            accept_unsafe: accept_unsafe.unwrap_or(false),
            for_tests: false,
        })
    }

    /// The same as another user, for instance one that may change the schema.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.driver = self.driver.username(name).password(password);
        self
    }

    /// The table's name: at most 48 letters, digits and `_`. `semel_records` unless set. Stores
    /// with different tables share nothing.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] for another name.
    pub fn table(mut self, name: &str) -> Result<Self, OpenError> {
        let TableName(name) = name.parse().map_err(|()| {
            OpenError::invalid("mysql", format!("table must be {}", TableName::WANTED))
        })?;
        self.table = name;
        Ok(self)
    }

    /// How long a call may take, 5 s unless set: then it fails, as unknown where something was
    /// sent. Waiting for a connection counts.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The most connections that are open at once, 16 unless set.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    /// What opening does where the tables are missing or old: what the URL says, or nothing, unless
    /// set.
    #[must_use]
    pub const fn schema(mut self, schema: Schema) -> Self {
        self.schema = Some(schema);
        self
    }

    /// Accepts a server that replicates from another one, as two primaries do from each other: the store
    /// warns where it would refuse. URL: `unsafe=warn`, or `unsafe=refuse`.
    #[must_use]
    pub const fn accept_unsafe(mut self, accept: bool) -> Self {
        self.accept_unsafe = accept;
        self
    }

    /// Lets [`Clear`](semel::store::Clear) remove every record.
    #[must_use]
    pub const fn for_tests(mut self) -> Self {
        self.for_tests = true;
        self
    }

    /// Opens the store: reaches the server, refuses one that cannot keep the promise, and looks at
    /// the schema.
    ///
    /// # Errors
    /// [`Config`](semel::StoreErrorKind::Config) where something is to be set right, otherwise
    /// [`NotApplied`](semel::StoreErrorKind::NotApplied).
    pub async fn open(self) -> Result<MysqlStore, StoreError> {
        MysqlStore::connect(self).await
    }

    /// Makes the tables, or brings them to this version. Safe to run again, and by several at once.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub async fn migrate(self) -> Result<Migrated, StoreError> {
        super::migrate::run(&self).await
    }
}

impl fmt::Debug for MysqlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the driver's options: they hold the password.
        f.debug_struct("MysqlOptions")
            .field("table", &self.table)
            .field("timeout", &self.timeout)
            .field("connections", &self.connections)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

struct TableName(String);

impl TableName {
    // 64 is the server's limit; the longest name made from it has 9 more, and some are left.
    const MOST: usize = 48;
    const WANTED: &str = "a name of at most 48 letters, digits and `_`";
}

impl FromStr for TableName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if text.is_empty() || text.len() > Self::MOST || !plain {
            return Err(());
        }
        Ok(Self(text.into()))
    }
}

struct Count(usize);

impl FromStr for Count {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let count = text.parse().map_err(drop)?;
        (1..=10_000)
            .contains(&count)
            .then_some(Self(count))
            .ok_or(())
    }
}
