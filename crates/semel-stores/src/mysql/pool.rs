//! Connections. A packet goes out on one that is known to live; one that fails, or whose answer
//! nobody waited for, is closed and never used again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::StoreError;
use semel::store::Result;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::error::{self, Effect, Failure};
use crate::common::privacy::{self, Way};

/// One that lay this long is asked whether it lives before a step is sent on it.
const FRESH: Duration = Duration::from_secs(1);
/// One that lay this long is closed.
const IDLE: Duration = Duration::from_mins(5);
/// One this old is closed, so that connections move to where an address leads by now.
const OLD: Duration = Duration::from_mins(30);

pub(super) struct Pool {
    options: MySqlConnectOptions,
    setup: String,
    timeout: Duration,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
    // Grows when a connection breaks: the others of its time have probably broken too.
    generation: AtomicU64,
    // The server's `max_allowed_packet`, as the last connection found it.
    packet: AtomicU64,
}

struct Connection {
    link: MySqlConnection,
    generation: u64,
    made: Instant,
    used: Instant,
}

/// A connection in use. Dropped without [`give_back`](Self::give_back) it is closed.
pub(super) struct Lease<'a> {
    connection: Connection,
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
}

/// Long, for who gives up loses its place in the queue, and before the caller gives up. The server
/// counts in seconds.
fn lock_wait(timeout: Duration) -> Duration {
    Duration::from_secs((timeout.as_secs() * 3 / 4).max(1))
}

impl Pool {
    pub(super) fn new(options: MySqlConnectOptions, connections: usize, timeout: Duration) -> Self {
        let lock_wait = lock_wait(timeout).as_secs();
        Self {
            options: options
                // What this would set is set below, in the same round trip.
                .pipes_as_concat(false)
                .no_engine_substitution(false)
                .timezone(None)
                .set_names(false)
                // Statements hold scopes and outcomes.
                .disable_statement_logging(),
            setup: format!(
                "SET time_zone='+00:00',sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',\
                 autocommit=1,innodb_lock_wait_timeout={lock_wait};\
                 SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;\
                 SELECT CAST(@@max_allowed_packet AS UNSIGNED)"
            ),
            timeout,
            permits: Semaphore::new(connections),
            idle: Mutex::new(Vec::new()),
            generation: AtomicU64::new(0),
            packet: AtomicU64::new(u64::MAX),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// How long the server waits for a lock before it rolls a statement back.
    pub(super) fn lock_wait(&self) -> Duration {
        lock_wait(self.timeout)
    }

    /// How the connections are protected, if they are encrypted or not.
    pub(super) fn way(&self, encrypted: bool) -> Way {
        let socket = self.options.get_socket().is_some();
        let local = socket || privacy::is_local(self.options.get_host());
        // `verify_ca` takes what public roots signed, beside `ssl-ca`: anybody's certificate.
        let mode = self.options.get_ssl_mode();
        Way::of(
            local,
            encrypted,
            matches!(mode, MySqlSslMode::VerifyIdentity),
        )
    }

    /// Whether the server takes a packet of this size.
    pub(super) fn fits(&self, sql: &str) -> Result<()> {
        let allowed = self.packet.load(Ordering::SeqCst);
        // One byte says what kind of packet it is.
        if sql.len() as u64 >= allowed {
            return Err(error::too_large(sql.len(), allowed));
        }
        Ok(())
    }

    /// Sends a packet and reads all its rows, by the deadline.
    pub(super) async fn run(
        &self,
        sql: String,
        effect: Effect,
        deadline: Instant,
    ) -> Result<Vec<MySqlRow>, Failure> {
        let mut lease = self.lease(deadline).await.map_err(Failure::Said)?;
        let rows = lease.run(sql, effect, deadline).await;
        match &rows {
            // The lease is dropped.
            Err(Failure::Broken(_)) => {}
            Ok(_) | Err(_) => lease.give_back(),
        }
        rows
    }

    /// A connection that lives.
    pub(super) async fn lease(&self, deadline: Instant) -> Result<Lease<'_>> {
        let late = |_| error::timed_out(Effect::Reads, false);
        let permit = timeout_at(deadline, self.permits.acquire())
            .await
            .map_err(late)?
            .map_err(|_| error::closed())?;
        let lease = |connection| Lease {
            connection,
            pool: self,
            _permit: permit,
        };
        while let Some(mut connection) = self.take() {
            if connection.used.elapsed() < FRESH {
                return Ok(lease(connection));
            }
            if let Ok(Ok(())) = timeout_at(deadline, connection.link.ping()).await {
                return Ok(lease(connection));
            }
            // Dead, or so slow that the next is made anew.
        }
        let connection = timeout_at(deadline, self.connect()).await.map_err(late)??;
        Ok(lease(connection))
    }

    fn take(&self) -> Option<Connection> {
        let generation = self.generation.load(Ordering::SeqCst);
        let mut idle = self.idle.lock();
        idle.retain(|c| c.generation == generation && c.used.elapsed() < IDLE);
        idle.pop()
    }

    async fn connect(&self) -> Result<Connection> {
        let generation = self.generation.load(Ordering::SeqCst);
        let mut link = self.options.connect().await.map_err(error::connecting)?;
        let rows = link.fetch_all(AssertSqlSafe(self.setup.clone())).await;
        let rows = rows.map_err(|e| error::sent(e, Effect::Reads).into_error())?;
        if let Some(packet) = rows.first().and_then(|row| row.try_get(0).ok()) {
            self.packet.store(packet, Ordering::SeqCst);
        }
        let now = Instant::now();
        Ok(Connection {
            link,
            generation,
            made: now,
            used: now,
        })
    }

    /// Closes those that lie here, and lets no more be leased.
    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle.lock());
        for connection in idle {
            // Best effort: the server notices by itself too.
            let _ = tokio::time::timeout(Duration::from_secs(1), connection.link.close()).await;
        }
    }
}

impl Lease<'_> {
    pub(super) async fn run(
        &mut self,
        sql: String,
        effect: Effect,
        deadline: Instant,
    ) -> Result<Vec<MySqlRow>, Failure> {
        self.pool.fits(&sql).map_err(Failure::Said)?;
        let rows = self.connection.link.fetch_all(AssertSqlSafe(sql));
        let failure = match timeout_at(deadline, rows).await {
            Ok(Ok(rows)) => return Ok(rows),
            Ok(Err(error)) => error::sent(error, effect),
            Err(_) => Failure::Broken(error::timed_out(effect, true)),
        };
        if let Failure::Broken(_) = failure {
            let seen = self.connection.generation;
            // Once for all that break together.
            let _ = self.pool.generation.compare_exchange(
                seen,
                seen + 1,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
        Err(failure)
    }

    pub(super) fn give_back(self) {
        let mut connection = self.connection;
        connection.used = Instant::now();
        if connection.made.elapsed() < OLD && !self.pool.permits.is_closed() {
            self.pool.idle.lock().push(connection);
        }
    }
}

/// The first column of the first row, where there is one that is of this type.
pub(super) fn first<T>(rows: &[MySqlRow]) -> Result<Option<T>, StoreError>
where
    T: for<'r> sqlx::Decode<'r, sqlx::MySql> + sqlx::Type<sqlx::MySql>,
{
    match rows.first() {
        None => Ok(None),
        Some(row) => super::row::Reader::new(row).value(),
    }
}
