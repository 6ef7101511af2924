//! The parent's side of one consumer: hands it deliveries, takes its acknowledgements, kills it
//! where that was planned, and starts another in its place.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use tokio::time::interval;

use super::broker::Broker;
use super::consumer::{Order, Said, Settings};
use crate::base::Place;
use crate::crash::point::Point;
use crate::crash::wire::{Struck, Wire};
use crate::part::Part;
use crate::process::Process;

const PATIENCE: Duration = Duration::from_secs(60);
/// A point that nobody comes to within this is left to others.
const COMES: Duration = Duration::from_secs(1);
/// Few events are set aside: one consumer meets another after seconds.
const COMES_ASIDE: Duration = Duration::from_secs(10);
/// So many consumers handle one delivery, or batch, at a time. What is lost or late on the wire
/// there is what was meant.
const WIRED: u64 = 4;
const SLOTS: usize = 4;

/// What all drivers share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) place: Place,
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
const POINTS: [Point; 15] = [
    Point::Random,
    Point::BeforeClaim,
    Point::Claimed,
    Point::Begun,
    Point::BetweenStatements,
    Point::BeforeCompleting,
    Point::Completing,
    Point::BeforeCommit,
    Point::WhileCommitting,
    Point::CommitLost,
    Point::CommitLate,
    Point::CommitCut,
    Point::ReadingBack,
    Point::ServerRestartsAtCommit,
    Point::Committed,
];

/// Those on the way of an event that is set aside, which alone completes a record by itself.
const ASIDE: [Point; 5] = [
    Point::HandingOver,
    Point::HandedOver,
    Point::BeforeCompletion,
    Point::CompletionLost,
    Point::Completed,
];

/// All that there are in a run.
pub(super) fn points(place: &Place, poison: bool) -> Vec<Point> {
    let aside = if poison { &ASIDE[..] } else { &[] };
    let all = POINTS.iter().chain(aside).copied();
    all.filter(|point| point.is_at(place)).collect()
}

impl Kills {
    /// So many kills; what kills nobody comes as often as what does.
    pub(super) fn new(points: &[Point], count: usize, seed: u64) -> Self {
        let mut chance = fastrand::Rng::with_seed(seed);
        let (killing, other): (Vec<Point>, Vec<Point>) =
            points.iter().partition(|point| point.strike().kills());
        let share = count.div_ceil(killing.len());
        let other = other.into_iter().flat_map(|point| vec![point; share]);
        let all = killing.iter().copied().cycle().take(count).chain(other);
        let mut planned: Vec<_> = all
            .map(|point| {
                // Most events were handled when a third of their deliveries is through: later
                // nobody comes to the points of their work.
                let rare = ASIDE.contains(&point) || point.strike().on_the_wire();
                let last = match point {
                    Point::Random | Point::BeforeClaim => 0.8,
                    _ if rare => 0.15,
                    _ => 0.35,
                };
                let nth = if rare { 0 } else { chance.u32(..4) };
                (chance.f64() * last, point, nth)
            })
            .collect();
        planned.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self {
            planned: Mutex::new(planned.into()),
            hits: Mutex::default(),
        }
    }

    /// What a consumer is to come to now: what happens on the wire only where it is `wired`, and
    /// there before anything else.
    fn due(&self, progress: f64, wired: bool) -> Option<(Point, u32)> {
        let mut planned = self.planned.lock();
        let due = |(when, ..): &&(f64, Point, u32)| *when <= progress;
        let on_the_wire = |point: Point| point.strike().on_the_wire();
        let count = planned.iter().take_while(due).count();
        let find = |wire| (0..count).find(|at| on_the_wire(planned[*at].1) == wire);
        let at = match wired {
            true => find(true).or_else(|| find(false)),
            false => find(false),
        };
        let (_, point, nth) = planned.remove(at?)?;
        Some((point, nth))
    }

    /// Nobody came to it: as long as there is work left, others may.
    fn missed(&self, point: (Point, u32), progress: f64) {
        let work = if ASIDE.contains(&point.0) { 0.9 } else { 0.5 };
        let again = match progress < work {
            true => point,
            false => (Point::Random, 0),
        };
        self.planned.lock().push_front((0.0, again.0, again.1));
    }

    fn hit(&self, point: Point) {
        *self.hits.lock().entry(point).or_default() += 1;
    }

    /// How often consumers were killed where.
    pub(super) fn hits(&self) -> BTreeMap<Point, usize> {
        self.hits.lock().clone()
    }
}

fn comes(point: Point, progress: f64) -> Duration {
    match ASIDE.contains(&point) && progress < 0.8 {
        true => COMES_ASIDE,
        false => COMES,
    }
}

