//! Connections that leave HTTP for another protocol, such as WebSocket: the two ends are joined, and
//! nobody looks at what passes.

use std::io;
use std::sync::{Arc, OnceLock};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::metrics::Metrics;
use crate::upstream::Busy;

/// What a client's connection holds until it ends, be it as a tunnel. An extension of the requests that
/// ask for an upgrade.
#[derive(Debug)]
pub(crate) struct Held {
    _room: OwnedSemaphorePermit,
    /// Its thread counts it.
    _load: Arc<()>,
    /// The drain waits until it is gone.
    _stopping: watch::Receiver<()>,
    upstream: OnceLock<Arc<OwnedSemaphorePermit>>,
}

impl Held {
    pub(crate) fn new(
        room: OwnedSemaphorePermit,
        load: Arc<()>,
        stopping: watch::Receiver<()>,
    ) -> Arc<Self> {
        Arc::new(Self {
            _room: room,
            _load: load,
            _stopping: stopping,
            upstream: OnceLock::new(),
        })
    }

    /// Holds the room of the connection to the upstream as well.
    pub(crate) fn hold(&self, room: Arc<OwnedSemaphorePermit>) {
        // A connection becomes a tunnel once.
        self.upstream.set(room).ok();
    }
}

/// Both ends of a tunnel, once they have left HTTP.
pub(crate) struct Tunnel {
    pub(crate) client: OnUpgrade,
    pub(crate) upstream: OnUpgrade,
    pub(crate) held: Option<Arc<Held>>,
    /// Of the address that the upstream's end leads to.
    pub(crate) busy: Option<Busy>,
}

impl Tunnel {
    /// Passes bytes on in both directions, until both ends have closed theirs.
    pub(crate) async fn run(self, metrics: Arc<Metrics>) {
        let _open = metrics.tunnel();
        match self.join().await {
            Ok((up, down)) => tracing::debug!(up, down, "tunnel: closed"),
            Err(error) => tracing::debug!("tunnel: {error}"),
        }
    }

    async fn join(self) -> io::Result<(u64, u64)> {
        let (client, upstream) =
            tokio::try_join!(self.client, self.upstream).map_err(io::Error::other)?;
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        let passed = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
        drop((self.held, self.busy));
        passed
    }
}
