//! The program: `trading --help`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use trading::domain::Cents;
use trading::http::router;
use trading::once::{Settings, Trading};

/// A paper-trading account service whose operations happen once.
#[derive(Debug, Parser)]
struct Flags {
    /// Where clients connect; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3000")]
    listen: SocketAddr,
    /// The database file: accounts and records; made where there is none.
    #[arg(long, value_name = "FILE", default_value = "trading.db")]
    data: PathBuf,
    /// What is in a new account, in cents.
    #[arg(long, value_name = "CENTS", default_value = "10000000", value_parser = clap::value_parser!(i64).range(0..))]
    balance: Cents,
    /// After which time without a sign of life an attempt is taken to be dead.
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = humantime::parse_duration)]
    lease: Duration,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let settings = Settings {
        balance: flags.balance,
        lease: flags.lease,
    };
    let trading = Arc::new(Trading::open(&flags.data, &settings)?);
    trading.spawn_purger();
    let listener = tokio::net::TcpListener::bind(flags.listen).await?;
    let address = listener.local_addr()?;
    writeln!(std::io::stdout(), "listening on http://{address}")?;
    axum::serve(listener, router(Arc::clone(&trading)))
        .with_graceful_shutdown(async {
            // Without the signal it runs until it is killed, which does no harm.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
        .await?;
    Ok(trading.close().await?)
}
