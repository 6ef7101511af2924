//! Accepting connections, and letting them end.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join3;
use http::{Request, Response};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use ipnet::IpNet;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::connection::{Usage, Used};
use crate::cores::Cores;
use crate::headers;
use crate::peer::Peer;
use crate::proxy_protocol;
use crate::tls::ClientCertificate;
use crate::tls::server::Acceptor;
use crate::tls::stream::Stream;
use crate::upgrade::Held;

/// How long a connection may be open without a request under way: the time for a request's header is within it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may leave its answers where they are, with their room and their upstreams' connections. A slow
/// one takes some hundred KiB at a time.
const REFUSAL_TIMEOUT: Duration = Duration::from_mins(5);
/// When a system asks a peer that sends nothing whether it is there, and how often then.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
/// How long a load balancer may take to say whose connection it is.
const PROXY_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest header, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// How often an HTTP/2 client that is silent is asked whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How many requests one HTTP/2 connection may have under way.
const MAX_STREAMS: u32 = 250;
/// How much of a request's body may lie here unread, in bytes. Of a connection 16 times that: one upload that its
/// upstream does not read is not to stop the others.
const STREAM_WINDOW: u32 = 256 << 10;
/// How long to wait when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long it is not said again that connections have to wait.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(60);

/// What connections may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// How many may be open. Others wait for one to end.
    pub at_once: usize,
    /// How long one may be open without a request under way.
    pub idle: Duration,
    /// How long its client may take nothing of its answers; half as long again at most.
    pub refusal: Duration,
}

impl Bounds {
    /// As many at once, 30 s and 5 minutes.
    pub const fn of(at_once: usize) -> Self {
        Self {
            at_once,
            idle: IDLE_TIMEOUT,
            refusal: REFUSAL_TIMEOUT,
        }
    }
}

/// What comes before HTTP on a connection.
#[derive(Clone, Default)]
pub struct Entry {
    /// TLS, where it is spoken.
    pub tls: Option<Arc<Acceptor>>,
    /// The peers whose connections begin with a header of the PROXY protocol.
    pub proxies: Arc<[IpNet]>,
}

/// A connection on which HTTP can begin.
struct Opened {
    stream: Stream,
    peer: IpAddr,
    certificate: Option<ClientCertificate>,
}

impl Entry {
    async fn open(&self, mut stream: TcpStream, mut peer: IpAddr) -> io::Result<Opened> {
        if headers::is_trusted(peer.to_canonical(), &self.proxies) {
            let reading = proxy_protocol::read(&mut stream);
            let source = timeout(PROXY_TIMEOUT, reading).await??;
            peer = source.unwrap_or(peer);
        }
        let (stream, certificate) = match &self.tls {
            Some(tls) => tls.accept(stream).await?,
            None => (stream.into(), None),
        };
        Ok(Opened {
            stream,
            peer,
            certificate,
        })
    }
}

