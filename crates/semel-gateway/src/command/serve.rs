//! `semel serve`: the gateway from start to stop.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Extension;
use clap::ArgMatches;
use hyper_util::service::TowerToHyperService;
use semel::guard::Guard;
use semel::purge::Purger;
use semel::store::{OnLost, Store};
use semel::{AnyStore, StoreError};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};
use tower::Layer as _;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::{FAILED, MISUSED, block_on, fail, stop_signal};
use crate::access::{self, Access, Gate};
use crate::admin::{self, Admin};
use crate::api::{self, Api};
use crate::audit::Log;
use crate::claims::Claims;
use crate::config::{Config, Limits, Route, Sources};
use crate::console::{self, Console, History};
use crate::cores::Cores;
use crate::descriptors::{self, Shares};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::operations::Operations;
use crate::reconcile::{self, Watching};
use crate::reload::Reload;
use crate::serve::{self, Bounds, Entry};
use crate::stack::{self, Stacks};
use crate::store::{self, Condition, Health, Watched};
use crate::telemetry::{self, ACCESS, SPANS, Traces};
use crate::tls;
use crate::tls::client::Trust;
use crate::tls::server::{Acceptor, Files};

/// How long the store may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the gateway until a signal stops it.
pub fn main(flags: &ArgMatches) -> ExitCode {
    let sources = Sources::collect(flags, |name| std::env::var_os(name));
    let config = match sources.config() {
        Ok(config) => config,
        Err(error) if sources.log_json() => {
            log_to_stderr(true, Level::INFO, false, None);
            for message in error.0 {
                tracing::error!("{message}");
            }
            return ExitCode::from(MISUSED);
        }
        Err(error) => return fail(MISUSED, error),
    };
    block_on(async {
        match serve(sources, &config).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if config.log_json => {
                tracing::error!("{error}");
                ExitCode::from(error.code())
            }
            Err(error) => fail(error.code(), format_args!("error: {error}")),
        }
    })
}

/// Why the gateway did not start, or did not stop as it should.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("{flag}: cannot listen on {address}: {source}")]
    Listen {
        flag: &'static str,
        address: String,
        source: io::Error,
    },
    #[error(transparent)]
    Table(#[from] stack::Error),
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error(transparent)]
    Access(#[from] access::Error),
    #[error(transparent)]
    Traces(#[from] telemetry::Error),
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    #[error("console: {0}")]
    Console(StoreError),
    #[error("attempts still running at the end of --drain: {running}; {becomes}")]
    Unfinished { running: usize, becomes: String },
    #[error("the store did not close: {0}")]
    Close(StoreError),
    #[error(
        "the store could not be used at the end ({0}): what was under way becomes \
         `outcome-unknown`, or what `--on-lost` says"
    )]
    Unusable(String),
}

impl Error {
    const fn code(&self) -> u8 {
        match self {
            Self::Store(error) => error.code(),
            Self::Listen { .. }
            | Self::Table(_)
            | Self::Tls(_)
            | Self::Access(_)
            | Self::Traces(_) => MISUSED,
            Self::Signals(_)
            | Self::Threads(_)
            | Self::Console(_)
            | Self::Unfinished { .. }
            | Self::Unusable(_)
            | Self::Close(_) => FAILED,
        }
    }
}

/// What operators have to expect of attempts that are left behind.
fn becomes(routes: &[Route]) -> String {
    let mut routes = routes.iter().filter(|route| route.protect);
    let first = routes.next().map(|route| (route.on_lost, route.lease));
    let Some((on_lost, lease)) =
        first.filter(|first| routes.all(|route| *first == (route.on_lost, route.lease)))
    else {
        return "their leases are no longer renewed, and when they lapse `on-lost` of their routes says \
                what becomes of them"
            .to_owned();
    };
    let lease = humantime::format_duration(lease);
    let what = match on_lost {
        OnLost::Hold => "their keys are answered 409 `outcome-unknown` from then on",
        OnLost::Retry => "the next request with such a key runs again",
        OnLost::Reconcile => "the reconciler is asked about them",
    };
    format!("their lease of {lease} is no longer renewed, and when it lapses {what}")
}

