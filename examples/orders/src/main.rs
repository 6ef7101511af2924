//! An orders API: what is ordered is set aside, paid and answered once, however often it is asked for.

mod http;
mod inventory;
mod orders;
mod payment;
mod problem;
mod schema;
mod settler;

use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use deadpool_postgres::tokio_postgres::{self, NoTls};
use deadpool_postgres::{Manager, Pool};
use reqwest::Url;
use semel::Store as _;
use semel_stores::{PostgresOptions, PostgresStore, Schema};
use semel_tower::{IdempotencyLayer, OnLost, Policy, TransactOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::http::Shop;
use crate::payment::Payments;

/// An orders API on PostgreSQL whose orders and payments happen once.
#[derive(Debug, Parser)]
#[command(name = "orders", version, max_term_width = 100)]
struct Args {
    /// Where clients connect; port 0 takes a free one
    #[arg(
        long,
        env = "ORDERS_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:8080"
    )]
    listen: String,
    /// The database of orders, inventory and records, as in postgres://shop@localhost/shop
    #[arg(
        long,
        env = "ORDERS_DATABASE",
        value_name = "URL",
        hide_env_values = true
    )]
    database: String,
    /// The payment service
    #[arg(
        long,
        env = "ORDERS_PAYMENTS",
        value_name = "URL",
        default_value = "http://127.0.0.1:9090"
    )]
    payments: Url,
    /// How long an attempt at an order is taken to be alive after its last sign of life
    #[arg(long, env = "ORDERS_LEASE", value_name = "DUR", default_value = "10s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// How long an order may be pending before it is settled without its client
    #[arg(long, env = "ORDERS_SETTLE_AFTER", value_name = "DUR", default_value = "1m", value_parser = humantime::parse_duration)]
    settle_after: Duration,
}

/// How many connections of the application's own.
const CONNECTIONS: usize = 16;
/// How long a second request with the same key waits for the first one's answer.
const WAIT: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();

    let pool = pool(&args.database)?;
    schema::migrate(&pool)
        .await
        .context("--database: the schema")?;
    let once = once(&args).await.context("--database: the records")?;
    let payments = Payments::new(&args.payments)?;
    let settler = settler::run(pool.clone(), payments.clone(), args.settle_after);
    let settler = tokio::spawn(settler);
    once.spawn_purger();

    let listener = TcpListener::bind(&args.listen).await.context("--listen")?;
    let stopped = stopped()?;
    tracing::info!("listening on http://{}", listener.local_addr()?);
    axum::serve(
        listener,
        http::router(Shop { pool, payments }, once.clone()),
    )
    .with_graceful_shutdown(stopped)
    .await?;
    // Clients that went away left attempts that still run.
    once.drain().await;
    settler.abort();
    once.close().await?;
    tracing::info!("stopped");
    Ok(())
}

fn pool(database: &str) -> anyhow::Result<Pool> {
    let config: tokio_postgres::Config = database.parse().context("--database")?;
    let pool = Pool::builder(Manager::new(config, NoTls)).max_size(CONNECTIONS);
    Ok(pool.build()?)
}

/// The layer that makes an order happen once.
async fn once(args: &Args) -> anyhow::Result<IdempotencyLayer<PostgresStore>> {
    let options = PostgresOptions::from_url(&args.database)?;
    let store = options.schema(Schema::Create).open().await?;
    for warning in store.probe().await?.warnings {
        tracing::warn!("records: {warning}");
    }
    let policy = Policy::order()
        .with_lease(args.lease)
        .with_wait(WAIT)
        // Each part of placing an order may be done again, also those before the transaction: a
        // lost attempt is simply resumed.
        .with_on_lost(OnLost::Retry);
    Ok(IdempotencyLayer::new(store)
        .with_policy(policy)
        .with_transactions(TransactOptions::default()))
}

/// Ready at the first SIGTERM or SIGINT.
fn stopped() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