/// Serves the connections of `listener` on `cores`, HTTP/1 and HTTP/2 with prior knowledge or as ALPN
/// says, each with the service that is `made` for its client, until `shutdown`; then accepts no more,
/// and returns once the requests under way are answered.
pub async fn run<S, B>(
    listener: TcpListener,
    cores: Cores,
    entry: Entry,
    bounds: Bounds,
    made: impl Fn(Peer) -> S + Clone + Send + 'static,
    shutdown: impl Future<Output = ()>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: HttpBody + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        // Its timer would be set and removed for every request: see `Ends`.
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(16 * STREAM_WINDOW)
        .keep_alive_interval(PING_INTERVAL);
    // Each connection has a receiver until it ends.
    let (stop, _) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    let mut accepting = Accepting::new(listener, bounds.at_once);
    loop {
        let (stream, peer, room) = tokio::select! {
            accepted = accepting.next() => accepted,
            () = &mut shutdown => break,
        };
        // It belongs to the runtime where it is used.
        let stream = stream.into_std();
        let made = made.clone();
        let mut stopping = stop.subscribe();
        let builder = builder.clone();
        let entry = entry.clone();
        let core = cores.least_loaded();
        let load = Arc::clone(&core.load);
        core.runtime.spawn(async move {
            let held = Held::new(room, load, stopping.clone());
            let stream = match stream.and_then(TcpStream::from_std) {
                Ok(stream) => stream,
                Err(error) => return tracing::debug!("connection: {error}"),
            };
            let opened = tokio::select! {
                opened = entry.open(stream, peer) => opened,
                _ = stopping.changed() => return,
            };
            let Opened {
                stream,
                peer,
                certificate,
            } = match opened {
                Ok(opened) => opened,
                Err(error) => return tracing::debug!("connection: {error}"),
            };
            let service = made(Peer::new(peer));
            let usage = Arc::new(Usage::new());
            let mut ends = Ends::watch(Arc::clone(&usage), stopping, bounds);
            let used = Used::new(service, Arc::clone(&usage));
            let service = service_fn(move |mut request: Request<_>| {
                let extensions = request.extensions_mut();
                if let Some(certificate) = &certificate {
                    extensions.insert(certificate.clone());
                }
                if extensions.get::<OnUpgrade>().is_some() {
                    extensions.insert(Arc::clone(&held));
                }
                used.call(request)
            });
            let io = TokioIo::new(stream);
            let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
            let ended = loop {
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => break ended,
                    end = ends.next() => {
                        // A request of HTTP/2 that was just read begins in a task of its own.
                        tokio::task::yield_now().await;
                        // Before its first request hyper does not take a connection for an idle one.
                        if end == End::Idle && !usage.has_begun() {
                            return tracing::debug!("connection: no request in time");
                        }
                        // Its answers stay where they are, so that it has no orderly end.
                        if end == End::Refused {
                            return tracing::debug!("connection: an answer was not taken in time");
                        }
                        connection.as_mut().graceful_shutdown();
                    }
                }
            };
            if let Err(error) = ended {
                tracing::debug!("connection: {error}");
            }
        });
    }
    drop(accepting);
    stop.send(()).ok();
    stop.closed().await;
}

/// Why a connection is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The gateway does.
    Stop,
    /// No request was under way for too long.
    Idle,
    /// Nothing of its answers was taken for too long.
    Refused,
}

/// What ends a connection, watched by a task of its own: a connection that is busy looks at one word,
/// and at no timer.
struct Ends(mpsc::Receiver<End>);

impl Ends {
    fn watch(usage: Arc<Usage>, mut stopping: watch::Receiver<()>, bounds: Bounds) -> Self {
        let (told, ends) = mpsc::channel(3);
        tokio::spawn(async move {
            let stops = async {
                stopping.changed().await.ok();
                told.send(End::Stop).await.ok();
            };
            let idles = async {
                usage.idleness(bounds.idle).await;
                told.send(End::Idle).await.ok();
                // It has to take the last bytes, too.
                usage.idleness(bounds.refusal).await;
                told.send(End::Refused).await.ok();
            };
            let refuses = async {
                usage.refusal(bounds.refusal).await;
                told.send(End::Refused).await.ok();
            };
            tokio::select! {
                _ = join3(stops, idles, refuses) => {}
                () = told.closed() => {}
            }
        });
        Self(ends)
    }

    /// The next that was told.
    async fn next(&mut self) -> End {
        match self.0.recv().await {
            Some(end) => end,
            // Whoever watches ends before the connection only when it has nothing more to tell.
            None => std::future::pending().await,
        }
    }
}

struct Accepting {
    listener: TcpListener,
    room: Arc<Semaphore>,
    no_room: Complaint,
    no_accept: Complaint,
}

impl Accepting {
    fn new(listener: TcpListener, at_once: usize) -> Self {
        Self {
            listener,
            room: Arc::new(Semaphore::new(at_once.min(Semaphore::MAX_PERMITS))),
            no_room: Complaint::default(),
            no_accept: Complaint::default(),
        }
    }

