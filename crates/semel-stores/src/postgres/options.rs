//! How a store is opened.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::TargetSessionAttrs;

use super::table::Table;
use super::tls::Tls;
use super::{PostgresStore, migrate};
use crate::{Migrated, OpenError, Schema};

/// Where pushes come from.
#[derive(Debug, Clone)]
pub(super) enum Listen {
    /// The same server and settings as for all else.
    Same,
    /// Another way to the same database: around a pooler.
    At(Box<Config>),
    /// Nowhere: who waits looks again and again.
    Off,
}

/// How a [`PostgresStore`] is opened.
///
/// `Debug` never shows a password.
#[derive(Debug, Clone)]
#[must_use = "options open nothing by themselves"]
pub struct PostgresOptions {
    pub(super) config: Config,
    pub(super) tls: Tls,
    pub(super) table: Table,
    pub(super) schema: Option<Schema>,
    pub(super) connections: usize,
    pub(super) group: usize,
    pub(super) timeout: Duration,
    pub(super) prepared: bool,
    pub(super) listen: Listen,
    pub(super) tests: bool,
}

impl PostgresOptions {
    pub(super) fn from_config(mut config: Config) -> Self {
        if config.get_application_name().is_none() {
            config.application_name("semel");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        // A standby would answer reads from the past.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        Self {
            config,
            tls: Tls::default(),
            table: Table::default(),
            schema: None,
            connections: 8,
            group: 64,
            timeout: Duration::from_secs(5),
            prepared: true,
            listen: Listen::Same,
            tests: false,
        }
    }

    /// What to do where the tables are missing or old. [`Schema::Expect`] unless set.
    pub const fn schema(mut self, schema: Schema) -> Self {
        self.schema = Some(schema);
        self
    }

    /// At most this many connections, not counting the one that listens. 8 unless set.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(1, 1000);
        self
    }

    /// At most this many steps that wait for a connection are sent as one transaction, so that
    /// they share a commit. 64 unless set; 1 turns it off.
    pub fn group(mut self, group: usize) -> Self {
        self.group = group.clamp(1, 1000);
        self
    }

    /// How long a call may take. 5 s unless set.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether statements are prepared once per connection, and the session is set up when it
    /// begins. On unless set; off behind a pooler that hands out connections by transaction.
    pub const fn prepared(mut self, prepared: bool) -> Self {
        self.prepared = prepared;
        self
    }

    /// Whether changes are pushed to who waits, over one more connection. On unless set. A pooler
    /// that hands out connections by transaction cannot push: give it another URL in `listen`.
    pub fn listen(mut self, listen: bool) -> Self {
        self.listen = if listen { Listen::Same } else { Listen::Off };
        self
    }

    /// Allows [`Clear`](semel::store::Clear).
    pub const fn for_tests(mut self) -> Self {
        self.tests = true;
        self
    }

    /// Connects and looks after the schema.
    ///
    /// # Errors
    /// [`Config`](semel::StoreErrorKind::Config) where the server refuses the user or the tables
    /// are not there, [`NotApplied`](semel::StoreErrorKind::NotApplied) where it is not reached.
    pub async fn open(self) -> Result<PostgresStore, OpenError> {
        Ok(PostgresStore::connect(self).await?)
    }

    /// Makes the tables, or brings them to this version. Safe to run again, and by several at once.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn migrate(self) -> Result<Migrated, OpenError> {
        Ok(migrate::migrate(&self).await?)
    }
}
