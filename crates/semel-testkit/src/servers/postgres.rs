//! PostgreSQL, and PgBouncer before it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::node::{Node, Ready, Signal};
use super::{Server, guarded, port, template};

/// A PostgreSQL of one's own: data synced at every commit, everybody on this machine trusted.
#[derive(Debug)]
pub struct Postgres {
    node: Node,
    folder: TempDir,
}

// PostgreSQL refuses to run as root.
const USER: &str = "postgres";

impl Postgres {
    /// Starts one with these settings (`name=value`) beside the default ones.
    ///
    /// # Errors
    /// Says what is not installed, or shows what the server printed.
    pub fn start(settings: &[&str]) -> Result<Self> {
        let folder = port::folder("postgres")?;
        if rustix::process::geteuid().is_root() {
            give_to(&folder)?;
        }
        let data = folder.path().join("data").display().to_string();
        let initdb = program("initdb")?;
        let arguments = [
            "-D",
            &*data,
            "-U",
            "semel",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ];
        template::make(&program("postgres")?, Path::new(&data), || {
            guarded::run(&initdb, &arguments.map(String::from), Some(USER))?;
            Ok(())
        })?;
        let port = port::free()?;
        let ready = [
            "-q",
            "-h",
            "127.0.0.1",
            "-d",
            "postgres",
            "-p",
            &port.to_string(),
        ];
        let own = [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            format!("unix_socket_directories={data}"),
            "max_connections=300".into(),
            "shared_buffers=64MB".into(),
            // In its folder, which goes with it: what lies elsewhere a killed server leaves behind.
            "dynamic_shared_memory_type=mmap".into(),
        ];
        let all = own.into_iter().chain(settings.iter().map(|&s| s.into()));
        let node = Node::new("postgres", program("postgres")?, port, folder.path())
            .user(USER)
            .args(["-D", &*data])
            .args(all.flat_map(|setting| ["-c".to_owned(), setting]))
            .ready(Ready::Succeeds(
                program("pg_isready")?,
                ready.map(String::from).into(),
            ));
        let server = Self { node, folder };
        server.node.start()?;
        Ok(server)
    }

    /// As `pg_ctl restart -m immediate`: connections are cut at once, and the log is recovered.
    ///
    /// # Errors
    /// Shows what the server printed.
    pub fn restart_immediately(&self) -> Result<()> {
        self.node.end(Signal::QUIT);
        self.node.start()
    }

    /// Where its data is.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// One of its programs, for instance `pgbench`.
    ///
    /// # Errors
    /// Says what is not installed.
    pub fn program(name: &str) -> Result<String> {
        program(name)
    }
}

impl Server for Postgres {
    fn url(&self) -> String {
        self.url_through(self.address())
    }

    fn url_through(&self, address: SocketAddr) -> String {
        format!("postgres://semel@{address}/postgres")
    }

    fn nodes(&self) -> Vec<&Node> {
        vec![&self.node]
    }
}

/// A killed one leaves a segment of shared memory in the kernel, which has room for some thousands.
impl Drop for Postgres {
    fn drop(&mut self) {
        self.node.resume();
        self.node.end(Signal::QUIT);
    }
}

/// PgBouncer in transaction mode before a server.
#[derive(Debug)]
pub struct PgBouncer {
    node: Node,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts one before this server.
    ///
    /// # Errors
    /// Says what is not installed, or shows what it printed.
    pub fn start(server: &Postgres) -> Result<Self> {
        let folder = port::folder("pgbouncer")?;
        let port = port::free()?;
        let at = server.address();
        let users = folder.path().join("users.txt");
        std::fs::write(&users, "\"semel\" \"\"\n")?;
        let settings = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
             pool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 20\n",
            at.ip(),
            at.port(),
            users.display(),
        );
        std::fs::write(&settings, text)?;
        let node = Node::new("pgbouncer", "pgbouncer", port, folder.path())
            .user(USER)
            .args([settings.display().to_string()]);
        node.start()?;
        Ok(Self {
            node,
            _folder: folder,
        })
    }

    /// The URL of the server by way of this.
    pub fn url(&self) -> String {
        format!("postgres://semel@{}/postgres", self.node.address())
    }

    /// Its process.
    pub const fn node(&self) -> &Node {
        &self.node
    }
}

/// A PostgreSQL, and a PgBouncer before it.
#[derive(Debug)]
pub struct Pooled {
    bouncer: PgBouncer,
    server: Postgres,
}

impl Pooled {
    /// Starts both.
    ///
    /// # Errors
    /// Says what is not installed, or shows what they printed.
    pub fn start() -> Result<Self> {
        let server = Postgres::start(&[])?;
        let bouncer = PgBouncer::start(&server)?;
        Ok(Self { bouncer, server })
    }
}

impl Server for Pooled {
    fn url(&self) -> String {
        self.url_through(self.address())
    }

    // Pushes go around it: it hands out connections by transaction.
    fn url_through(&self, address: SocketAddr) -> String {
        let through = self.server.url_through(address);
        format!("{through}?prepared=off&listen={}", self.server.url())
    }

    fn nodes(&self) -> Vec<&Node> {
        vec![&self.bouncer.node, &self.server.node]
    }
}

fn give_to(folder: &TempDir) -> Result<()> {
    let path = folder.path().display().to_string();
    guarded::run("chown", &[USER.to_owned(), path], None)?;
    Ok(())
}

// Debian keeps the programs of each version apart, outside the path.
fn program(name: &str) -> Result<String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let mut found: Vec<PathBuf> = versions
        .filter_map(|version| Some(version.ok()?.path().join("bin").join(name)))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    let found = found
        .pop()
        .with_context(|| format!("PostgreSQL's {name} is not installed: run scripts/setup"))?;
    Ok(found.display().to_string())
}
