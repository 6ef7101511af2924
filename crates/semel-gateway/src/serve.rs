//! Accepting connections, and letting them end.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tower::ServiceExt as _;
use tower_service::Service;

use crate::proxy::Peer;

/// How long a client may take for a request's header, and be idle between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest header, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// How often an HTTP/2 client that is silent is asked whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How many requests one HTTP/2 connection may have under way.
const MAX_STREAMS: u32 = 250;
/// How long to wait when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long it is not said again that connections have to wait.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(60);

/// Serves the connections of `listener`, HTTP/1 and HTTP/2 with prior knowledge, until `shutdown`;
/// then accepts no more, and returns once the requests under way are answered. Beyond `at_once` open
/// ones connections wait for one to end.
pub async fn run<S, B>(
    listener: TcpListener,
    at_once: usize,
    service: S,
    shutdown: impl Future<Output = ()>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: HttpBody + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING_INTERVAL);
    let connections = GracefulShutdown::new();
    let mut shutdown = std::pin::pin!(shutdown);
    let mut accepting = Accepting {
        listener,
        room: Arc::new(Semaphore::new(at_once.min(Semaphore::MAX_PERMITS))),
        complained: None,
    };
    loop {
        let (stream, peer, room) = tokio::select! {
            accepted = accepting.next() => accepted,
            () = &mut shutdown => break,
        };
        let spoke = Arc::new(AtomicBool::new(false));
        let speaks = Arc::clone(&spoke);
        let service = service.clone().map_request(move |mut request: Request<_>| {
            speaks.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(Peer(peer));
            request
        });
        let watcher = connections.watcher();
        let builder = builder.clone();
        tokio::spawn(async move {
            let _room = room;
            let connection = builder
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
                .into_owned();
            tokio::select! {
                ended = watcher.watch(connection) => if let Err(error) = ended {
                    tracing::debug!("connection: {error}");
                },
                () = silence(&spoke) => tracing::debug!("connection: no request in time"),
            }
        });
    }
    drop(accepting);
    connections.shutdown().await;
}

struct Accepting {
    listener: TcpListener,
    room: Arc<Semaphore>,
    /// When it was last said that there is none.
    complained: Option<Instant>,
}

impl Accepting {
    /// The next connection, once there is room for it.
    async fn next(&mut self) -> (TcpStream, IpAddr, OwnedSemaphorePermit) {
        loop {
            let room = self.room().await;
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    // Answers are written whole: there is nothing to wait for.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!("connection: {error}");
                    }
                    return (stream, peer.ip(), room);
                }
                Err(error) if is_of_connection(&error) => {}
                Err(error) => {
                    self.complain(format_args!("cannot accept connections: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn room(&mut self) -> OwnedSemaphorePermit {
        if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
            return room;
        }
        self.complain(format_args!(
            "as many connections are open as may be: others wait (--max-connections, LimitNOFILE)"
        ));
        match Arc::clone(&self.room).acquire_owned().await {
            Ok(room) => room,
            // It is never closed.
            Err(_) => std::future::pending().await,
        }
    }

    /// Warns, but not all the time.
    fn complain(&mut self, what: fmt::Arguments<'_>) {
        if self
            .complained
            .is_none_or(|at| at.elapsed() > COMPLAINT_PAUSE)
        {
            tracing::warn!("{what}");
            self.complained = Some(Instant::now());
        }
    }
}

fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

/// Returns if no request came in time. hyper has no timer for what comes before the version of HTTP
/// is known.
async fn silence(spoke: &AtomicBool) {
    tokio::time::sleep(HEAD_TIMEOUT).await;
    if spoke.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}
