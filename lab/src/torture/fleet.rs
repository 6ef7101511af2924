//! The workers' processes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::nemesis::{Wall, Wrong};

const PATIENCE: Duration = Duration::from_secs(90);

/// A worker's process.
#[derive(Debug)]
struct Process {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    ready: bool,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Fleet {
    program: PathBuf,
    command: &'static str,
    settings: String,
    workers: Vec<Process>,
    walls: Vec<Wall>,
    lives: Vec<u32>,
}

impl Fleet {
    /// Starts `count` workers, each with its wall clock where there are any, and waits until each
    /// of them works.
    ///
    /// # Errors
    /// Where one does not start.
    pub(crate) async fn start(
        program: &Path,
        command: &'static str,
        settings: &impl Serialize,
        count: u32,
        walls: Vec<Wall>,
    ) -> Result<Self> {
        let mut fleet = Self {
            program: program.into(),
            command,
            settings: serde_json::to_string(settings)?,
            workers: Vec::new(),
            walls,
            lives: Vec::new(),
        };
        for number in 0..count {
            let process = fleet.spawn(number, 0)?;
            fleet.workers.push(process);
            fleet.lives.push(0);
        }
        fleet.all_ready().await?;
        Ok(fleet)
    }

    fn spawn(&self, number: u32, life: u32) -> Result<Process> {
        let mut child = Command::new(&self.program)
            .arg(self.command)
            .arg(&self.settings)
            .envs(self.wall(number).map(Wall::environment).unwrap_or_default())
            .args([number.to_string(), life.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a worker cannot be started")?;
        let orders = child.stdin.take().context("a worker without an input")?;
        let out = child.stdout.take().context("a worker without an output")?;
        Ok(Process {
            child,
            orders,
            said: BufReader::new(out).lines(),
            ready: false,
        })
    }

    /// The process's number of a worker.
    ///
    /// # Errors
    /// Where it had ended by itself.
    pub(crate) fn id(&self, number: usize) -> Result<u32> {
        let id = self.workers[number].child.id();
        id.ok_or_else(|| anyhow!("worker {number} ended by itself"))
    }

    fn pid(&self, number: usize) -> Result<Pid> {
        let id = i32::try_from(self.id(number)?)?;
        Pid::from_raw(id).context("no process has this number")
    }

    async fn hear(&mut self, number: usize, wanted: &str) -> Result<()> {
        let line = timeout(PATIENCE, self.workers[number].said.next_line())
            .await
            .map_err(|_| anyhow!("worker {number} is not {wanted} after {PATIENCE:?}"))??;
        match line {
            Some(line) if line == wanted => Ok(()),
            Some(line) => bail!("worker {number} says {line:?} and not {wanted:?}"),
            None => bail!("worker {number} ended by itself"),
        }
    }

    /// Waits until all of them work, those that were started again as well.
    ///
    /// # Errors
    /// Where one of them ended by itself, or takes too long.
    pub(super) async fn all_ready(&mut self) -> Result<()> {
        for number in 0..self.workers.len() {
            self.ready(number).await?;
        }
        Ok(())
    }

    async fn ready(&mut self, number: usize) -> Result<()> {
        if !self.workers[number].ready {
            self.hear(number, "ready").await?;
            self.workers[number].ready = true;
        }
        Ok(())
    }

    fn wall(&self, number: u32) -> Option<&Wall> {
        self.walls.get(number as usize)
    }

    /// Sets the wall clock of the worker that `whom` chooses.
    ///
    /// # Errors
    /// Where it has none of its own.
    pub(super) async fn set_clock(&mut self, whom: u32, wrong: Wrong) -> Result<usize> {
        let number = whom as usize % self.workers.len();
        self.ready(number).await?;
        let wall = self.walls.get(number).context("no clock of its own")?;
        wall.set(wrong)?;
        Ok(number)
    }

    /// SIGKILL to the worker that `whom` chooses.
    ///
    /// # Errors
    /// Where it had ended by itself.
    pub(super) async fn kill(&mut self, whom: u32) -> Result<usize> {
        let number = whom as usize % self.workers.len();
        // A kill before the first call proves nothing.
        self.ready(number).await?;
        self.pid(number)?;
        self.workers[number].child.kill().await?;
        Ok(number)
    }

    /// Starts a killed worker again, without waiting for it.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub(super) fn revive(&mut self, number: usize) -> Result<()> {
        self.lives[number] += 1;
        let life = self.lives[number];
        self.workers[number] = self.spawn(u32::try_from(number)?, life)?;
        Ok(())
    }

    /// SIGSTOP to the worker that `whom` chooses.
    ///
    /// # Errors
    /// Where it had ended by itself.
    pub(super) async fn pause(&mut self, whom: u32) -> Result<usize> {
        let number = whom as usize % self.workers.len();
        self.ready(number).await?;
        kill_process(self.pid(number)?, Signal::STOP)?;
        Ok(number)
    }

    /// SIGCONT to it.
    ///
    /// # Errors
    /// Where it is gone.
    pub(super) fn resume(&self, number: usize) -> Result<()> {
        Ok(kill_process(self.pid(number)?, Signal::CONT)?)
    }

    /// Gives all workers an order, and waits until all say that it is done.
    ///
    /// # Errors
    /// Where one of them ended by itself, or takes too long.
    pub(crate) async fn all(&mut self, order: &str, done: &str) -> Result<()> {
        for number in 0..self.workers.len() {
            self.ready(number).await?;
            let worker = &mut self.workers[number];
            let line = format!("{order}\n");
            worker
                .orders
                .write_all(line.as_bytes())
                .await
                .with_context(|| format!("worker {number} ended by itself"))?;
            worker.orders.flush().await?;
        }
        for number in 0..self.workers.len() {
            self.hear(number, done).await?;
        }
        Ok(())
    }

    /// Lets all of them end.
    ///
    /// # Errors
    /// Where one says that it failed.
    pub(crate) async fn end(mut self) -> Result<()> {
        for worker in &mut self.workers {
            worker.orders.write_all(b"end\n").await?;
            worker.orders.flush().await?;
        }
        for (number, worker) in self.workers.iter_mut().enumerate() {
            let status = timeout(PATIENCE, worker.child.wait())
                .await
                .with_context(|| format!("worker {number} does not end"))??;
            if !status.success() {
                bail!("worker {number} ended with {status}");
            }
        }
        Ok(())
    }
}
