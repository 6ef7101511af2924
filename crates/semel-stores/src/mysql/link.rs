//! Connections: how they are made, what is sent on one, and when it is given up. One that fails, or
//! whose answer nobody waited for, is closed and never used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use semel::StoreError;
use semel::store::Result;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Either, Executor as _, Row as _};
use tokio::time::{Instant, timeout, timeout_at};

use super::error::{self, Effect, Failure};
use super::group::Group;
use super::sql::Table;
use super::step::{Answer, Step};
use crate::common::exchange::{Recorder, Reply, Request};
use crate::common::pool::{self, Failed, Open, Wire};
use crate::common::privacy::{self, Way};

/// One that lay this long is asked whether it lives before a step is sent on it.
const FRESH: Duration = Duration::from_secs(1);

/// The most text of a group, in bytes: large outcomes hold up no others.
const GROUP: usize = 1 << 20;

pub(super) type Pool = pool::Pool<Connector>;

pub(super) struct Connector {
    options: MySqlConnectOptions,
    setup: String,
    table: Table,
    // Grows when a connection breaks: the others of its time have probably broken too.
    generation: Arc<AtomicU64>,
    // The server's `max_allowed_packet`, as the last connection found it.
    packet: AtomicU64,
    // How long a connection that lay idle may take to show that it is one still.
    patience: Duration,
}

pub(super) struct Link {
    connection: MySqlConnection,
    generation: u64,
    newest: Arc<AtomicU64>,
    made: Instant,
    used: Instant,
    // Something was sent that is not answered.
    waits: bool,
}

/// What a statement of a packet has answered.
#[derive(Default)]
pub(super) struct Done {
    pub(super) rows: Vec<MySqlRow>,
    /// How many rows it found to write.
    pub(super) found: u64,
    /// What it left by way of `LAST_INSERT_ID`.
    pub(super) left: u64,
}

/// Long, for who gives up loses its place in the queue, and before the caller gives up. The server
/// counts in seconds.
fn lock_wait(timeout: Duration) -> u64 {
    (timeout.as_secs() * 3 / 4).max(1)
}

impl Connector {
    pub(super) fn new(options: MySqlConnectOptions, table: Table, timeout: Duration) -> Self {
        let lock_wait = lock_wait(timeout);
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
            table,
            generation: Arc::default(),
            packet: AtomicU64::new(u64::MAX),
            patience: timeout / 4,
        }
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

    async fn make(&self) -> Result<Link> {
        let generation = self.generation.load(Ordering::SeqCst);
        let mut connection = self.options.connect().await.map_err(error::connecting)?;
        let rows = connection
            .fetch_all(AssertSqlSafe(self.setup.clone()))
            .await;
        let rows = rows.map_err(|e| error::sent(e, Effect::Reads).into_error())?;
        if let Some(packet) = rows.first().and_then(|row| row.try_get(0).ok()) {
            self.packet.store(packet, Ordering::SeqCst);
        }
        let now = Instant::now();
        Ok(Link {
            connection,
            generation,
            newest: self.generation.clone(),
            made: now,
            used: now,
            waits: false,
        })
    }

    /// A connection for whoever needs more than a step.
    pub(super) async fn link(&self, deadline: Instant) -> Result<Link> {
        let made = timeout_at(deadline, self.make()).await;
        made.unwrap_or_else(|_| Err(error::timed_out(Effect::Reads, false)))
    }
}

impl Pool {
    pub(super) fn fits(&self, sql: &str) -> Result<()> {
        self.wire().fits(sql)
    }
}

impl Link {
    /// Sends a packet and reads its answers, one for each statement. On failure also says how many
    /// statements were done before: none was after it.
    async fn send(&mut self, sql: String) -> Result<Vec<Done>, (usize, sqlx::Error)> {
        self.waits = true;
        let (mut all, mut done) = (Vec::new(), Done::default());
        let mut answers = self.connection.fetch_many(AssertSqlSafe(sql));
        loop {
            match answers.try_next().await {
                Ok(Some(Either::Right(row))) => done.rows.push(row),
                Ok(Some(Either::Left(end))) => {
                    (done.found, done.left) = (end.rows_affected(), end.last_insert_id());
                    all.push(std::mem::take(&mut done));
                }
                Ok(None) => break,
                Err(error) => {
                    drop(answers);
                    self.waits = !matches!(error, sqlx::Error::Database(_));
                    return Err((all.len(), error));
                }
            }
        }
        drop(answers);
        (self.waits, self.used) = (false, Instant::now());
        Ok(all)
    }

    /// What an error means; the connection is given up where it can no longer be used.
    fn failed(&mut self, error: sqlx::Error, effect: Effect) -> Failure {
        let failure = error::sent(error, effect);
        if let Failure::Broken(_) = failure {
            self.give_up();
        }
        failure
    }

