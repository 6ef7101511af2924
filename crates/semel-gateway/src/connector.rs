//! Connections to the upstream that report when they are closed.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{
    CaptureConnection, Connected, Connection, HttpConnector,
};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower_service::Service;

use crate::tls::client::{Speaks, Trust};
use crate::tls::stream::Stream;

/// How long the client may take to answer a request whose connection is gone.
const GRACE: Duration = Duration::from_secs(1);

/// When the system asks an upstream that sends nothing whether it is there: tunnels may be silent for
/// as long as they like.
const PROBE_AFTER: Duration = Duration::from_secs(60);

/// Makes connections that tell when they are gone.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    timeout: Duration,
    trust: Arc<Trust>,
    speaks: Speaks,
}

impl Connector {
    /// A connector that gives up after `timeout`.
    pub(crate) fn new(timeout: Duration, trust: Arc<Trust>, speaks: Speaks) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(timeout));
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(PROBE_AFTER));
        tcp.enforce_http(false);
        Self {
            tcp,
            timeout,
            trust,
            speaks,
        }
    }
}

impl Service<Uri> for Connector {
    type Response = Watched;
    type Error = Box<dyn StdError + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Watched, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let connecting = self.tcp.call(target.clone());
        let Self {
            timeout,
            trust,
            speaks,
            ..
        } = self.clone();
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            let stream = if target.scheme() == Some(&Scheme::HTTPS) {
                let shaking = shake_hands(stream, &target, trust.config(speaks));
                let shaken = tokio::time::timeout(timeout, shaking).await;
                shaken.map_err(|_| "TLS: no answer in time")??
            } else {
                Stream::from(stream)
            };
            let gone = CancellationToken::new();
            Ok(Watched {
                io: TokioIo::new(stream),
                gone: gone.clone(),
                _guard: gone.drop_guard(),
            })
        })
    }
}

async fn shake_hands(
    stream: TcpStream,
    target: &Uri,
    config: Option<Arc<ClientConfig>>,
) -> Result<Stream, Box<dyn StdError + Send + Sync>> {
    let config = config.ok_or("TLS: no root certificates were read")?;
    let host = target.host().unwrap_or_default();
    let name = ServerName::try_from(host.trim_matches(['[', ']']))?.to_owned();
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(tokio_rustls::TlsStream::from(stream).into())
}

/// Returns when the connection that was taken for a request has been gone for a while.
///
/// A request that is put into a connection's queue just while the connection ends can stay there
/// for ever, without an answer or an error (hyper's issue 4122). It was not sent then; but that is
/// told from "sent" by a thread's speed only, so nobody should build on it.
pub(crate) async fn gone(mut connection: CaptureConnection) {
    let mut extras = http::Extensions::new();
    if let Some(taken) = connection.wait_for_connection_metadata().await.as_ref() {
        taken.get_extras(&mut extras);
    }
    match extras.remove::<Gone>() {
        Some(Gone(gone)) => gone.cancelled_owned().await,
        None => std::future::pending().await,
    }
    tokio::time::sleep(GRACE).await;
}

#[derive(Clone)]
struct Gone(CancellationToken);

/// A connection that tells when it is gone.
pub(crate) struct Watched {
    io: TokioIo<Stream>,
    gone: CancellationToken,
    _guard: DropGuard,
}

impl Connection for Watched {
    fn connected(&self) -> Connected {
        let connected = Connected::new().extra(Gone(self.gone.clone()));
        match self.io.inner().speaks_http2() {
            true => connected.negotiated_h2(),
            false => connected,
        }
    }
}

impl Read for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, buffers)
    }
}
