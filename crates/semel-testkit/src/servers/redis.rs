//! Redis, alone and as a Cluster.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tempfile::TempDir;

use super::node::{Node, Ready};
use super::{Server, guarded, port};

/// A Redis of one's own.
#[derive(Debug)]
pub struct Redis {
    node: Node,
    _folder: TempDir,
}

fn node(folder: &Path, more: &[&str]) -> Result<Node> {
    let port = port::free()?;
    let data = folder.join(port.to_string());
    std::fs::create_dir(&data)?;
    let own = [
        "--port".to_owned(),
        port.to_string(),
        "--dir".into(),
        data.display().to_string(),
    ];
    let fixed = ["--bind", "127.0.0.1", "--save", ""];
    Ok(Node::new("redis", "redis-server", port, folder)
        .args(own)
        .args(fixed)
        .args(more.iter().copied())
        // While it loads its data it answers `-LOADING`.
        .ready(Ready::Answers("PING\r\n".into(), "+PONG")))
}

impl Redis {
    /// Starts one with these arguments; without any it syncs its log at every write.
    ///
    /// # Errors
    /// Says what is not installed, or shows what the server printed.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        let folder = port::folder("redis")?;
        let durable = ["--appendonly", "yes", "--appendfsync", "always"];
        let arguments = if arguments.is_empty() {
            &durable
        } else {
            arguments
        };
        let node = node(folder.path(), arguments)?;
        node.start()?;
        Ok(Self {
            node,
            _folder: folder,
        })
    }
}

impl Server for Redis {
    fn url(&self) -> String {
        self.url_through(self.address())
    }

    fn url_through(&self, address: SocketAddr) -> String {
        format!("redis://{address}/")
    }

    fn nodes(&self) -> Vec<&Node> {
        vec![&self.node]
    }
}

/// Three masters with a replica each.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Node>,
    _folder: TempDir,
}

impl RedisCluster {
    /// Starts six nodes that sync their log at every write, and waits until they agree.
    ///
    /// # Errors
    /// Says what is not installed, or shows what a server printed.
    pub fn start() -> Result<Self> {
        let folder = port::folder("redis-cluster")?;
        let mut nodes = Vec::new();
        for _ in 0..6 {
            let bus = port::free()?.to_string();
            let arguments = [
                ["--appendonly", "yes"],
                ["--appendfsync", "always"],
                ["--cluster-enabled", "yes"],
                ["--cluster-node-timeout", "2000"],
                ["--cluster-replica-validity-factor", "0"],
                ["--cluster-port", &bus],
            ];
            let node = node(folder.path(), arguments.as_flattened())?;
            node.launch()?;
            nodes.push(node);
        }
        for node in &nodes {
            node.wait_until_ready()?;
        }
        let addresses = nodes.iter().map(|node| node.address().to_string());
        let create = ["--cluster", "create"].map(String::from);
        let replicas = ["--cluster-replicas", "1", "--cluster-yes"].map(String::from);
        let arguments: Vec<String> = create
            .into_iter()
            .chain(addresses)
            .chain(replicas)
            .collect();
        guarded::run("redis-cli", &arguments, None)?;
        let cluster = Self {
            nodes,
            _folder: folder,
        };
        cluster.wait_until_agreed()?;
        Ok(cluster)
    }

    /// Waits until every node that runs calls the cluster whole.
    ///
    /// # Errors
    /// Where they do not in half a minute.
    pub fn wait_until_agreed(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(30);
        let running = || self.nodes.iter().filter(|node| node.pid().is_some());
        let agreed = |node: &Node| {
            let info = cli(node.address(), &["cluster", "info"]);
            info.is_ok_and(|info| info.contains("cluster_state:ok"))
        };
        while !running().all(agreed) {
            if Instant::now() > end {
                bail!("the nodes of the cluster do not agree");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// What `redis-cli` prints when it asks a node this.
///
/// # Errors
/// What it printed where it failed.
pub(super) fn cli(address: SocketAddr, command: &[&str]) -> Result<String> {
    let mut arguments = vec!["-p".to_owned(), address.port().to_string()];
    arguments.extend(command.iter().map(|&word| word.into()));
    let output = guarded::run("redis-cli", &arguments, None)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Server for RedisCluster {
    fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|n| n.address().to_string()).collect();
        format!("redis-cluster://{}", nodes.join(","))
    }

    // The client learns the other nodes' own addresses from this one.
    fn url_through(&self, address: SocketAddr) -> String {
        format!("redis-cluster://{address}")
    }

    fn nodes(&self) -> Vec<&Node> {
        self.nodes.iter().collect()
    }
}
