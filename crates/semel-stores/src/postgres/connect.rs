//! One connection: how it is made, set up, and given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Connection, Error, Row, Socket, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{self, Failed};
use super::hosts::{Hosts, TlsStream};
use super::options::PostgresOptions;
use super::pool::Wire;
use super::sql::{Kind, Sql};
use super::step::Step;
use super::table::Table;
use super::tls;
pub(super) use crate::common::pool::Idle;
use crate::common::pool::{Open, silent};

/// The first pause after a failed attempt to connect; doubled to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Makes connections.
pub(super) struct Connector {
    hosts: Hosts,
    tls: MakeRustlsConnect,
    /// Whether nobody else can answer in the server's place, where there is TLS.
    pub(super) authenticates: bool,
    pub(super) table: Table,
    pub(super) sql: Sql,
    /// What is prepared on each connection.
    prepared: &'static [Kind],
    pub(super) timeout: Duration,
    pause: Mutex<Option<Pause>>,
}

/// After a failed attempt nobody tries again at once: callers are told, the server is spared.
struct Pause {
    until: Instant,
    length: Duration,
    kind: StoreErrorKind,
    message: String,
}

impl Connector {
    pub(super) fn new(options: &PostgresOptions) -> Result<Self> {
        Self::with(options, options.prepared, &Kind::PREPARED)
    }

    /// For sessions that are not ours alone: with the server's own settings.
    pub(super) fn plain(options: &PostgresOptions) -> Result<Self> {
        Self::with(options, false, &Kind::SEALING)
    }

    fn with(options: &PostgresOptions, is_ours: bool, kinds: &'static [Kind]) -> Result<Self> {
        let mut config = options.config.clone();
        if is_ours {
            let set = session(options.timeout);
            let options = match config.get_options() {
                // What the URL says comes later, and wins.
                Some(theirs) => format!("{set} {theirs}"),
                None => set,
            };
            config.options(options);
        }
        Ok(Self {
            hosts: Hosts::new(&config, options.timeout),
            tls: tls::connector(&options.tls)?,
            authenticates: options.tls.verify.authenticates(),
            table: options.table.clone(),
            sql: Sql::new(&options.table),
            prepared: if options.prepared { kinds } else { &[] },
            timeout: options.timeout,
            pause: Mutex::new(None),
        })
    }

    /// A connection on which nothing was prepared: the tables may not be there.
    pub(super) async fn connect_bare(&self) -> Result<Link> {
        self.attempt(&[]).await.map_err(error::opening)
    }

    async fn attempt(&self, prepared: &[Kind]) -> Result<Link> {
        let work = async {
            let (client, connection) = self.dial(&self.hosts).await?;
            let task = tokio::spawn(async move {
                // Who sent something is told by the answer that does not come.
                let _ended = connection.await;
            });
            let mut link = Link {
                client: Arc::new(client),
                task: task.abort_handle(),
                prepared: Vec::new(),
                made: Instant::now(),
                demoted: AtomicBool::new(false),
            };
            link.prepared = self.prepare(&link.client, prepared).await?;
            Ok(link)
        };
        timeout(self.timeout, work)
            .await
            .unwrap_or_else(|_| Err(silent::<Self>()))
    }

    /// A bare connection, for whom steps are not what it is for.
    pub(super) async fn dial(
        &self,
        hosts: &Hosts,
    ) -> Result<(Client, Connection<Socket, TlsStream>)> {
        hosts.dial(&self.tls).await.map_err(|error| match error {
            Some(error) => error::connecting(error, &self.table),
            None => silent::<Self>(),
        })
    }