    /// The next connection, once there is room for it.
    async fn next(&mut self) -> (TcpStream, IpAddr, OwnedSemaphorePermit) {
        loop {
            let room = self.room().await;
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    if let Err(error) = set_options(&stream) {
                        tracing::debug!("connection: {error}");
                    }
                    return (stream, peer.ip(), room);
                }
                Err(error) if is_of_connection(&error) => {}
                Err(error) => {
                    self.no_accept
                        .make(format_args!("cannot accept connections: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn room(&mut self) -> OwnedSemaphorePermit {
        if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
            return room;
        }
        self.no_room.make(format_args!(
            "as many connections are open as may be: others wait (--max-connections, LimitNOFILE)"
        ));
        match Arc::clone(&self.room).acquire_owned().await {
            Ok(room) => room,
            // It is never closed.
            Err(_) => std::future::pending().await,
        }
    }
}

/// A warning of one kind that is not given all the time.
#[derive(Debug, Default)]
struct Complaint {
    made: Option<Instant>,
}

impl Complaint {
    fn make(&mut self, what: fmt::Arguments<'_>) {
        if self.made.is_none_or(|at| at.elapsed() > COMPLAINT_PAUSE) {
            tracing::warn!("{what}");
            self.made = Some(Instant::now());
        }
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    // Answers are written whole: there is nothing to wait for.
    stream.set_nodelay(true)?;
    // A client that is gone without a word ends its request, and leaves its room.
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::future::join_all;
    use http_body_util::{BodyExt as _, Channel, Empty, Full};
    use hyper::client::conn::http2;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Barrier;
    use tokio::time::sleep;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const IDLE: Duration = Duration::from_millis(300);

    async fn bound() -> (TcpListener, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn get() -> Request<Empty<Bytes>> {
        Request::get("http://localhost/")
            .header("host", "localhost")
            .body(Empty::new())
            .unwrap()
    }

    async fn open_http2(address: std::net::SocketAddr) -> http2::SendRequest<Empty<Bytes>> {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let opened = http2::handshake(TokioExecutor::new(), stream).await;
        let (sender, connection) = opened.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Everybody who holds a connection without a request under way, for ever.
    async fn hold(address: std::net::SocketAddr) -> Vec<Box<dyn std::any::Any>> {
        let mut asked = open_http2(address).await;
        let answer = asked.send_request(get()).await.unwrap();
        assert_eq!(answer.collect().await.unwrap().to_bytes(), "done");
        let mut held: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(asked), Box::new(open_http2(address).await)];
        let whole = asking("/");
        for (sent, number) in [("", 0), ("GET / HT", 0), (&*whole, 1), (&*whole, 1)] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            answers(&mut stream, number).await;
            held.push(Box::new(stream));
        }
        let begun = held
            .last_mut()
            .and_then(|it| it.downcast_mut::<TcpStream>());
        begun
            .unwrap()
            .write_all(b"GET / HTTP/1.1\r\nho")
            .await
            .unwrap();
        held
    }

    /// Serves at most six connections; reads each request, and answers `done` in two pieces. `/slowly` takes longer
    /// than a connection may be idle, for the answer and within it; `/together` waits for six such requests.
    async fn served() -> std::net::SocketAddr {
        let (listener, address) = bound().await;
        let six = Arc::new(Barrier::new(6));
        let service = service_fn(move |request: Request<Incoming>| {
            let six = Arc::clone(&six);
            async move {
                let path = request.uri().path();
                let is_slow = path == "/slowly";
                if path == "/together" {
                    six.wait().await;
                }
                request.into_body().collect().await.ok();
                let pause = if is_slow { 2 * IDLE } else { Duration::ZERO };
                sleep(pause).await;
                let (mut pieces, body) = Channel::<Bytes>::new(1);
                tokio::spawn(async move {
                    pieces.send_data("do".into()).await.ok();
                    sleep(pause).await;
                    pieces.send_data("ne".into()).await.ok();
                });
                Ok(Response::new(body))
            }
        });
        let bounds = Bounds {
            at_once: 6,
            idle: IDLE,
            refusal: IDLE,
        };
        let (cores, never) = (Cores::current(), std::future::pending());
        let made = move |_| service.clone();
        tokio::spawn(run(listener, cores, Entry::default(), bounds, made, never));
        address
    }

    async fn answers(stream: &mut TcpStream, number: usize) {
        let mut read = Vec::new();
        while read.windows(5).filter(|end| end == b"0\r\n\r\n").count() < number {
            let more = timeout(PATIENCE, stream.read_buf(&mut read)).await;
            assert!(more.unwrap().unwrap() > 0, "{}", read.escape_ascii());
        }
    }

    fn asking(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
    }

    #[tokio::test]
    async fn idle_connections_leave_their_room() {
        let address = served().await;
        let held = hold(address).await;
        assert_eq!(held.len(), 6);
        join_all((0..6).map(async |_| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let together = asking("/together");
            stream.write_all(together.as_bytes()).await.unwrap();
            answers(&mut stream, 1).await;
        }))
        .await;
        drop(held);
    }

    #[tokio::test]
    async fn connections_in_use_are_left_alone() {
        let address = served().await;
        let upload = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n";
        for (begin, pause, end) in [
            (&*asking("/slowly"), Duration::ZERO, ""),
            (upload, 2 * IDLE, "ab"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(begin.as_bytes()).await.unwrap();
            sleep(pause).await;
            // One that was to end would not answer what comes after.
            let rest = format!("{end}{}", asking("/"));
            stream.write_all(rest.as_bytes()).await.unwrap();
            answers(&mut stream, 2).await;
        }
    }

    /// Bodies that nobody reads leave room for others on their connection.
    #[tokio::test]
    async fn an_upload_that_is_not_read_stops_no_other() {
        let (listener, address) = bound().await;
        let service = service_fn(|request: Request<Incoming>| async move {
            if request.uri().path() == "/unread" {
                std::future::pending::<()>().await;
            }
            let body = request.into_body().collect().await.unwrap();
            Ok(Response::new(Full::new(body.to_bytes())))
        });
        let (cores, never) = (Cores::current(), std::future::pending());
        let (made, bounds) = (move |_| service, Bounds::of(1));
        tokio::spawn(run(listener, cores, Entry::default(), bounds, made, never));
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let opened = http2::handshake(TokioExecutor::new(), stream).await;
        let (mut sender, connection) = opened.unwrap();
        tokio::spawn(connection);
        let mut post = |path: &str, len: usize| {
            let request = Request::post(format!("http://localhost{path}"));
            let body = Full::new(Bytes::from(vec![0; len]));
            sender.send_request(request.body(body).unwrap())
        };
        let _unread = [0; 4].map(|_| tokio::spawn(post("/unread", 2 << 20)));
        sleep(IDLE).await;
        let answer = timeout(PATIENCE, post("/", 10)).await.unwrap().unwrap();
        assert_eq!(answer.collect().await.unwrap().to_bytes().len(), 10);
    }

    /// A client that takes nothing of its answer, over HTTP/1 or HTTP/2, does not keep it for ever.
    #[tokio::test]
    async fn an_answer_that_is_not_taken_ends_with_its_connection() {
        let (listener, address) = bound().await;
        let (given_up, mut are_given_up) = mpsc::channel(2);
        let service = service_fn(move |_: Request<Incoming>| {
            let given_up = given_up.clone();
            let (mut pieces, body) = Channel::<Bytes>::new(1);
            tokio::spawn(async move {
                while pieces.send_data(vec![0; 64 << 10].into()).await.is_ok() {}
                given_up.send(()).await.ok();
            });
            std::future::ready(Ok(Response::new(body)))
        });
        let bounds = Bounds {
            refusal: IDLE,
            ..Bounds::of(2)
        };
        let (cores, never) = (Cores::current(), std::future::pending());
        let made = move |_| service.clone();
        tokio::spawn(run(listener, cores, Entry::default(), bounds, made, never));

        let mut unread = TcpStream::connect(address).await.unwrap();
        unread.write_all(asking("/").as_bytes()).await.unwrap();
        timeout(PATIENCE, are_given_up.recv()).await.unwrap();
        drop(unread);
        let mut asked = open_http2(address).await;
        let unread = asked.send_request(get()).await.unwrap();
        timeout(PATIENCE, are_given_up.recv()).await.unwrap();
        drop(unread);
    }

    #[tokio::test]
    async fn clients_that_are_gone_without_a_word_are_noticed() {
        let (listener, address) = bound().await;
        let _client = TcpStream::connect(address).await.unwrap();
        let (stream, ..) = Accepting::new(listener, 1).next().await;
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), PROBE_AFTER);
    }
}
