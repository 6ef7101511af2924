//! Where the server is, or a Cluster's nodes, and how they are logged in to.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo as _, ProtocolVersion, PushInfo, RedisResult, TlsCertificates,
};

use crate::common::privacy::{self, Way};

/// How many steps may be about to go out over one connection.
const QUEUE: usize = 1_024;

/// A server, or nodes of a Cluster.
#[derive(Clone)]
pub(super) struct Target {
    nodes: Vec<ConnectionInfo>,
    cluster: bool,
    certificates: Option<TlsCertificates>,
    /// Of a step.
    pub(super) timeout: Duration,
}

impl Target {
    /// `urls` are plain ones (`redis://…` or `rediss://…`), one for each node that is known.
    pub(super) fn new(urls: &[String], cluster: bool, timeout: Duration) -> RedisResult<Self> {
        let nodes: RedisResult<Vec<_>> = urls
            .iter()
            .map(|url| (&**url).into_connection_info())
            .collect();
        Ok(Self {
            nodes: nodes?,
            cluster,
            certificates: None,
            timeout,
        })
    }

    /// Trusts this authority instead of the public ones, and shows this certificate; all PEM.
    pub(super) fn certify(
        &mut self,
        authority: Option<Vec<u8>>,
        own: Option<ClientTlsConfig>,
    ) -> RedisResult<()> {
        self.certificates = Some(TlsCertificates {
            client_tls: own,
            root_cert: authority,
        });
        // Reads them all.
        self.to_node(0, ProtocolVersion::RESP2).map(drop)
    }

    /// How the connections to the nodes of the URL are protected. A certificate is always checked.
    pub(super) fn way(&self) -> Way {
        let addresses = || self.nodes.iter().map(ConnectionInfo::addr);
        let local = |address: &ConnectionAddr| match address {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => {
                privacy::is_local(host)
            }
            _ => true,
        };
        let tls = addresses().all(|address| matches!(address, ConnectionAddr::TcpTls { .. }));
        Way::of(addresses().all(local), tls, tls)
    }

    pub(super) const fn is_cluster(&self) -> bool {
        self.cluster
    }

    /// A connection to the server, or to the first node.
    pub(super) async fn single(&self) -> RedisResult<MultiplexedConnection> {
        let client = self.to_node(0, ProtocolVersion::RESP2)?;
        client
            .get_multiplexed_async_connection_with_config(&self.config())
            .await
    }

    /// Connections to all masters of a Cluster.
    pub(super) async fn masters(&self) -> RedisResult<ClusterConnection> {
        let mut builder = ClusterClientBuilder::new(self.nodes.clone())
            // A node that does not answer must not keep the others waiting for long.
            .connection_timeout(self.timeout / 2)
            // Longer than any step: its caller gives up first, and drops the connection.
            .response_timeout(self.timeout * 2)
            .overall_response_timeout(None)
            .retries(16)
            .min_retry_wait(20)
            .max_retry_wait(300);
        if let Some(certificates) = &self.certificates {
            builder = builder.certs(certificates.clone());
        }
        builder.build()?.get_async_connection().await
    }

    fn to_node(&self, number: usize, protocol: ProtocolVersion) -> RedisResult<redis::Client> {
        let node = self.nodes[number % self.nodes.len()].clone();
        let settings = node.redis_settings().clone().set_protocol(protocol);
        let node = node.set_redis_settings(settings);
        match &self.certificates {
            Some(certificates) => redis::Client::build_with_tls(node, certificates.clone()),
            None => redis::Client::open(node),
        }
    }

    /// How a connection to one server behaves: time-outs of steps are the caller's.
    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(None)
            // Steps that go out together wait for no room, and for one wake.
            .set_pipeline_buffer_size(QUEUE)
    }

    /// A connection that hears what is published, to the node of this number.
    pub(super) async fn subscriber(
        &self,
        number: usize,
        hear: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let client = self.to_node(number, ProtocolVersion::RESP3)?;
        let config = self
            .config()
            .set_response_timeout(Some(self.timeout))
            .set_push_sender(move |push| {
                hear(push);
                Ok::<(), redis::aio::SendError>(())
            });
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the addresses: they hold passwords.
        f.debug_struct("Target")
            .field("nodes", &self.nodes.len())
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}
