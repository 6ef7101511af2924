//! The parent's side of one worker: tells it what to ask for, kills it where that was planned, and
//! starts another in its place.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use semel_testkit::proxy::{Fault, Proxy};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{sleep, timeout};

use super::board::{Board, Next};
use super::failpoints::{Order, Said};
use super::point::{Point, Strike};
use super::worker::{COMMAND, Settings};
use crate::base::Place;

/// Longer than anything a worker does takes, on a machine that is busy with other things too.
const PATIENCE: Duration = Duration::from_secs(60);

/// What all drivers share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) program: PathBuf,
    pub(super) place: Place,
    pub(super) settings: Settings,
    pub(super) board: Board,
}

/// One life of a worker, and what stands between it and the server.
#[derive(Debug)]
struct Life {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    proxy: Option<Proxy>,
}

/// How an asking ended.
struct Ended {
    hit: bool,
    again_after: Option<Duration>,
    killed: bool,
}

/// Drives one worker after the other, until nothing is left to do.
pub(super) async fn drive(run: Arc<Run>, seed: u64) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut life: Option<Life> = None;
    loop {
        let (key, point) = match run.board.next() {
            Next::Ask(key, point) => (key, point),
            Next::Wait if run.board.silent() > PATIENCE => {
                bail!("nobody was answered for {PATIENCE:?}")
            }
            Next::Wait => {
                sleep(Duration::from_millis(5)).await;
                continue;
            }
            Next::Done => return Ok(()),
        };
        let mut alive = match life.take() {
            Some(alive) => alive,
            None => Life::begin(&run).await?,
        };
        let ended = alive.ask(&run.board, key, point, &mut chance).await?;
        run.board.ended(key, point, ended.hit, ended.again_after);
        if !ended.killed {
            life = Some(alive);
        }
    }
}

impl Life {
    async fn begin(run: &Run) -> Result<Self> {
        let (proxy, url) = match run.place.proxy()? {
            Some((proxy, url)) => (Some(proxy), url),
            None => (None, run.place.url().to_owned()),
        };
        let mut child = Command::new(&run.program)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a worker cannot be started")?;
        let orders = child.stdin.take().context("a worker without an input")?;
        let out = child.stdout.take().context("a worker without an output")?;
        let mut life = Self {
            child,
            orders,
            said: BufReader::new(out).lines(),
            proxy,
        };
        let settings = Settings {
            url,
            ..run.settings.clone()
        };
        life.tell(&serde_json::to_string(&settings)?).await?;
        match life.hear().await? {
            Said::Ready => Ok(life),
            other => bail!("a new worker says {other:?}"),
        }
    }

    async fn tell(&mut self, line: &str) -> Result<()> {
        self.orders.write_all(line.as_bytes()).await?;
        self.orders.write_all(b"\n").await?;
        Ok(self.orders.flush().await?)
    }

    async fn order(&mut self, order: &Order) -> Result<()> {
        self.tell(&serde_json::to_string(order)?).await
    }

    async fn hear(&mut self) -> Result<Said> {
        let line = timeout(PATIENCE, self.said.next_line()).await;
        let line = line.map_err(|_| anyhow!("a worker says nothing for {PATIENCE:?}"))??;
        let line = line.context("a worker ended by itself")?;
        serde_json::from_str(&line).with_context(|| format!("a worker says {line:?}"))
    }

    async fn ask(
        &mut self,
        board: &Board,
        key: i64,
        point: Option<(Point, u32)>,
        chance: &mut fastrand::Rng,
    ) -> Result<Ended> {
        self.order(&Order::Ask { key, point }).await?;
        let mut hit = false;
        loop {
            match self.hear().await? {
                Said::At(at, fence) => {
                    // The second time it is where it finds out.
                    let found_out = hit || !self.strike(at, chance).await?;
                    hit = true;
                    if found_out {
                        let answered = self.kill(board, at.strike(), chance).await?;
                        board.killed(at, key, fence);
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

    /// What happens to a worker at a point. Whether it goes on after that.
    async fn strike(&mut self, at: Point, chance: &mut fastrand::Rng) -> Result<bool> {
        let fault = match at.strike() {
            Strike::Stand => return Ok(false),
            Strike::Race => {
                let most = if at == Point::Random { 15_000 } else { 3_000 };
                sleep(Duration::from_micros(chance.u64(..most))).await;
                return Ok(false);
            }
            Strike::Swallow => Fault::SwallowAnswers,
            Strike::Hold => Fault::Blackhole,
            Strike::Cut | Strike::CutThenStand => Fault::CutAnswers,
        };
        let proxy = self.proxy.as_ref().context("there is no wire")?;
        let before = proxy.hits();
        proxy.set(fault);
        self.order(&Order::Go).await?;
        let proxy = self.proxy.as_ref().context("there is no wire")?;
        let met = async {
            while proxy.hits() == before {
                sleep(Duration::from_micros(200)).await;
            }
        };
        timeout(PATIENCE, met)
            .await
            .context("a fault on the wire met nothing")?;
        if at.strike() == Strike::Swallow {
            // What met it may have been the answer to an earlier renewal.
            sleep(Duration::from_millis(25)).await;
        }
        let goes_on = matches!(at.strike(), Strike::Cut | Strike::CutThenStand);
        if goes_on {
            proxy.set(Fault::None);
        }
        Ok(goes_on)
    }

    /// SIGKILL. Whether its caller had been answered just before.
    async fn kill(
        &mut self,
        board: &Board,
        strike: Strike,
        chance: &mut fastrand::Rng,
    ) -> Result<bool> {
        self.child.kill().await?;
        let mut answered = false;
        // What it said before it died was said. A line without its end was not.
        while let Some(line) = self.said.next_line().await? {
            if let Ok(said @ Said::Answer { .. }) = serde_json::from_str(&line) {
                take(board, said);
                answered = true;
            }
        }
        if let Some(proxy) = self.proxy.take()
            && strike == Strike::Hold
        {
            let later = Duration::from_millis(chance.u64(..1000));
            tokio::spawn(async move {
                sleep(later).await;
                proxy.set(Fault::None);
                // What was held arrives before the connection ends.
                sleep(Duration::from_millis(200)).await;
                drop(proxy);
            });
        }
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
