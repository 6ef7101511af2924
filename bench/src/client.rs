//! A load generator that costs less than any server: it sends bytes made beforehand and reads of
//! an answer only its status and where it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustls::pki_types::ServerName;
use semel_bench_load::key;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;

/// Connections, each with one request at a time.
pub(crate) const CONNECTIONS: usize = 32;
const BODY: &str = r#"{"item":"sku-1234567","quantity":2,"currency":"EUR","amount":1999}"#;

/// Which key a request carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// None.
    Absent,
    /// One never used before.
    Fresh,
    /// One of the connection's, used before.
    Repeated,
}

/// Every key that this process makes is its own, on every server.
static NEXT_KEY: AtomicUsize = AtomicUsize::new(1_000_000);

/// A server, and how it is asked.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    address: SocketAddr,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Target {
    pub(crate) const fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }

    pub(crate) const fn tls(address: SocketAddr, trusted: Arc<rustls::ClientConfig>) -> Self {
        Self {
            address,
            tls: Some(trusted),
        }
    }
}

/// Requests per second of 32 connections that stay open.
pub(crate) fn rate(server: &Target, keys: Keys, time: Duration) -> Result<f64> {
    runtime()?.block_on(async {
        let mut connections = Vec::new();
        for index in 0..CONNECTIONS {
            connections.push(Connection::open(server, keys, index).await?);
        }
        let started = Instant::now();
        let running: Vec<_> = connections
            .into_iter()
            .map(|mut connection| {
                tokio::spawn(async move {
                    let mut answers = 0_u64;
                    while started.elapsed() < time {
                        connection.ask().await?;
                        answers += 1;
                    }
                    anyhow::Ok(answers)
                })
            })
            .collect();
        let mut answers = 0;
        for connection in running {
            answers += connection.await??;
        }
        Ok(answers as f64 / started.elapsed().as_secs_f64())
    })
}

/// How long requests without a key take on 32 connections, where each connection sends one in every `pause`, and in
/// turn; or as soon as the last is answered, if that is later. A thread for each connection: a runtime's timer would
/// let all that are due within a millisecond go at once.
pub(crate) fn latencies(server: &Target, pause: Duration, time: Duration) -> Result<Vec<Duration>> {
    let started = Instant::now() + Duration::from_millis(100);
    let connection = |index: usize| -> Result<Vec<Duration>> {
        let runtime = runtime()?;
        let mut connection = runtime.block_on(Connection::open(server, Keys::Absent, index))?;
        let mut due = started + pause.mul_f64(index as f64 / CONNECTIONS as f64);
        let mut took = Vec::new();
        loop {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            if sent >= started + time {
                return Ok(took);
            }
            runtime.block_on(connection.ask())?;
            took.push(sent.elapsed());
            due += pause;
        }
    };
    std::thread::scope(|scope| {
        let connection = &connection;
        let running = (0..CONNECTIONS).map(|index| scope.spawn(move || connection(index)));
        let running: Vec<_> = running.collect();
        let mut all = Vec::new();
        for thread in running {
            all.extend(thread.join().expect("a client")?);
        }
        Ok(all)
    })
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

struct Connection {
    wire: Wire,
    keys: Keys,
    index: usize,
    request: Vec<u8>,
}

impl Connection {
    /// One that is warm, and whose key was used, if it is one that will be repeated.
    async fn open(server: &Target, keys: Keys, index: usize) -> Result<Self> {
        let mut connection = Self {
            wire: Wire::open(server).await?,
            keys,
            index,
            request: Vec::new(),
        };
        connection.ask().await?;
        Ok(connection)
    }

    async fn ask(&mut self) -> Result<()> {
        use std::io::Write as _;
        self.request.clear();
        self.request.extend_from_slice(
            b"POST /orders HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n",
        );
        let number = match self.keys {
            Keys::Absent => None,
            Keys::Fresh => Some(NEXT_KEY.fetch_add(1, Ordering::Relaxed)),
            Keys::Repeated => Some(self.index),
        };
        if let Some(number) = number {
            write!(self.request, "idempotency-key: \"{}\"\r\n", key(number))?;
        }
        write!(self.request, "content-length: {}\r\n\r\n{BODY}", BODY.len())?;
        self.wire.exchange(&self.request).await.map(|_| ())
    }
}

/// A connection that stays open, with one request at a time.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    answer: Vec<u8>,
}

impl Wire {
    pub(crate) async fn open(server: &Target) -> Result<Self> {
        let stream = TcpStream::connect(server.address).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &server.tls {
            None => Box::new(stream),
            Some(trusted) => {
                let name = ServerName::try_from("localhost")?;
                let connector = TlsConnector::from(Arc::clone(trusted));
                Box::new(connector.connect(name, stream).await?)
            }
        };
        let answer = Vec::new();
        Ok(Self { stream, answer })
    }

    /// Posts JSON; gives the answer's body.
    pub(crate) async fn post(&mut self, path: &str, json: &str) -> Result<&[u8]> {
        let length = json.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{json}"
        );
        self.exchange(request.as_bytes()).await
    }

    /// Sends a request as it is; gives the answer's body.
    async fn exchange(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        self.answer.clear();
        loop {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                bail!("the server closed the connection");
            }
            if let Some(body) = body_of(&self.answer)? {
                return Ok(&self.answer[body..]);
            }
        }
    }
}

/// Where the body of a whole response begins. Any status but 200 and 201 is an error.
fn body_of(answer: &[u8]) -> Result<Option<usize>> {
    let Some(end) = answer.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&answer[..end])?;
    if !head.starts_with("HTTP/1.1 200") && !head.starts_with("HTTP/1.1 201") {
        bail!("answered {head}");
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.with_context(|| format!("no length in {head}"))?;
    Ok((answer.len() >= end + 4 + length).then_some(end + 4))
}