/// The gateway, and what it tells of itself.
async fn serve(sources: Sources, config: &Config) -> Result<(), Error> {
    let metrics = Arc::new(Metrics::new());
    let trust = Arc::new(config.trust());
    let open = |url| Traces::open(url, Arc::clone(&trust), Arc::clone(&metrics));
    let traces = config.collector.as_ref().map(open).transpose();
    let spans = traces.as_ref().ok().and_then(Option::as_ref);
    log_to_stderr(config.log_json, config.log_level, config.access_log, spans);
    let traces = traces?;
    let ended = gateway(sources, config, trust, metrics).await;
    if let Some(traces) = traces {
        traces.end().await;
    }
    ended
}

async fn gateway(
    sources: Sources,
    config: &Config,
    trust: Arc<Trust>,
    metrics: Arc<Metrics>,
) -> Result<(), Error> {
    let stopped = stop_signal().map_err(Error::Signals)?;
    let hangup = signal(SignalKind::hangup()).map_err(Error::Signals)?;
    // Before anything is opened.
    let (shares, for_operators) = share_descriptors(config);
    let cores = Cores::start().map_err(Error::Threads)?;
    let acceptor = |files: &Option<Files>| {
        let files = files.clone();
        let made = files.map(|files| Acceptor::new(files, Arc::clone(&metrics)));
        made.transpose().map(Option::unzip)
    };
    let (tls, certificates) = acceptor(&config.tls)?;
    let (admin_tls, admin_certificates) = acceptor(&config.admin_tls)?;
    let trusted = trust.watch()?;
    if trusted.is_none() && config.asks_over_tls() {
        trust.read()?;
    }
    let access = Access::open(&config.tokens)?;
    let opened = store::open(&config.store, &config.at_rest).await?;
    let secrets = opened.secrets.clone();
    let is_nameless = |route: &Route| route.protect && route.service.is_none();
    if config.routes.iter().any(is_nameless) && config.store.can_be_shared() {
        tracing::warn!(
            "--service is not set, and others can use this store: a key that is sent to two \
             services on it is refused by the second, or gets the first one's answer"
        );
    }
    let listener = bind("--listen", &config.listen).await?;
    let admin_listener = bind("--admin", &config.admin).await?;

    let health = Arc::new(Health::new(Arc::clone(&metrics)));
    let has_spans = config.collector.is_some();
    let store = Watched::new(opened.store.clone(), Arc::clone(&health), has_spans);
    let events = Arc::<Events>::default();
    let stacks = Stacks::new(
        config,
        shares,
        store.clone(),
        secrets.as_ref(),
        trust,
        Arc::clone(&metrics),
        Arc::clone(&events),
    );
    let (layer, observing) = (stacks.layer().clone(), stacks.observing().clone());
    let table = Arc::new(ArcSwap::from_pointee(stacks.table(config.clone())?));
    let (served, measuring) = (Arc::clone(&table), Arc::clone(&metrics));
    let made = move |peer| {
        let (table, metrics) = (Arc::clone(&served), Arc::clone(&measuring));
        stack::stack(table, metrics, peer, has_spans)
    };

    let is_local = admin_listener.local_addr();
    let is_local = is_local.is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let gate = Arc::new(Gate::new(access, is_local));
    if gate.asks() && !is_local && admin_tls.is_none() {
        tracing::warn!(
            "--admin is not on a loopback address and speaks no TLS: tokens cross the network as they are"
        );
    }

    let (stop, stopping) = watch::channel(false);
    let claiming = Guard::builder(AnyStore::new(store.clone()))
        .observer(Arc::new(Watching::new(
            Arc::clone(&metrics),
            Arc::clone(&events),
        )))
        .build();
    let waiting = descriptors::for_waiting(for_operators, config.limits.waiting);
    let claims = Claims::new(claiming.clone(), waiting, stopping.clone());
    let claims = claims.with_secrets(secrets);
    let itself = opened.store.clone();
    let api = Arc::new(Api {
        operations: Operations::new(
            store.clone(),
            Log::new(store.clone(), config.audit_retention),
        )
        .with_four_eyes(config.four_eyes.clone())
        .with_events(Arc::clone(&events))
        .with_opened(opened),
        events,
        listening: Arc::new(Semaphore::new(descriptors::for_listening(for_operators))),
        gate: Arc::clone(&gate),
        stopping: stopping.clone(),
        table: Arc::clone(&table),
        health: Arc::clone(&health),
        metrics: Arc::clone(&metrics),
    });
    let history = Arc::new(History::new(Arc::clone(&metrics), Arc::clone(&health)));
    let sampling = tokio::spawn(Arc::clone(&history).sample());
    let console = Console::new(Arc::clone(&api), Arc::clone(&gate), stacks.pools(), history);
    let console = console.map_err(Error::Console)?;
    let admin = admin::router(
        Admin {
            layer: layer.clone(),
            metrics: Arc::clone(&metrics),
            health: Arc::clone(&health),
            pools: stacks.pools(),
            gate: Arc::clone(&gate),
            claims: Arc::new(claims),
            stopping: stopping.clone(),
            hosts: config.admin_hosts.clone(),
        },
        api::router(api),
        console::router(console),
    );
    tracing::info!(
        listen = %address_of(&listener),
        admin = %address_of(&admin_listener),
        routes = ?config.routes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        store = %config.store,
        "serving"
    );
    let bounds = Bounds::of(for_operators);
    let (end_admin, admin_ends) = tokio::sync::oneshot::channel::<()>();
    let administering = tokio::spawn(serve::run(
        admin_listener,
        Cores::current(),
        Entry {
            tls: admin_tls,
            ..Entry::default()
        },
        bounds,
        // Around all of it: the routes of a router are each laid anew.
        move |peer| TowerToHyperService::new(Extension(peer).layer(admin.clone())),
        async { drop(admin_ends.await) },
    ));
    let (drained, until_drained) = tokio::sync::oneshot::channel();
    let entering = stacks.decisions().map(|decisions| {
        let log = Log::new(store.clone(), config.audit_retention);
        tokio::spawn(async move { log.enter(decisions, until_drained).await })
    });
    let watching = tokio::spawn(Arc::clone(&health).watch(itself.clone()));
    let pools = stacks.pools();
    tokio::spawn(async move { pools.check().await });
    let (reload, lost) = Reload::new(
        sources,
        stacks,
        Arc::clone(&table),
        gate,
        Arc::clone(&metrics),
    );
    tokio::spawn(reload.run(hangup));
    let reconciling = config.reconcile.clone().map(|settings| {
        let guard = layer.guard().clone();
        let metrics = Arc::clone(&metrics);
        tokio::spawn(reconcile::run(guard, lost, settings, metrics))
    });
    let purger = Purger::new(store.clone());
    let purging = tokio::spawn(purger.run(move |purged| match purged {
        Ok(removed) => metrics.purged(removed),
        // Told by whoever watches the store.
        Err(error) => tracing::debug!("purge: {error}"),
    }));

    let (last, deadline) = tokio::sync::oneshot::channel();
    let (delay, grace) = (config.drain_delay, config.drain);
    let accepting = async move {
        stopped.await;
        stop.send(true).ok();
        if !delay.is_zero() {
            tracing::info!(
                "stopping: not ready; connections are accepted for {} more",
                humantime::format_duration(delay)
            );
            tokio::time::sleep(delay).await;
        }
        tracing::info!("stopping: no more connections are accepted");
        last.send(Instant::now() + grace).ok();
    };
    for certificates in [certificates, admin_certificates].into_iter().flatten() {
        tokio::spawn(certificates.run());
    }
    if let Some(trusted) = trusted {
        tokio::spawn(trusted.run());
    }
    let bounds = Bounds::of(shares.connections);
    let proxies = config
        .trust_forwarded
        .iter()
        .filter(|_| config.proxy_protocol);
    let entry = Entry {
        tls,
        proxies: proxies.copied().collect(),
    };
    let serving = serve::run(listener, cores, entry, bounds, made, accepting);
    let mut serving = std::pin::pin!(serving);
    // Ready at the latest when the grace period ends.
    let out_of_time = async {
        match deadline.await {
            Ok(deadline) => tokio::time::sleep_until(deadline).await,
            Err(_) => std::future::pending().await,
        }
    };
    let mut out_of_time = std::pin::pin!(out_of_time);
    let finished = tokio::select! {
        () = async {
            serving.as_mut().await;
            tokio::join!(layer.drain(), observing.drain(), claiming.drain());
            // To the last, operators can look; and what clients are still to be told, they are told.
            end_admin.send(()).ok();
            administering.await.ok();
        } => true,
        () = &mut out_of_time => false,
    };
    purging.abort();
    watching.abort();
    sampling.abort();
    if let Some(reconciling) = reconciling {
        reconciling.abort();
    }
    drop::<tokio::sync::oneshot::Sender<()>>(drained);
    if let Some(entering) = entering
        && timeout(CLOSE_TIMEOUT, entering).await.is_err()
    {
        tracing::warn!("audit: not all that the reconciler decided could be entered");
    }
    let running = layer.guard().running();
    // Clients that do not read their answers are no reason to complain.
    if !finished && running > 0 {
        return Err(Error::Unfinished {
            running,
            becomes: becomes(&table.load().config.routes),
        });
    }
    if let Condition::Down(_) = health.condition() {
        // It was a while ago.
        if let Condition::Down(reason) = health.look_again(&itself).await {
            return Err(Error::Unusable(reason));
        }
    }
    close(&store).await?;
    tracing::info!("stopped");
    Ok(())
}

