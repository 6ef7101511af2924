//! A worker's process, as its parent sees it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::worker::{COMMAND, Settings};

/// Longer than anything here should take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A worker that runs, and is killed when this is dropped.
pub(super) struct Process {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts one and waits until it has its store.
    pub(super) async fn start(program: &Path, settings: &Settings) -> Result<Self> {
        let mut child = Command::new(program)
            .arg(COMMAND)
            .arg(serde_json::to_string(settings)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a worker cannot be started")?;
        let orders = child.stdin.take().context("a worker without an input")?;
        let out = child.stdout.take().context("a worker without an output")?;
        let mut process = Self {
            child,
            orders,
            said: BufReader::new(out).lines(),
        };
        match process.line().await?[..] {
            [ref ready] if ready == "ready" => Ok(process),
            ref other => bail!("a worker that is not ready says {other:?}"),
        }
    }

    /// Gives an order.
    pub(super) async fn order(&mut self, order: &str) -> Result<()> {
        let line = format!("{order}\n");
        self.orders.write_all(line.as_bytes()).await?;
        Ok(self.orders.flush().await?)
    }

    /// The words of the next line that it says.
    pub(super) async fn line(&mut self) -> Result<Vec<String>> {
        let line = timeout(PATIENCE, self.said.next_line())
            .await
            .context("a worker says nothing")??
            .context("a worker ended by itself")?;
        Ok(line.split(' ').map(str::to_owned).collect())
    }

    /// The next line that begins with this word.
    pub(super) async fn hear(&mut self, word: &str) -> Result<Vec<String>> {
        loop {
            let line = self.line().await?;
            if line[0] == word {
                return Ok(line);
            }
        }
    }

    /// SIGKILL.
    pub(super) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// SIGSTOP or SIGCONT.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let pid = id
            .and_then(Pid::from_raw)
            .context("a worker that is gone")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Lets it end by itself, so that its store is closed.
    pub(super) async fn end(self) -> Result<()> {
        let Self {
            mut child, orders, ..
        } = self;
        drop(orders);
        timeout(PATIENCE, child.wait())
            .await
            .context("a worker does not end")??;
        Ok(())
    }
}
