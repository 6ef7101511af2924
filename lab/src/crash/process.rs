//! A process that is to be killed: both sides say lines of JSON.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A worker or consumer, from the parent's side. It ends with its handle.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts this program with a hidden subcommand and its settings.
    pub(crate) fn start(program: &Path, command: &str, settings: &impl Serialize) -> Result<Self> {
        let mut child = Command::new(program)
            .arg(command)
            .arg(serde_json::to_string(settings)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("a {command} cannot be started"))?;
        let orders = child.stdin.take().context("a process without an input")?;
        let out = child.stdout.take().context("a process without an output")?;
        Ok(Self {
            child,
            orders,
            said: BufReader::new(out).lines(),
        })
    }

    pub(crate) async fn tell(&mut self, what: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.orders.write_all(&line).await?;
        Ok(self.orders.flush().await?)
    }

    /// The next thing that it says.
    pub(crate) async fn hear<S: DeserializeOwned>(&mut self) -> Result<S> {
        let line = self.said.next_line().await?;
        let line = line.context("a process ended by itself")?;
        serde_json::from_str(&line).with_context(|| format!("a process says {line:?}"))
    }

    /// SIGKILL. What it had said before, and nobody had heard; a line without its end was not said.
    pub(crate) async fn kill<S: DeserializeOwned>(&mut self) -> Result<Vec<S>> {
        self.child.kill().await?;
        let mut said = Vec::new();
        while let Some(line) = self.said.next_line().await? {
            said.extend(serde_json::from_str(&line).ok());
        }
        Ok(said)
    }
}
