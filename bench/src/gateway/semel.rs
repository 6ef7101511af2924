//! The program `semel`, as a server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::run::progress;
use crate::server::{Server, free_address};

/// One that runs.
pub(super) struct Semel {
    pub(super) server: Server,
    pub(super) admin: SocketAddr,
}

impl Semel {
    pub(super) fn start(
        program: &Path,
        upstream: SocketAddr,
        store: &str,
        more: &[&str],
    ) -> Result<Self> {
        let (listen, admin) = (free_address()?, free_address()?);
        let mut command = Command::new(program);
        command
            .arg("serve")
            .args(["--upstream", &format!("http://{upstream}")])
            .args(["--listen", &listen.to_string()])
            .args(["--admin", &admin.to_string()])
            .args(["--store", store])
            .args(more)
            .stdout(Stdio::null());
        let server = Server::spawn(&mut command, listen)?;
        Ok(Self { server, admin })
    }
}

/// What `SEMEL_BIN` names, or the program built here from the root manifest.
pub(super) fn program() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("SEMEL_BIN") {
        return Ok(named.into());
    }
    progress("gateway: building the program semel");
    let output = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--release", "--package", "semel-gateway"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(["--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the gateway was not built");
    let messages = String::from_utf8(output.stdout)?;
    let built = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let of_semel = message["target"]["name"] == "semel";
        let program = message["executable"].as_str().filter(|_| of_semel)?;
        Some(PathBuf::from(program))
    });
    built.context("the gateway has no program semel")
}