fn share_descriptors(config: &Config) -> (Shares, usize) {
    let files = descriptors::raise();
    let Limits {
        connections,
        attempts,
        waiting,
        ..
    } = config.limits;
    let for_operators = descriptors::for_operators(files, waiting);
    let left = files.saturating_sub(for_operators - descriptors::OPERATORS);
    let shares = Shares::of(left, connections, attempts);
    if shares.connections < connections || shares.attempts < attempts {
        tracing::warn!(
            "{files} files may be open: {} connections are accepted at once, {} requests with a key \
             run, and {} without; for --max-connections and --max-attempts raise the limit to {} \
             (LimitNOFILE, ulimit -n)",
            shares.connections,
            shares.attempts,
            shares.unkeyed,
            Shares::wanted(connections, attempts),
        );
    }
    (shares, for_operators)
}

async fn close(store: &impl Store) -> Result<(), Error> {
    match timeout(CLOSE_TIMEOUT, store.close()).await {
        Ok(closed) => closed.map_err(Error::Close),
        // What was acknowledged is durable, closed or not.
        Err(_) => {
            tracing::warn!("the store did not close in time");
            Ok(())
        }
    }
}

async fn bind(flag: &'static str, address: &str) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen {
            flag,
            address: address.to_owned(),
            source,
        })
}

