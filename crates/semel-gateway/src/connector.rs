//! Makes connections to upstreams and the reconciler, with TLS or without.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::tls::client::{Speaks, Trust};
use crate::tls::stream::Stream;

/// When the system asks an upstream that sends nothing whether it is there: tunnels may be silent for
/// as long as they like.
const PROBE_AFTER: Duration = Duration::from_secs(60);

/// No connection was made: nothing was sent.
pub(crate) type ConnectError = Box<dyn StdError + Send + Sync>;

/// Makes connections.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    timeout: Duration,
    trust: Arc<Trust>,
    speaks: Speaks,
    is_upstream: bool,
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
            is_upstream: false,
        }
    }

    /// The same to an upstream or its reconciler, which gets the certificate that they are shown.
    pub(crate) fn for_upstreams(self) -> Self {
        Self {
            is_upstream: true,
            ..self
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Stream>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let connecting = self.tcp.call(target.clone());
        let Self {
            timeout,
            trust,
            speaks,
            is_upstream,
            ..
        } = self.clone();
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            let stream = if target.scheme() == Some(&Scheme::HTTPS) {
                let shaking = shake_hands(stream, &target, trust.config(speaks, is_upstream));
                let shaken = tokio::time::timeout(timeout, shaking).await;
                shaken.map_err(|_| "TLS: no answer in time")??
            } else {
                Stream::from(stream)
            };
            Ok(TokioIo::new(stream))
        })
    }
}

async fn shake_hands(
    stream: TcpStream,
    target: &Uri,
    config: Option<Arc<ClientConfig>>,
) -> Result<Stream, ConnectError> {
    let config = config.ok_or("TLS: no root certificates were read")?;
    let host = target.host().unwrap_or_default();
    let name = ServerName::try_from(host.trim_matches(['[', ']']))?.to_owned();
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(tokio_rustls::TlsStream::from(stream).into())
}

/// Whether the gateway itself had no descriptor, port or memory for a connection: no fault of the upstream.
pub(crate) fn is_starved(error: &(dyn StdError + 'static)) -> bool {
    let starved = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::ADDRNOTAVAIL,
        Errno::NOBUFS,
        Errno::NOMEM,
    ];
    let mut cause = Some(error);
    while let Some(error) = cause {
        let system = error.downcast_ref().and_then(Errno::from_io_error);
        if system.is_some_and(|error| starved.contains(&error)) {
            return true;
        }
        cause = error.source();
    }
    false
}
