//! An emulator of DynamoDB and S3: moto's server behind one lock, which makes its requests atomic.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, ensure};
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
        // Not where it lies in the sources: a program outlives the folder that it was built in.
        let server = folder.path().join("server.py");
        std::fs::write(&server, include_str!("../../dynamodb/server.py"))?;
        let node = Node::new(
            "dynamodb",
            cache::installed("dynamodb/bin/python")?,
            port,
            folder.path(),
        )
        .args([
            server.display().to_string(),
            "--port".into(),
            port.to_string(),
        ])
        .ready(Ready::Listens);
        node.start()?;
        Ok(Self {
            node,
            _folder: folder,
        })
    }

    /// Makes a bucket, and says how its objects are reached. `versions`: what is removed stays in it.
    ///
    /// # Errors
    /// What the server answered.
    pub fn bucket(&self, name: &str, versions: bool) -> Result<String> {
        let address = self.address();
        let put = |path: &str, body: &str| -> Result<()> {
            let mut stream = TcpStream::connect(address)?;
            let length = body.len();
            let head = format!("PUT {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
            write!(stream, "{head}content-length: {length}\r\n\r\n{body}")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            ensure!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
            Ok(())
        };
        put(&format!("/{name}"), "")?;
        if versions {
            let on = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
            put(&format!("/{name}?versioning"), on)?;
        }
        Ok(format!(
            "s3://{name}?endpoint=http://{address}&region=us-east-1"
        ))
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
