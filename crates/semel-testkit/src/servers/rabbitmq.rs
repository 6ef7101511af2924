//! RabbitMQ.

use std::net::SocketAddr;

use anyhow::Result;
use tempfile::TempDir;

use super::node::{Node, Ready};
use super::{Server, port};

/// A RabbitMQ of one's own, with the name server that Erlang needs. Its user is `guest`, without a
/// password that is worth one.
#[derive(Debug)]
pub struct Rabbitmq {
    node: Node,
    // Ends after the node that is registered with it.
    _names: Node,
    _folder: TempDir,
}

/// The start of the protocol: a version that there is, and a server that begins with a method.
const HELLO: &str = "AMQP\0\0\u{9}\u{1}";
const BEGIN: &str = "\u{1}\0\0\0";

impl Rabbitmq {
    /// Starts one.
    ///
    /// # Errors
    /// Says what is not installed, or shows what the server printed.
    pub fn start() -> Result<Self> {
        let folder = port::folder("rabbitmq")?;
        // A name server of its own: the one that a node would start stays when the node is gone.
        let names = port::free()?;
        let names = Node::new("epmd", "epmd", names, folder.path()).args([
            "-address".to_owned(),
            "127.0.0.1".to_owned(),
            "-port".to_owned(),
            names.to_string(),
        ]);
        names.start()?;
        let (clients, nodes) = (port::free()?, port::free()?);
        let at = |name: &str| folder.path().join(name).display().to_string();
        for empty in ["rabbitmq.conf", "rabbitmq-env.conf"] {
            std::fs::write(at(empty), "")?;
        }
        // No plugins: queues and exchanges are all that is asked of it.
        std::fs::write(at("enabled_plugins"), "[].\n")?;
        let environment = [
            // Becomes the Erlang machine instead of a shell that waits for one.
            ("RUNNING_UNDER_SYSTEMD", "1".to_owned()),
            ("HOME", at("")),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("ERL_EPMD_PORT", names.address().port().to_string()),
            ("RABBITMQ_NODENAME", "rabbit@localhost".to_owned()),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODE_PORT", clients.to_string()),
            ("RABBITMQ_DIST_PORT", nodes.to_string()),
            ("RABBITMQ_MNESIA_BASE", at("data")),
            ("RABBITMQ_LOG_BASE", at("log")),
            ("RABBITMQ_LOGS", "-".to_owned()),
            ("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf")),
            ("RABBITMQ_CONF_ENV_FILE", at("rabbitmq-env.conf")),
            ("RABBITMQ_GENERATED_CONFIG_DIR", at("config")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins")),
            ("RABBITMQ_PID_FILE", at("pid")),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-start_epmd false +S 2:2 +sbwt none".to_owned(),
            ),
        ];
        let settings = environment.map(|(name, value)| format!("{name}={value}"));
        let node = Node::new("rabbitmq", "env", clients, folder.path())
            .args(settings)
            .args(["/usr/lib/rabbitmq/bin/rabbitmq-server"])
            .ready(Ready::Answers(HELLO.into(), BEGIN));
        node.start()?;
        Ok(Self {
            node,
            _names: names,
            _folder: folder,
        })
    }
}

impl Server for Rabbitmq {
    fn url(&self) -> String {
        self.url_through(self.address())
    }

    fn url_through(&self, address: SocketAddr) -> String {
        format!("amqp://guest:guest@{address}/%2f")
    }

    fn nodes(&self) -> Vec<&Node> {
        vec![&self.node]
    }
}
