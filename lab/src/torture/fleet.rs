//! The workers' processes.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::Signal;

use crate::nemesis::{Fault, Lane, Wall, Wrong};
use crate::part::Part;
use crate::process::Process;

/// A worker's process.
#[derive(Debug)]
struct Worker {
    process: Process,
    life: u32,
    ready: bool,
}

/// All of them.
pub(crate) struct Fleet {
    part: Box<dyn Fn(u32, u32) -> Part + Send + Sync>,
    workers: Vec<Worker>,
    walls: Vec<Wall>,
}

/// A wall clock for each of `count` workers, where one of these faults sets them.
///
/// # Errors
/// Where there is no library for it, or no file can be written.
pub(crate) fn walls(faults: &[Fault], folder: &Path, count: u32) -> Result<Vec<Wall>> {
    let sets = |fault: &Fault| fault.lane() == Lane::Worker && fault.is_of_clocks();
    match faults.iter().any(sets) {
        true => (0..count)
            .map(|number| Wall::new(folder, &format!("{number:03}.clock")))
            .collect(),
        false => Ok(Vec::new()),
    }
}

impl Fleet {
    /// Starts `count` workers, each with its part in each of its lives, and its wall clock where there are any;
    /// and waits until each of them works.
    ///
    /// # Errors
    /// Where one does not start.
    pub(crate) async fn start(
        part: impl Fn(u32, u32) -> Part + Send + Sync + 'static,
        count: u32,
        walls: Vec<Wall>,
    ) -> Result<Self> {
        let mut fleet = Self {
            part: Box::new(part),
            workers: Vec::new(),
            walls,
        };
        for number in 0..count {
            let worker = fleet.spawn(number, 0)?;
            fleet.workers.push(worker);
        }
        fleet.all_ready().await?;
        Ok(fleet)
    }

    fn spawn(&self, number: u32, life: u32) -> Result<Worker> {
        let wall = self.walls.get(number as usize);
        let environment = wall.map(Wall::environment).unwrap_or_default();
        let process = Process::with(&(self.part)(number, life), environment)?;
        Ok(Worker {
            process,
            life,
            ready: false,
        })
    }

    /// The process's number of a worker.
    ///
    /// # Errors
    /// Where it had ended by itself.
    pub(crate) fn id(&self, number: usize) -> Result<u32> {
        let id = self.workers[number].process.id();
        id.ok_or_else(|| anyhow!("worker {number} ended by itself"))
    }

    async fn hear(&mut self, number: usize, wanted: &str) -> Result<()> {
        let said = self.workers[number].process.hear::<String>().await;
        match said.with_context(|| format!("worker {number} is not {wanted}"))? {
            said if said == wanted => Ok(()),
            said => bail!("worker {number} says {said:?} and not {wanted:?}"),
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

    /// One that works: a kill before its first call proves nothing.
    async fn chosen(&mut self, whom: u32) -> Result<usize> {
        let number = whom as usize % self.workers.len();
        self.ready(number).await?;
        Ok(number)
    }

    /// Sets the wall clock of the worker that `whom` chooses.
    ///
    /// # Errors
    /// Where it has none of its own.
    pub(super) async fn set_clock(&mut self, whom: u32, wrong: Wrong) -> Result<usize> {
        let number = self.chosen(whom).await?;
        let wall = self.walls.get(number).context("no clock of its own")?;
        wall.set(wrong)?;
        Ok(number)
    }

    /// SIGKILL to the worker that `whom` chooses.
    ///
    /// # Errors
    /// Where it had ended by itself.
    pub(super) async fn kill(&mut self, whom: u32) -> Result<usize> {
        let number = self.chosen(whom).await?;
        self.id(number)?;
        self.workers[number].process.kill::<String>().await?;
        Ok(number)
    }

    /// Starts a killed worker again, without waiting for it.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub(super) fn revive(&mut self, number: usize) -> Result<()> {
        let life = self.workers[number].life + 1;
        self.workers[number] = self.spawn(u32::try_from(number)?, life)?;
        Ok(())
    }

    /// SIGSTOP to the worker that `whom` chooses.
    ///
    /// # Errors
    /// Where it had ended by itself.
    pub(super) async fn pause(&mut self, whom: u32) -> Result<usize> {
        let number = self.chosen(whom).await?;
        self.workers[number].process.signal(Signal::STOP)?;
        Ok(number)
    }

    /// SIGCONT to it.
    ///
    /// # Errors
    /// Where it is gone.
    pub(super) fn resume(&self, number: usize) -> Result<()> {
        self.workers[number].process.signal(Signal::CONT)
    }

    /// Gives all workers an order, and waits until all say that it is done.
    ///
    /// # Errors
    /// Where one of them ended by itself, or takes too long.
    pub(crate) async fn all(&mut self, order: &str, done: &str) -> Result<()> {
        for number in 0..self.workers.len() {
            self.ready(number).await?;
            let told = self.workers[number].process.tell(&order).await;
            told.with_context(|| format!("worker {number} ended by itself"))?;
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
            worker.process.tell(&"end").await?;
        }
        for (number, worker) in self.workers.into_iter().enumerate() {
            let ended = worker.process.end().await;
            ended.with_context(|| format!("worker {number}"))?;
        }
        Ok(())
    }
}
