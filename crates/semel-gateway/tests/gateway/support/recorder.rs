//! An upstream that takes down what it is sent, and lets nothing pass that another server could read
//! otherwise.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request as it came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// The request line.
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// Whether the whole of it came.
    pub(crate) complete: bool,
    /// What no proxy may send.
    pub(crate) faults: Vec<String>,
}

impl Seen {
    /// The values of a field.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let fields = self.fields.iter().filter(|(n, _)| n == name);
        fields.map(|(_, value)| value.as_str()).collect()
    }

    fn fault(&mut self, fault: impl Into<String>) {
        self.faults.push(fault.into());
    }
}

/// Answers every request with 200 and `ok`.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    server: JoinHandle<()>,
}

impl Recorder {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&seen);
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&record)));
            }
        });
        Self {
            address,
            seen,
            server,
        }
    }

    /// What came until now, whole or not.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(stream: TcpStream, record: Arc<Mutex<Vec<Seen>>>) {
    let mut stream = BufStream::new(stream);
    loop {
        let mut seen = Seen::default();
        let read = read(&mut stream, &mut seen).await;
        let begun = !seen.line.is_empty();
        seen.complete = read.is_ok();
        let head_only = seen.line.starts_with("HEAD ");
        if begun {
            record.lock().unwrap().push(seen);
        }
        let body = if head_only { "" } else { "ok" };
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{body}");
        if read.is_err() || stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        stream.flush().await.ok();
    }
}

async fn read(stream: &mut BufStream<TcpStream>, seen: &mut Seen) -> io::Result<()> {
    seen.line = read_line(stream, seen).await?;
    seen.fields = read_fields(stream, seen).await?;
    let field =
        |name: &str| -> Vec<String> { seen.values(name).into_iter().map(str::to_owned).collect() };
    let (host, length, coding) = (
        field("host"),
        field("content-length"),
        field("transfer-encoding"),
    );
    if host.len() != 1 {
        seen.fault(format!("hosts: {host:?}"));
    }
    match (&length[..], &coding[..]) {
        ([], []) => {}
        ([length], []) => {
            let Ok(bytes) = length.parse::<usize>() else {
                seen.fault(format!("content-length: {length:?}"));
                return Err(io::ErrorKind::InvalidData.into());
            };
            if bytes.to_string() != *length {
                seen.fault(format!("content-length: {length:?}"));
            }
            seen.body = vec![0; bytes];
            stream.read_exact(&mut seen.body).await?;
        }
        ([], [coding]) if coding == "chunked" => read_chunks(stream, seen).await?,
        both => {
            seen.fault(format!("lengths and codings: {both:?}"));
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

async fn read_chunks(stream: &mut BufStream<TcpStream>, seen: &mut Seen) -> io::Result<()> {
    loop {
        let line = read_line(stream, seen).await?;
        let Ok(size) = usize::from_str_radix(&line, 16) else {
            seen.fault(format!("chunk of size {line:?}"));
            return Err(io::ErrorKind::InvalidData.into());
        };
        if size == 0 {
            seen.trailers = read_fields(stream, seen).await?;
            return Ok(());
        }
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).await?;
        if chunk.split_off(size) != b"\r\n" {
            seen.fault("a chunk that does not end");
        }
        seen.body.append(&mut chunk);
    }
}

async fn read_fields(
    stream: &mut BufStream<TcpStream>,
    seen: &mut Seen,
) -> io::Result<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = read_line(stream, seen).await?;
        if line.is_empty() {
            return Ok(fields);
        }
        let is_token = |name: &str| {
            let sign = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
            !name.is_empty() && name.bytes().all(sign)
        };
        match line.split_once(": ").or_else(|| line.split_once(':')) {
            Some((name, value)) if is_token(name) => {
                fields.push((name.to_lowercase(), value.to_owned()));
            }
            _ => seen.fault(format!("field {line:?}")),
        }
    }
}

/// A line without its end; bytes that are no ASCII are read as Latin-1.
async fn read_line(stream: &mut BufStream<TcpStream>, seen: &mut Seen) -> io::Result<String> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).await?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if line.pop() != Some(b'\r') {
        seen.fault(format!("bare line feed: {line:?}"));
    }
    if line.iter().any(|b| matches!(b, 0 | b'\r')) {
        seen.fault(format!("control character: {line:?}"));
    }
    Ok(line.into_iter().map(char::from).collect())
}
