//! An emulator of DynamoDB: moto's server behind one lock, which makes its requests atomic.

use std::net::SocketAddr;

use anyhow::Result;
use tempfile::TempDir;

use super::node::{Node, Ready};
use super::{Server, cache, port};

/// An emulator of one's own. It keeps its tables in memory: killed, it has forgotten them.
#[derive(Debug)]
pub struct DynamoDb {
    node: Node,
    _folder: TempDir,
}

impl DynamoDb {
    /// Starts one.
    ///
    /// # Errors
    /// Says what is not installed, or shows what it printed.
    pub fn start() -> Result<Self> {
        let folder = port::folder("dynamodb")?;
        let port = port::free()?;
        let server = concat!(env!("CARGO_MANIFEST_DIR"), "/dynamodb/server.py");
        let node = Node::new(
            "dynamodb",
            cache::installed("dynamodb/bin/python")?,
            port,
            folder.path(),
        )
        .args([server.to_owned(), "--port".into(), port.to_string()])
        .ready(Ready::Listens);
        node.start()?;
        Ok(Self {
            node,
            _folder: folder,
        })
    }
}

impl Server for DynamoDb {
    fn url(&self) -> String {
        self.url_through(self.address())
    }

    fn url_through(&self, address: SocketAddr) -> String {
        format!("dynamodb://semel?endpoint=http://{address}&region=us-east-1")
    }

    fn nodes(&self) -> Vec<&Node> {
        vec![&self.node]
    }
}