/// One life of a consumer.
struct Life {
    process: Process,
    wire: Wire,
    wired: bool,
    pulls: VecDeque<(usize, usize)>,
    armed: Option<(Instant, (Point, u32))>,
    /// An answer was cut off, and it is to be killed while it finds out.
    cut: bool,
    /// How often the server had been killed when it got its latest deliveries.
    restarts: u64,
}

/// Drives one consumer after the other, until everything is acknowledged.
pub(super) async fn drive(run: Arc<Run>, number: u64) -> Result<()> {
    let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut chance = fastrand::Rng::with_seed(run.settings.options.seed ^ place);
    while !run.broker.is_done() {
        let mut life = Life::begin(&run, number).await?;
        life.serve(&run, &mut chance).await?;
    }
    Ok(())
}

impl Life {
    async fn begin(run: &Run, number: u64) -> Result<Self> {
        let _up = run.place.stays_up().await;
        let (wire, url) = Wire::to(&run.place)?;
        let wired = number < WIRED;
        let settings = Settings {
            url,
            batches: number % 2 == 1,
            slots: if wired { 1 } else { SLOTS },
            ..run.settings.clone()
        };
        let mut life = Self {
            process: Process::start(&Part::Consumer(settings))?,
            wire,
            wired,
            pulls: VecDeque::new(),
            armed: None,
            cut: false,
            restarts: 0,
        };
        let said = life.process.hear().await;
        life.take(run, said.context("a consumer does not start")?);
        Ok(life)
    }

    /// Serves it until it is killed, or all is done.
    async fn serve(&mut self, run: &Run, chance: &mut fastrand::Rng) -> Result<()> {
        let mut tick = interval(Duration::from_millis(3));
        loop {
            tokio::select! {
                said = self.process.hear() => match said? {
                    Said::At(point) => {
                        if self.dies(run, point, chance).await? {
                            return Ok(());
                        }
                    }
                    said => self.take(run, said),
                },
                _ = tick.tick() => {}
            }
            if run.broker.is_done() {
                return Ok(());
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
                self.restarts = run.place.restarts();
                self.process.tell(&Order::Deliver(slot, deliveries)).await?;
            }
        }
    }

    async fn arm(&mut self, run: &Run) -> Result<()> {
        let progress = run.broker.progress();
        match self.armed {
            Some((since, (point, _))) if since.elapsed() < comes(point, progress) => return Ok(()),
            Some((_, point)) => {
                run.kills.missed(point, progress);
                self.armed = None;
                self.process.tell(&Order::Arm(None)).await?;
            }
            None => {}
        }
        let Some(point) = run.kills.due(progress, self.wired) else {
            return Ok(());
        };
        self.cut = false;
        self.armed = Some((Instant::now(), point));
        self.process.tell(&Order::Arm(Some(point))).await
    }

    /// What happens to it at a point. Whether it dies of it.
    async fn dies(&mut self, run: &Run, at: Point, chance: &mut fastrand::Rng) -> Result<bool> {
        let Self { process, wire, .. } = self;
        let is_armed = self.armed.is_some_and(|(_, (point, _))| point == at);
        if at == Point::ReadingBack && !self.cut && !is_armed {
            // It finds out, after that was given up.
            process.tell(&Order::Go).await?;
            return Ok(false);
        }
        let go = async || process.tell(&Order::Go).await;
        let struck = match self.cut {
            // The second time it is where it finds out.
            true => Struck::Dies(None),
            false => {
                let done = async || wire.all_done().await.map(|()| true);
                wire.strike(&run.place, self.restarts, at, chance, go, done)
                    .await?
            }
        };
        let lives = matches!(struck, Struck::Lives);
        if lives && at.strike().kills() {
            self.cut = true;
            // It takes its time to find out.
            if let Some((since, _)) = &mut self.armed {
                *since = Instant::now();
            }
            return Ok(false);
        }
        let armed = self.armed.take().map(|(_, point)| point);
        match armed {
            Some(missed) if missed.0 != at || matches!(struck, Struck::TooLate) => {
                run.kills.missed(missed, run.broker.progress());
            }
            _ => {}
        }
        if !matches!(struck, Struck::TooLate) {
            run.kills.hit(at);
        }
        if lives {
            return Ok(false);
        }
        for said in self.process.kill().await? {
            self.take(run, said);
        }
        self.wire.end(at.strike(), chance);
        Ok(true)
    }

    fn take(&mut self, run: &Run, said: Said) {
        match said {
            Said::Acknowledge(message, kind) => run.broker.acknowledge(message, kind),
            Said::Refuse {
                message,
                after_ms,
                why,
            } => {
                let after = Duration::from_millis(after_ms.min(200));
                run.broker.refuse(message, after, &why);
            }
            Said::Pull(slot, most) => self.pulls.push_back((slot, most)),
            // One more, of a consumer that is dead by now.
            Said::At(_) => {}
        }
    }
}
