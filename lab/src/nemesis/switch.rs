//! An address that leads to one server, and later to another: what clients see of a failover by
//! DNS or a virtual address.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Leads connections to a target that can be changed. Stops when it is dropped.
#[derive(Debug)]
pub struct Switch {
    address: SocketAddr,
    target: Arc<watch::Sender<SocketAddr>>,
    serving: JoinHandle<()>,
}

impl Switch {
    /// Leads to `target` at first.
    ///
    /// # Errors
    /// Where no port can be had.
    pub async fn start(target: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let target = Arc::new(watch::Sender::new(target));
        let serving = tokio::spawn(serve(listener, target.clone()));
        Ok(Self {
            address,
            target,
            serving,
        })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections; new ones lead to `target`.
    pub fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, target: Arc<watch::Sender<SocketAddr>>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut changes = target.subscribe();
        tokio::spawn(async move {
            let to = *changes.borrow_and_update();
            let through = async {
                let mut server = TcpStream::connect(to).await?;
                client.set_nodelay(true)?;
                server.set_nodelay(true)?;
                copy_bidirectional(&mut client, &mut server).await
            };
            tokio::select! {
                _ = changes.changed() => {}
                _ = through => {}
            }
        });
    }
}
