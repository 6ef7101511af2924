//! A load generator that costs less than any server: it sends bytes made beforehand and reads of
//! an answer only its status and where it ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use semel_bench_load::key;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Connections, each with one request at a time.
const CONNECTIONS: usize = 32;
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

/// Requests per second of 32 connections that stay open.
pub(crate) fn rate(server: SocketAddr, keys: Keys, time: Duration) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut connections = Vec::new();
        for index in 0..CONNECTIONS {
            let mut connection = Connection::open(server).await?;
            // The first use of a key that will be repeated, and a warm connection.
            connection.ask(keys, index).await?;
            connections.push(connection);
        }
        let started = Instant::now();
        let running: Vec<_> = connections
            .into_iter()
            .enumerate()
            .map(|(index, mut connection)| {
                tokio::spawn(async move {
                    let mut answers = 0_u64;
                    while started.elapsed() < time {
                        connection.ask(keys, index).await?;
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

struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    async fn open(server: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            request: Vec::new(),
            answer: Vec::new(),
        })
    }

    async fn ask(&mut self, keys: Keys, connection: usize) -> Result<()> {
        use std::io::Write as _;
        self.request.clear();
        self.request.extend_from_slice(
            b"POST /orders HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n",
        );
        let number = match keys {
            Keys::Absent => None,
            Keys::Fresh => Some(NEXT_KEY.fetch_add(1, Ordering::Relaxed)),
            Keys::Repeated => Some(connection),
        };
        if let Some(number) = number {
            write!(self.request, "idempotency-key: \"{}\"\r\n", key(number))?;
        }
        write!(self.request, "content-length: {}\r\n\r\n{BODY}", BODY.len())?;
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        loop {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                bail!("the server closed the connection");
            }
            if is_whole(&self.answer)? {
                return Ok(());
            }
        }
    }
}

/// Whether a whole response is there. Any status but 200 is an error.
fn is_whole(answer: &[u8]) -> Result<bool> {
    let Some(end) = answer.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Ok(false);
    };
    let head = std::str::from_utf8(&answer[..end])?;
    if !head.starts_with("HTTP/1.1 200") {
        bail!("answered {head}");
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.with_context(|| format!("no length in {head}"))?;
    Ok(answer.len() >= end + 4 + length)
}