    // All at once: one round trip.
    async fn prepare(
        &self,
        client: &Arc<Client>,
        kinds: &[Kind],
    ) -> Result<Vec<(Kind, Statement)>> {
        let mut tasks = JoinSet::new();
        for &kind in kinds {
            let (client, text) = (client.clone(), self.sql.text(kind).to_owned());
            tasks.spawn(async move { (kind, client.prepare(&text).await) });
        }
        let mut statements = Vec::with_capacity(kinds.len());
        while let Some(done) = tasks.join_next().await {
            let Ok((kind, statement)) = done else {
                return Err(StoreError::new(
                    StoreErrorKind::NotApplied,
                    "a statement could not be prepared",
                ));
            };
            let statement = statement.map_err(|error| error::connecting(error, &self.table))?;
            statements.push((kind, statement));
        }
        Ok(statements)
    }
}

impl Wire for Connector {
    type Link = Link;
    type Row = Row;

    /// Where the last attempt failed a moment ago, its error.
    async fn connect(&self) -> Result<Link> {
        if let Some(pause) = &*self.pause.lock()
            && Instant::now() < pause.until
        {
            return Err(StoreError::new(pause.kind, &*pause.message));
        }
        let mut made = self.attempt(self.prepared).await;
        // One failure may be a backend that was ended while it began; two are a server that is away.
        if made.is_err() && self.pause.lock().is_none() {
            made = self.attempt(self.prepared).await;
        }
        let mut pause = self.pause.lock();
        match &made {
            Ok(_) => *pause = None,
            Err(error) => {
                let length = pause
                    .as_ref()
                    .map_or(FIRST_PAUSE, |pause| (pause.length * 2).min(LONGEST_PAUSE));
                *pause = Some(Pause {
                    until: Instant::now() + length,
                    length,
                    kind: error.kind(),
                    message: error.to_string(),
                });
            }
        }
        made
    }

    async fn run(&self, link: &Link, step: &Step) -> Result<Vec<Row>, Failed> {
        let failed = |error| link.failed(error, self);
        let known = link.prepared.iter().find(|(kind, _)| *kind == step.kind);
        if let Some((_, statement)) = known {
            let params: Vec<_> = step.params.iter().map(|param| param as _).collect();
            return link.client.query(statement, &params).await.map_err(failed);
        }
        let params: Vec<_> = step
            .params
            .iter()
            .map(|param| (param as _, param.kind()))
            .collect();
        let text = self.sql.text(step.kind);
        link.client.query_typed(text, &params).await.map_err(failed)
    }

    async fn simple(&self, link: &Link, text: &str) -> Result<(), Failed> {
        let done = link.client.batch_execute(text).await;
        done.map_err(|error| link.failed(error, self))
    }
}

/// What a session of ours needs. Every statement finds its rows by an index, one after the other: a
/// plan made while the table was small must not read it whole later, so plans need no parameters'
/// values, and are made once. The limits make the server give up, with a certain
/// answer, before the caller does, who could only say "unknown".
fn session(timeout: Duration) -> String {
    let millis = timeout.as_millis();
    format!(
        "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
         -c plan_cache_mode=force_generic_plan -c jit=off -c default_transaction_isolation=read\\ committed \
         -c lock_timeout={} -c statement_timeout={} -c idle_in_transaction_session_timeout={}",
        (millis / 2).max(1),
        (millis * 3 / 4).max(1),
        (millis * 2).max(1),
    )
}

/// One connection. Several steps may be sent before the first is answered.
pub(super) struct Link {
    client: Arc<Client>,
    task: AbortHandle,
    prepared: Vec<(Kind, Statement)>,
    made: Instant,
    demoted: AtomicBool,
}

impl Open for Link {
    fn is_open(&self) -> bool {
        !self.client.is_closed() && !self.demoted.load(Ordering::Relaxed)
    }

    fn made(&self) -> Instant {
        self.made
    }
}

impl Link {
    fn failed(&self, error: Error, with: &Connector) -> Failed {
        if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
            // It became a standby. Another host may be the primary now: not on this connection.
            self.demoted.store(true, Ordering::Relaxed);
        }
        Failed::sent(error, &with.table)
    }

    /// The bare client.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Without this a server that does not answer would keep the socket for ever.
        self.task.abort();
    }
}
