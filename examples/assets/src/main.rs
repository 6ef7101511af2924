//! A consumer of asset events: each is applied once and in its order, however often and in whatever
//! order it is delivered.

mod asset;
mod consumer;
mod ledger;
mod source;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use tokio::fs::File;
use tokio::io::{AsyncBufRead, BufReader};
use tokio::signal::unix::{SignalKind, signal};

use crate::consumer::Consumer;
use crate::source::{Source, lines, nats};

/// Applies events of assets to a database, each once and in its order.
#[derive(Debug, Parser)]
#[command(name = "assets", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Applies events until there are no more, or until it is told to stop
    Consume {
        /// Where they come from: a file of lines, - for standard input, nats://HOST:PORT/STREAM
        #[arg(long, value_name = "SOURCE")]
        from: Source,
        /// The SQLite file of the assets and of semel's records
        #[arg(long, value_name = "FILE", default_value = "assets.db")]
        database: PathBuf,
        /// How many events are handled at the same time
        #[arg(long, value_name = "N", default_value = "8")]
        workers: usize,
        /// After how many failed attempts an event is set aside
        #[arg(long, value_name = "N", default_value = "3")]
        attempts: u32,
        /// How long an event belongs to a consumer that gives no sign of life
        #[arg(long, value_name = "DUR", default_value = "10s", value_parser = humantime::parse_duration)]
        lease: Duration,
    },
    /// Puts the lines of a file into a stream of NATS JetStream
    Publish {
        /// A file of lines, or - for standard input
        #[arg(long, value_name = "SOURCE")]
        from: Source,
        /// The stream, as nats://HOST:PORT/STREAM
        #[arg(long, value_name = "SOURCE")]
        to: Source,
    },
    /// Prints the assets, and which events were refused, are early, or were set aside
    Show {
        /// The SQLite file
        #[arg(long, value_name = "FILE", default_value = "assets.db")]
        database: PathBuf,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().command {
        Command::Consume {
            from,
            database,
            workers,
            attempts,
            lease,
        } => {
            let consumer = Consumer::open(&database, attempts, lease)?;
            let stopped = stopped()?;
            match &from {
                Source::Nats { server, stream } => {
                    let from = (server.as_str(), stream.as_str());
                    nats::consume(from, &consumer, workers, lease, stopped).await?;
                }
                from => lines::consume(read(from).await?, &consumer, workers, stopped).await?,
            }
            say(consumer.close().await?)
        }
        Command::Publish { from, to } => {
            let Source::Nats { server, stream } = &to else {
                bail!("--to: this is no nats://HOST:PORT/STREAM");
            };
            let count = nats::publish(read(&from).await?, (server, stream)).await?;
            say(format_args!("{count} published"))
        }
        Command::Show { database } => {
            let store = consumer::open(&database)?;
            for line in ledger::report(&store, &database).await? {
                say(line)?;
            }
            Ok(())
        }
    }
}

/// The lines of a file, or of standard input.
async fn read(from: &Source) -> Result<Box<dyn AsyncBufRead + Unpin>> {
    Ok(match from {
        Source::Stdin => Box::new(BufReader::new(tokio::io::stdin())),
        Source::File(path) => {
            let file = File::open(path).await;
            let file = file.with_context(|| format!("--from: {}", path.display()))?;
            Box::new(BufReader::new(file))
        }
        Source::Nats { .. } => bail!("--from: lines are read from a file"),
    })
}

fn say(line: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
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