    fn give_up(&mut self) {
        self.waits = true;
        // Once for all that break together.
        let (seen, next) = (self.generation, self.generation + 1);
        let order = Ordering::SeqCst;
        let _others = self.newest.compare_exchange(seen, next, order, order);
    }

    /// Sends a packet and reads all its rows, by the deadline.
    pub(super) async fn ask(
        &mut self,
        sql: String,
        effect: Effect,
        deadline: Instant,
    ) -> Result<Vec<MySqlRow>, Failure> {
        match timeout_at(deadline, self.send(sql)).await {
            Ok(Ok(done)) => Ok(done.into_iter().flat_map(|done| done.rows).collect()),
            Ok(Err((_, error))) => Err(self.failed(error, effect)),
            Err(_) => Err(Failure::Broken(error::timed_out(effect, true))),
        }
    }

    /// Best effort: the server notices by itself too.
    pub(super) async fn close(self) {
        let _ = timeout(Duration::from_secs(1), self.connection.close()).await;
    }
}

impl Open for Link {
    fn is_open(&self) -> bool {
        !self.waits && self.generation == self.newest.load(Ordering::SeqCst)
    }

    fn made(&self) -> Instant {
        self.made
    }
}

impl Wire for Connector {
    const SERVER: &str = "the MySQL server";
    const STORE: &str = "mysql";

    type Link = Link;
    type Step = Step;
    type Answer = Answer;

    async fn connect(&self) -> Result<Link> {
        self.make().await
    }

    async fn is_alive(&self, link: &mut Link) -> bool {
        if link.used.elapsed() < FRESH {
            return true;
        }
        // A server that is gone without a word leaves time for another.
        let ping = timeout(self.patience, link.connection.ping());
        let is_alive = matches!(ping.await, Ok(Ok(())));
        if !is_alive {
            link.give_up();
        }
        is_alive
    }

    /// A little longer each time, and not all the same.
    fn pause(&self, times: usize) -> Option<Duration> {
        use std::hash::{BuildHasher as _, RandomState};
        let chance = RandomState::new().hash_one(times) % 1000;
        Some(Duration::from_micros(chance << times.min(6)))
    }

    fn room(&self) -> usize {
        let packet = self.packet.load(Ordering::SeqCst);
        usize::try_from(packet).unwrap_or(GROUP).min(GROUP)
    }

    async fn run(&self, link: &mut Link, step: &Step) -> Result<Answer, Failed> {
        let sql = step.packet(&self.table);
        self.fits(&sql).map_err(Failed::Refused)?;
        let (done, error) = match link.send(sql).await {
            Ok(done) => return Ok(Answer::from(done)),
            Err(failed) => failed,
        };
        match link.failed(error, Effect::Writes).into() {
            // Each statement of a packet commits by itself: those before the one that failed did.
            Failed::Refused(error) | Failed::RolledBack(error)
                if done > 0 && step.writes_at_once() =>
            {
                Err(Failed::Lost(
                    pool::late(error.to_string()).with_source(error),
                ))
            }
            failed => Err(failed),
        }
    }

    async fn run_together(
        &self,
        link: &mut Link,
        steps: &[Arc<Step>],
        _: Duration,
    ) -> Result<Vec<Answer>, Failed> {
        let group = Group::new(steps, &self.table);
        self.fits(group.packet()).map_err(Failed::Refused)?;
        let (done, error) = match link.send(group.packet().into()).await {
            Ok(done) => return Ok(group.answers(done)),
            Err(failed) => failed,
        };
        let committing = group.commits_with(done);
        let failure = link.failed(error, Effect::Writes);
        if committing || !matches!(failure, Failure::Broken(_)) && !link.rolled_back().await {
            // A commit that fails may have happened, and so may what nobody rolled back.
            link.give_up();
            return Err(Failed::Lost(pool::late(failure.into_error().to_string())));
        }
        Err(match failure {
            // The server has said why, and ends what it did not commit.
            Failure::Broken(error) if error.kind() == semel::StoreErrorKind::Unknown => {
                Failed::Lost(error)
            }
            failure => Failed::RolledBack(failure.into_error()),
        })
    }
}

impl Recorder for Connector {
    fn step(&self, request: &Request<'_>, turn: u32) -> Step {
        Step::of(request, turn, &self.table)
    }

    fn reply(&self, request: &Request<'_>, answer: &Answer) -> Result<Reply> {
        answer.reply(request)
    }
}

impl Link {
    /// Ends a transaction that failed: what the server rolls back by itself may be one statement only.
    async fn rolled_back(&mut self) -> bool {
        self.send("ROLLBACK".into()).await.is_ok()
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
