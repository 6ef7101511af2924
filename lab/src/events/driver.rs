//! The parent's side of one consumer: hands it deliveries, takes its acknowledgements, kills it
//! where that was planned, and starts another in its place.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{interval, sleep};

use super::broker::Broker;
use super::consumer::{COMMAND, Order, Said, Settings};
use crate::crash::point::{Point, Strike};

const PATIENCE: Duration = Duration::from_secs(60);
/// A point that nobody comes to within this is given up for the next moment that there is.
const COMES: Duration = Duration::from_secs(2);

/// What all drivers share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) program: PathBuf,
    pub(super) settings: Settings,
    pub(super) broker: Broker,
    pub(super) kills: Kills,
}

/// Where consumers are to be killed, and when: by the share of messages that is acknowledged.
#[derive(Debug)]
pub(super) struct Kills {
    planned: Mutex<VecDeque<(f64, Point, u32)>>,
    hits: Mutex<BTreeMap<Point, usize>>,
}

/// The points on the way of an event.
pub(super) const POINTS: [Point; 10] = [
    Point::Random,
    Point::BeforeClaim,
    Point::Claimed,
    Point::Begun,
    Point::BetweenStatements,
    Point::BeforeCompleting,
    Point::Completing,
    Point::BeforeCommit,
    Point::WhileCommitting,
    Point::Committed,
];

impl Kills {
    pub(super) fn new(count: usize, seed: u64) -> Self {
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut planned = Vec::new();
        for point in POINTS.into_iter().cycle().take(count) {
            // Most events were handled when a third of their deliveries is through: later nobody
            // comes to the points of their work.
            let last = match point {
                Point::Random | Point::BeforeClaim => 0.9,
                _ => 0.35,
            };
            planned.push((chance.f64() * last, point, chance.u32(..4)));
        }
        planned.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self {
            planned: Mutex::new(planned.into()),
            hits: Mutex::default(),
        }
    }

    fn due(&self, progress: f64) -> Option<(Point, u32)> {
        let due = self
            .planned
            .lock()
            .pop_front_if(|(when, ..)| *when <= progress)?;
        Some((due.1, due.2))
    }

    fn hit(&self, point: Point) {
        *self.hits.lock().entry(point).or_default() += 1;
    }

    /// How often consumers were killed where.
    pub(super) fn hits(&self) -> BTreeMap<Point, usize> {
        self.hits.lock().clone()
    }
}

/// One life of a consumer.
struct Life {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    pulls: VecDeque<(usize, usize)>,
    armed: Option<Instant>,
}

/// Drives one consumer after the other, until everything is acknowledged.
pub(super) async fn drive(run: Arc<Run>, number: u64) -> Result<()> {
    let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut chance = fastrand::Rng::with_seed(run.settings.seed ^ place);
    while !run.broker.is_done() {
        let mut life = Life::begin(&run, number).await?;
        if let Some(at) = life.serve(&run).await? {
            life.kill(&run, at, &mut chance).await?;
        }
    }
    Ok(())
}

impl Life {
    async fn begin(run: &Run, number: u64) -> Result<Self> {
        let mut child = Command::new(&run.program)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a consumer cannot be started")?;
        let orders = child.stdin.take().context("a consumer without an input")?;
        let out = child
            .stdout
            .take()
            .context("a consumer without an output")?;
        let mut life = Self {
            child,
            orders,
            said: BufReader::new(out).lines(),
            pulls: VecDeque::new(),
            armed: None,
        };
        let settings = Settings {
            batches: number % 2 == 1,
            ..run.settings.clone()
        };
        life.tell(&serde_json::to_string(&settings)?).await?;
        Ok(life)
    }

    async fn tell(&mut self, line: &str) -> Result<()> {
        self.orders.write_all(line.as_bytes()).await?;
        self.orders.write_all(b"\n").await?;
        Ok(self.orders.flush().await?)
    }

    async fn order(&mut self, order: &Order) -> Result<()> {
        self.tell(&serde_json::to_string(order)?).await
    }

    /// Serves it until it is to be killed, or all is done.
    async fn serve(&mut self, run: &Run) -> Result<Option<Point>> {
        let mut tick = interval(Duration::from_millis(3));
        loop {
            tokio::select! {
                line = self.said.next_line() => {
                    let line = line?.context("a consumer ended by itself")?;
                    let said = serde_json::from_str(&line);
                    match said.with_context(|| format!("a consumer says {line:?}"))? {
                        Said::At(point) => return Ok(Some(point)),
                        Said::Pull(slot, most) => self.pulls.push_back((slot, most)),
                        said => take(&run.broker, said),
                    }
                }
                _ = tick.tick() => {}
            }
            if run.broker.is_done() {
                return Ok(None);
            }
            if run.broker.silent() > PATIENCE {
                bail!("nothing was acknowledged for {PATIENCE:?}");
            }
            self.arm(run).await?;
            while let Some((slot, most)) = self.pulls.pop_front() {
                let deliveries = run.broker.deliver(most);
                if deliveries.is_empty() {
                    self.pulls.push_front((slot, most));
                    break;
                }
                self.order(&Order::Deliver(slot, deliveries)).await?;
            }
        }
    }

    async fn arm(&mut self, run: &Run) -> Result<()> {
        let (point, nth) = match self.armed {
            None => match run.kills.due(run.broker.progress()) {
                Some(due) => due,
                None => return Ok(()),
            },
            Some(since) if since.elapsed() > COMES => (Point::Random, 0),
            Some(_) => return Ok(()),
        };
        self.armed = Some(Instant::now());
        self.order(&Order::Arm(point, nth)).await
    }

    /// SIGKILL, at once or wherever it is a little later.
    async fn kill(&mut self, run: &Run, at: Point, chance: &mut fastrand::Rng) -> Result<()> {
        if at.strike() == Strike::Race {
            sleep(Duration::from_micros(chance.u64(..5_000))).await;
        }
        self.child.kill().await?;
        run.kills.hit(at);
        // What it said before it died was said. A line without its end was not.
        while let Some(line) = self.said.next_line().await? {
            if let Ok(said) = serde_json::from_str(&line) {
                take(&run.broker, said);
            }
        }
        Ok(())
    }
}

fn take(broker: &Broker, said: Said) {
    match said {
        Said::Acknowledge(message, kind) => broker.acknowledge(message, kind),
        Said::Refuse {
            message,
            after_ms,
            why,
        } => broker.refuse(message, Duration::from_millis(after_ms.min(200)), &why),
        Said::At(_) | Said::Pull(..) => {}
    }
}
