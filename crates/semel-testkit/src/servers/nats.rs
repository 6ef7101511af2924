//! NATS with JetStream, alone and as three nodes.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Result;
use tempfile::TempDir;

use super::node::{Node, Ready};
use super::{Server, cache, port};

/// Which nats-server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatsRelease {
    /// Debian's: 2.9. Its clusters let two writes of one revision through.
    Debian,
    /// A current one, which scripts/setup installs from PyPI.
    Current,
}

impl NatsRelease {
    fn program(self) -> Result<String> {
        match self {
            Self::Debian => Ok("nats-server".into()),
            Self::Current => cache::installed("nats/bin/nats-server"),
        }
    }
}

/// NATS nodes of one's own.
#[derive(Debug)]
pub struct Nats {
    nodes: Vec<Node>,
    _folder: TempDir,
}

impl Nats {
    /// Starts one node of Debian's release.
    ///
    /// # Errors
    /// Says what is not installed, or shows what the server printed.
    pub fn start() -> Result<Self> {
        Self::start_nodes(NatsRelease::Debian, 1)
    }

    /// Starts three nodes of a current release, and waits until they have a leader.
    ///
    /// # Errors
    /// Says what is not installed, or shows what a server printed.
    pub fn start_cluster() -> Result<Self> {
        Self::start_nodes(NatsRelease::Current, 3)
    }

    /// Starts so many nodes of a release, and waits until they have a leader.
    ///
    /// # Errors
    /// Says what is not installed, or shows what a server printed.
    pub fn start_nodes(release: NatsRelease, count: usize) -> Result<Self> {
        Self::start_nodes_with(release, count, "")
    }

    /// The same with these settings of JetStream (`sync_interval: always`) beside the default ones.
    ///
    /// # Errors
    /// Says what is not installed, or shows what a server printed.
    pub fn start_nodes_with(release: NatsRelease, count: usize, jetstream: &str) -> Result<Self> {
        let program = release.program()?;
        let folder = port::folder("nats")?;
        let routes: Result<Vec<u16>> = (0..count).map(|_| port::free()).collect();
        let routes = routes?;
        let mut nodes = Vec::new();
        for (number, route) in routes.iter().enumerate() {
            let (client, monitor) = (port::free()?, port::free()?);
            let data = folder.path().join(number.to_string());
            let mut settings = format!(
                "server_name: node{number}\nlisten: 127.0.0.1:{client}\nhttp: 127.0.0.1:{monitor}\n\
                 jetstream {{\n  store_dir: \"{}\"\n  {jetstream}\n}}\n",
                data.display()
            );
            if count > 1 {
                let routes: Vec<String> = routes
                    .iter()
                    .map(|r| format!("nats://127.0.0.1:{r}"))
                    .collect();
                writeln!(
                    settings,
                    "cluster {{ name: semel, listen: 127.0.0.1:{route}, routes: [{}] }}",
                    routes.join(", ")
                )?;
            }
            let file = folder.path().join(format!("node{number}.conf"));
            std::fs::write(&file, settings)?;
            let node = Node::new("nats", &program, client, folder.path())
                .args(["-c".to_owned(), file.display().to_string()])
                // Healthy only once JetStream has a leader and is up to date.
                .ready(Ready::AnswersAt(
                    monitor,
                    "GET /healthz HTTP/1.0\r\n\r\n".into(),
                    "HTTP/1.0 200",
                ));
            node.launch()?;
            nodes.push(node);
        }
        for node in &nodes {
            node.wait_until_ready()?;
        }
        Ok(Self {
            nodes,
            _folder: folder,
        })
    }

    fn url_of(&self, hosts: &str) -> String {
        let replicas = self.nodes.len();
        format!("nats://{hosts}/semel?replicas={replicas}")
    }
}

impl Server for Nats {
    fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|n| n.address().to_string()).collect();
        self.url_of(&hosts.join(","))
    }

    fn url_through(&self, address: SocketAddr) -> String {
        self.url_of(&address.to_string())
    }

    fn nodes(&self) -> Vec<&Node> {
        self.nodes.iter().collect()
    }
}
