//! Servers in processes of their own: this program started again, or another one.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use semel::guard::Policy;
use semel::memory::{Limits, MemoryStore};
use semel::store::Retention;
use semel_bench_load::answer;
use semel_tower::IdempotencyLayer;

/// Names the request for a process that serves the application.
pub(crate) const APPLICATION: &str = "application";

/// The application, with or without the layer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Application {
    Plain,
    /// On a memory store that keeps answers for so many seconds.
    Layered {
        kept_seconds: u64,
    },
}

/// A server that ends when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start(application: Application) -> Result<Self> {
        let kept = match application {
            Application::Plain => 0,
            Application::Layered { kept_seconds } => kept_seconds,
        };
        let mut process = Command::new(std::env::current_exe()?)
            .args([APPLICATION, &kept.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("a pipe")?).read_line(&mut line)?;
        let address = line.trim().parse().context("the server's address")?;
        Ok(Self { process, address })
    }

    /// Another program, which is to listen at `address`.
    pub(crate) fn spawn(command: &mut Command, address: SocketAddr) -> Result<Self> {
        let process = command
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("{command:?}"))?;
        let mut server = Self { process, address };
        let asked = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.process.try_wait()? {
                bail!("{command:?} ended with {status}");
            }
            if asked.elapsed() > Duration::from_secs(10) {
                bail!("{command:?} does not listen at {address}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Waits for one that was told to end.
    pub(crate) fn ended(&mut self) -> std::io::Result<()> {
        self.process.wait().map(|_| ())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody to tell.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An address where nobody listens now.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// The process of its own: `KEPT_SECONDS`, or `0` for no layer; prints its address, and ends with
/// its input.
pub(crate) fn serve(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let kept: u64 = arguments.next().context("seconds")?.parse()?;
    std::thread::spawn(|| {
        let ended = std::io::stdin().read(&mut [0]);
        std::process::exit(i32::from(ended.is_err()));
    });
    let body = Bytes::from(answer(0));
    let handler = move |_: Bytes| std::future::ready(body.clone());
    let mut app = Router::new().route("/orders", post(handler));
    if kept > 0 {
        let store = MemoryStore::new(Limits {
            records: 1 << 24,
            bytes: 1 << 36,
        });
        let kept = Policy::default().with_retention(Retention::new(Duration::from_secs(kept)));
        app = app.layer(IdempotencyLayer::new(store).with_policy(kept));
    }
    // One worker: the load generator has the other processor.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        axum::serve(listener, app).await?;
        Ok(())
    })
}
