//! The processes that the lab starts of its own program, from both sides: parent and child say
//! lines of JSON to each other. A child's input ends with its parent, and so does the child.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, Stdin};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::part::{self, Part};

/// Longer than anything takes that is waited for here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// A child, from its parent's side. It ends with its handle.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts this program with a part.
    pub(crate) fn start(part: &Part) -> Result<Self> {
        Self::with(part, Vec::new())
    }

    /// The same with more variables in its environment.
    pub(crate) fn with(part: &Part, environment: Vec<(String, String)>) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([part::COMMAND, &serde_json::to_string(part)?])
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a process cannot be started")?;
        let orders = child.stdin.take().context("a process without an input")?;
        let out = child.stdout.take().context("a process without an output")?;
        Ok(Self {
            child,
            orders,
            said: BufReader::new(out).lines(),
        })
    }

    /// Gives an order.
    pub(crate) async fn tell(&mut self, order: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.orders.write_all(&line).await?;
        Ok(self.orders.flush().await?)
    }

    /// The next thing that it says.
    pub(crate) async fn hear<S: DeserializeOwned>(&mut self) -> Result<S> {
        let line = timeout(PATIENCE, self.said.next_line()).await;
        let line = line.with_context(|| format!("a process says nothing for {PATIENCE:?}"))??;
        let line = line.context("a process ended by itself")?;
        serde_json::from_str(&line).with_context(|| format!("a process says {line:?}"))
    }

    /// Its number, unless it has ended.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGSTOP or SIGCONT.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        send(&self.child, signal)
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

    /// Lets it end by itself, as it does when its input ends or it was told to, so that its store is
    /// closed.
    pub(crate) async fn end(mut self) -> Result<()> {
        drop(self.orders);
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let status = ended.context("a process does not end")??;
        if !status.success() {
            bail!("a process ended with {status}");
        }
        Ok(())
    }
}

/// Drives several at once, until all are done or one fails.
pub(crate) async fn together<F>(drivers: impl IntoIterator<Item = F>) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut drivers: JoinSet<_> = drivers.into_iter().collect();
    while let Some(ended) = drivers.join_next().await {
        ended??;
    }
    Ok(())
}

/// Sends a signal to a child that has not ended.
pub(crate) fn send(child: &Child, signal: Signal) -> Result<()> {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let pid = id.and_then(Pid::from_raw);
    Ok(kill_process(pid.context("it ended by itself")?, signal)?)
}

/// What the parent says, from the child's side.
#[derive(Debug)]
pub(crate) struct Orders(Lines<BufReader<Stdin>>);

impl Orders {
    pub(crate) fn new() -> Self {
        Self(BufReader::new(tokio::io::stdin()).lines())
    }

    /// The next order; none where the parent is gone.
    pub(crate) async fn next<O: DeserializeOwned>(&mut self) -> Result<Option<O>> {
        let Some(line) = self.0.next_line().await? else {
            return Ok(None);
        };
        let order = serde_json::from_str(&line).with_context(|| format!("the order {line:?}"))?;
        Ok(Some(order))
    }
}

/// Says that it is ready, and does what the parent says until that is to end.
pub(crate) async fn obey(mut order: impl AsyncFnMut(&str) -> Result<&'static str>) -> Result<()> {
    say(&"ready");
    let mut orders = Orders::new();
    while let Some(said) = orders.next::<String>().await? {
        match said.as_str() {
            "end" => return Ok(()),
            said => say(&order(said).await?),
        }
    }
    bail!("the parent is gone")
}

/// Says something to the parent.
pub(crate) fn say(what: &impl Serialize) {
    let line = serde_json::to_string(what).expect("plain data is JSON");
    let mut out = std::io::stdout().lock();
    // A parent that does not listen is gone.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