fn address_of(listener: &TcpListener) -> String {
    listener
        .local_addr()
        .map_or_else(|error| error.to_string(), |address| address.to_string())
}

/// Lines of this project at the level asked for, warnings of others: what libraries say at lower
/// levels may hold header fields, and keys are among them (protocol rule R12).
fn log_to_stderr(json: bool, level: Level, access: bool, spans: Option<&Traces>) {
    let level = LevelFilter::from_level(level);
    let access = match access || level >= LevelFilter::DEBUG {
        true => LevelFilter::INFO,
        false => LevelFilter::OFF,
    };
    let targets = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("semel", level)
        .with_target(ACCESS, access)
        .with_target(SPANS, LevelFilter::OFF);
    let registry = tracing_subscriber::registry();
    let set = match spans {
        // A filter for all costs a line that nobody wants the least.
        None => registry.with(targets).with(lines(json)).try_init(),
        Some(traces) => {
            let spans = Targets::new().with_target(SPANS, LevelFilter::INFO);
            registry
                .with(lines(json).with_filter(targets))
                .with(traces.layer().with_filter(spans))
                .try_init()
        }
    };
    // A process that embeds the gateway may log already.
    drop(set);
}

fn lines<S>(json: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    match json {
        true => lines.json().flatten_event(true).boxed(),
        false => lines.with_ansi(false).boxed(),
    }
}
