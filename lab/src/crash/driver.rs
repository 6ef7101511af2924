//! The parent's side of one worker: tells it what to ask for, kills it where that was planned, and
//! starts another in its place.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use super::board::{Board, Ended, Next};
use super::failpoints::{Order, Said};
use super::point::{Point, Strike};
use super::transaction::Tables;
use super::wire::{Struck, Wire};
use super::worker::Settings;
use crate::base::{self, Base, Place};
use crate::part::Part;
use crate::process::Process;

/// Longer than anything a worker does takes, on a machine that is busy with other things too.
const PATIENCE: Duration = Duration::from_secs(60);

/// A commit takes less, on a disk that is busy with other things too.
const COMMITS: Duration = Duration::from_secs(10);

/// What all drivers share.
#[derive(Debug)]
pub(super) struct Run<B> {
    pub(super) place: Place,
    /// Not through a worker's wire.
    pub(super) store: B,
    pub(super) tables: Tables,
    pub(super) settings: Settings,
    pub(super) board: Board,
}

/// One life of a worker, and what stands between it and the server.
#[derive(Debug)]
struct Life {
    process: Process,
    wire: Wire,
}

/// Drives one worker after the other, until nothing is left to do.
pub(super) async fn drive<B: Base>(run: Arc<Run<B>>, seed: u64) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut life: Option<Life> = None;
    loop {
        let (key, point) = match run.board.next() {
            Next::Done => return Ok(()),
            _ if run.board.silent() > PATIENCE => bail!("nobody was answered for {PATIENCE:?}"),
            Next::Ask(key, point) => (key, point),
            Next::Wait => {
                sleep(Duration::from_millis(5)).await;
                continue;
            }
        };
        let mut alive = match life.take() {
            Some(alive) => alive,
            None => Life::begin(&run).await?,
        };
        // Those who are asking already learn of an outage; a point is not to be wasted on one.
        drop(run.place.stays_up().await);
        let ended = alive.ask(&run, key, point, &mut chance).await?;
        run.board.ended(key, point, &ended);
        if !ended.killed {
            life = Some(alive);
        }
    }
}

impl<B: Base> Run<B> {
    /// Once effects of the key are there: whether this attempt's are. So it is, too, where none come in time: the
    /// judge will not find them either, and says so.
    async fn has_committed(&self, key: i64, fence: u64) -> Result<bool> {
        let sql = format!("SELECT fence FROM {} WHERE k = {key}", self.tables.ledger);
        let end = Instant::now() + COMMITS;
        loop {
            let fences = base::numbers(&self.store, &sql).await?;
            if !fences.is_empty() || Instant::now() > end {
                return Ok(fences.is_empty() || fences.contains(&vec![fence.cast_signed()]));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Life {
    async fn begin<B>(run: &Run<B>) -> Result<Self> {
        let _up = run.place.stays_up().await;
        let (wire, url) = Wire::to(&run.place)?;
        let settings = Settings {
            url,
            ..run.settings.clone()
        };
        let process = Process::start(&Part::CrashWorker(settings))?;
        let mut life = Self { process, wire };
        match life.process.hear().await? {
            Said::Ready => Ok(life),
            other => bail!("a new worker says {other:?}"),
        }
    }

    async fn ask<B: Base>(
        &mut self,
        run: &Run<B>,
        key: i64,
        point: Option<(Point, u32)>,
        chance: &mut fastrand::Rng,
    ) -> Result<Ended> {
        let (board, restarts) = (&run.board, run.place.restarts());
        self.process.tell(&Order::Ask { key, point }).await?;
        let mut hit = false;
        loop {
            match self.process.hear().await? {
                Said::At(at, fence) => {
                    let Self { process, wire } = self;
                    let go = async || process.tell(&Order::Go).await;
                    let done = async || match at.leaves() {
                        Some(true) => run.has_committed(key, fence).await,
                        _ => wire.all_done().await.map(|()| true),
                    };
                    let struck = match hit {
                        // The second time it is where it finds out.
                        true => Struck::Dies(None),
                        false => {
                            wire.strike(&run.place, restarts, at, chance, go, done)
                                .await?
                        }
                    };
                    hit = !matches!(struck, Struck::TooLate);
                    if !matches!(struck, Struck::Lives) {
                        let answered = self.kill(board, at.strike(), chance).await?;
                        if hit {
                            board.killed(at, key, fence);
                        }
                        let again_after = (!answered).then_some(Duration::ZERO);
                        return Ok(Ended {
                            hit,
                            again_after,
                            killed: true,
                        });
                    }
                }
                said => {
                    let again_after = take(board, said);
                    // A worker that was to be killed on its way to find out, and found out.
                    let strike = point.map(|(point, _)| point.strike());
                    let hit = hit && strike != Some(Strike::CutThenStand);
                    return Ok(Ended {
                        hit,
                        again_after,
                        killed: false,
                    });
                }
            }
        }
    }

    /// SIGKILL. Whether its caller had been answered just before.
    async fn kill(
        &mut self,
        board: &Board,
        strike: Strike,
        chance: &mut fastrand::Rng,
    ) -> Result<bool> {
        let mut answered = false;
        for said in self.process.kill().await? {
            if matches!(said, Said::Answer { .. }) {
                take(board, said);
                answered = true;
            }
        }
        self.wire.end(strike, chance);
        Ok(answered)
    }
}

/// Takes what a caller was told. When it asks again, where it was not answered.
fn take(board: &Board, said: Said) -> Option<Duration> {
    match said {
        Said::Answer {
            key,
            answer,
            replayed,
            again,
        } => {
            board.answered(key, answer, replayed, again);
            None
        }
        Said::Again { after_ms, why } => {
            board.refused(&why);
            // Sooner than it was told: more callers meet the attempt that is in flight.
            Some(Duration::from_millis(after_ms.min(100)))
        }
        Said::Ready | Said::At(..) => Some(Duration::ZERO),
    }
}
