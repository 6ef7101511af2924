//! Connections to the upstream that report when they are closed.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{
    CaptureConnection, Connected, Connection, HttpConnector,
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower_service::Service;

/// How long the client may take to answer a request whose connection is gone.
const GRACE: Duration = Duration::from_secs(1);

/// Makes connections that tell when they are gone.
#[derive(Debug, Clone)]
pub(crate) struct Connector(HttpConnector);

impl Connector {
    /// A connector that gives up after `timeout`.
    pub(crate) fn new(timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(timeout));
        connector.set_nodelay(true);
        Self(connector)
    }
}

impl Service<Uri> for Connector {
    type Response = Watched;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Watched, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let connecting = self.0.call(target);
        Box::pin(async move {
            let gone = CancellationToken::new();
            Ok(Watched {
                io: connecting.await?,
                gone: gone.clone(),
                _guard: gone.drop_guard(),
            })
        })
    }
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
    io: TokioIo<TcpStream>,
    gone: CancellationToken,
    _guard: DropGuard,
}

impl Connection for Watched {
    fn connected(&self) -> Connected {
        self.io.connected().extra(Gone(self.gone.clone()))
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
