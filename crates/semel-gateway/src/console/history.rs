//! What the overview's charts show: this process's counters every few seconds, for some hours.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::Timestamp;
use semel::guard::Signal;
use tokio::time::{MissedTickBehavior, interval};

use crate::metrics::{ByRouteCounts, Metrics};
use crate::operations::about_now;
use crate::store::Health;

/// How often a sample is taken.
const EVERY: Duration = Duration::from_secs(5);
/// How many samples are kept: those of six hours, and one before them.
const KEPT: usize = 6 * 720 + 1;
/// Routes' counts are kept with every so many samples: those of the latest minutes, and of those before so
/// many that no more than some rows (4 MB) are kept of all routes.
const ROUTES_EVERY: usize = 12;
const MINUTES: usize = KEPT / ROUTES_EVERY + 1;
const LATEST: usize = 8;
const ROWS: usize = 20_000;

/// What is counted, and what pages call it.
pub(super) const EVENTS: [(Signal, &str); 6] = [
    (Signal::New, "New"),
    (Signal::Replayed, "Replayed"),
    (Signal::InFlight, "Conflicts"),
    (Signal::Mismatch, "Mismatches"),
    (Signal::MarkedUnknown, "Became unknown"),
    (Signal::Stale, "Stale"),
];

/// How many figures a step has.
pub(super) const FIGURES: usize = EVENTS.len() + 3;

/// A line of a chart: its name, the number of its colour, and its place among a step's figures.
type Line = (&'static str, u8, usize);

/// Id, title and unit of each chart, and its lines.
pub(super) const CHARTS: [(&str, &str, &str, &[Line]); 4] = [
    (
        "calls",
        "New and replayed",
        "a second",
        &[("New", 1, 0), ("Replayed", 2, 1)],
    ),
    (
        "trouble",
        "Refused, unknown and stale",
        "a second",
        &[
            ("Conflicts", 3, 2),
            ("Mismatches", 4, 3),
            ("Became unknown", 5, 4),
            ("Stale", 6, 5),
        ],
    ),
    (
        "store",
        "Store latency",
        "ms",
        &[("Average", 1, 6), ("Slowest", 6, 7)],
    ),
    (
        "in-flight",
        "Requests in flight",
        "at once",
        &[("Most", 2, 8)],
    ),
];

/// How far back a page looks: its name in URLs, and for people; the microseconds of a step, and how many
/// steps there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    step: u64,
    steps: u64,
}

impl Range {
    pub(super) const ALL: [Self; 3] = [
        Self::new("5m", "5 minutes", 5, 60),
        Self::HOUR,
        Self::new("6h", "6 hours", 300, 72),
    ];
    pub(super) const HOUR: Self = Self::new("1h", "hour", 60, 60);

    const fn new(name: &'static str, title: &'static str, seconds: u64, steps: u64) -> Self {
        Self {
            name,
            title,
            step: seconds * 1_000_000,
            steps,
        }
    }

    /// How long it is, in seconds.
    pub(super) const fn seconds(self) -> u64 {
        self.step * self.steps / 1_000_000
    }
}

#[derive(Debug, Clone, Default)]
struct Sample {
    at: Timestamp,
    events: [u64; EVENTS.len()],
    /// The store's steps so far, their time together, and the slowest since the sample before.
    steps: u64,
    sum: u64,
    slowest: u64,
    in_flight: u64,
}

/// A step of a chart: its end, and its figures. Rates of the events; the average and the slowest of the
/// store, in milliseconds, none where it had nothing to do; the most requests in flight.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) at: Timestamp,
    pub(super) figures: [Option<f64>; FIGURES],
}

/// A stretch of time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stretch {
    pub(super) points: Vec<Point>,
    /// How often each event happened in it.
    pub(super) events: [u64; EVENTS.len()],
    /// What became of each route's requests in it, to the minute.
    pub(super) routes: ByRouteCounts,
}

#[derive(Debug, Default)]
struct Kept {
    samples: VecDeque<Sample>,
    routes: VecDeque<(Timestamp, ByRouteCounts)>,
    taken: usize,
}

impl Kept {
    fn keep_routes(&mut self, at: Timestamp, counts: ByRouteCounts) {
        let every = (MINUTES * counts.len()).div_ceil(ROWS).max(1);
        self.routes.push_back((at, counts));
        let is_left_out = !(self.taken / ROUTES_EVERY).is_multiple_of(every);
        if let Some(nth) = self
            .routes
            .len()
            .checked_sub(LATEST + 1)
            .filter(|_| is_left_out)
        {
            self.routes.remove(nth);
        }
        if self.routes.len() > LATEST + MINUTES.div_ceil(every) {
            self.routes.pop_front();
        }
    }
}

/// The samples of this process.
#[derive(Debug)]
pub struct History {
    kept: Mutex<Kept>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl History {
    /// None yet.
    pub fn new(metrics: Arc<Metrics>, health: Arc<Health>) -> Self {
        let kept = Mutex::default();
        Self {
            kept,
            metrics,
            health,
        }
    }

    /// Takes samples for ever.
    pub async fn sample(self: Arc<Self>) -> Infallible {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.take();
        }
    }

    fn take(&self) {
        let sample = self.now();
        self.health.times().slowest.store(0, Relaxed);
        let mut kept = self.kept();
        if kept.taken.is_multiple_of(ROUTES_EVERY) {
            kept.keep_routes(sample.at, self.metrics.by_route());
        }
        kept.taken += 1;
        kept.samples.push_back(sample);
        if kept.samples.len() > KEPT {
            kept.samples.pop_front();
        }
    }

    fn now(&self) -> Sample {
        let times = self.health.times();
        Sample {
            at: about_now(),
            events: EVENTS.map(|(signal, _)| self.metrics.count(signal)),
            steps: times.steps.load(Relaxed),
            sum: times.sum.load(Relaxed),
            slowest: times.slowest.load(Relaxed),
            in_flight: self.metrics.in_flight(),
        }
    }

    /// What was sampled in a range, up to now.
    pub(super) fn stretch(&self, range: Range) -> Stretch {
        let now = self.now();
        let kept = self.kept();
        let (points, events) = points(kept.samples.iter().chain([&now]), &now, range);
        let begin = now.at.before(Duration::from_secs(range.seconds()));
        let before = kept.routes.iter().rfind(|(at, _)| *at <= begin);
        let before = before.or_else(|| kept.routes.front());
        let mut routes = self.metrics.by_route();
        for (route, counts) in &mut routes {
            if let Some(before) = before.and_then(|(_, before)| before.get(route)) {
                *counts = less(counts, before);
            }
        }
        Stretch {
            points,
            events,
            routes,
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn less<const N: usize>(counts: &[u64; N], before: &[u64; N]) -> [u64; N] {
    std::array::from_fn(|at| counts[at].saturating_sub(before[at]))
}

/// Samples, the last of each step taken together with those before it.
fn points<'a>(
    samples: impl Iterator<Item = &'a Sample>,
    now: &Sample,
    range: Range,
) -> (Vec<Point>, [u64; EVENTS.len()]) {
    let last = now.at.as_micros() / range.step;
    let mut base: Option<&Sample> = None;
    // By step: its last sample, and the slowest and the most of all.
    let mut found: BTreeMap<u64, (&Sample, u64, u64)> = BTreeMap::new();
    for sample in samples {
        let nth = sample.at.as_micros() / range.step;
        // Where nothing is known of before the first, nothing is known of its step.
        if nth + range.steps <= last || base.is_none() {
            base = Some(sample);
            continue;
        }
        let of = found.entry(nth).or_insert((sample, 0, 0));
        *of = (sample, of.1.max(sample.slowest), of.2.max(sample.in_flight));
    }
    let Some(mut before) = base else {
        return (Vec::new(), [0; EVENTS.len()]);
    };
    let events = less(&now.events, &before.events);
    let points = found.into_values().map(|(sample, slowest, in_flight)| {
        let seconds = before.at.until(sample.at).as_secs_f64().max(0.001);
        let counts = less(&sample.events, &before.events);
        let [steps, sum] = less(&[sample.steps, sample.sum], &[before.steps, before.sum]);
        let mean = millis(sum) / float(steps.max(1));
        before = sample;
        let mut figures = [Some(float(in_flight)); FIGURES];
        for (figure, count) in figures.iter_mut().zip(counts) {
            *figure = Some(float(count) / seconds);
        }
        figures[EVENTS.len()] = (steps > 0).then_some(mean);
        figures[EVENTS.len() + 1] = (steps > 0).then_some(millis(slowest).max(mean));
        let at = sample.at;
        Point { at, figures }
    });
    (points.collect(), events)
}

fn millis(nanos: u64) -> f64 {
    float(nanos) / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Range = Range::ALL[0];
    const HOURS: Range = Range::ALL[2];

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_000_000_000_000_000 + second * 1_000_000)
    }

    fn sample(second: u64, new: u64) -> Sample {
        Sample {
            at: at(second),
            events: [new, 0, 0, 0, 0, 0],
            steps: new * 2,
            sum: new * 2 * 1_500_000,
            slowest: new * 1_000_000,
            in_flight: new,
        }
    }

    /// These figures of each point, and how many were new.
    fn figures<const N: usize>(
        samples: &[Sample],
        range: Range,
        of: [usize; N],
    ) -> (Vec<[Option<f64>; N]>, u64) {
        let (points, events) = points(samples.iter(), &samples[samples.len() - 1], range);
        let points = points.iter().map(|point| of.map(|nth| point.figures[nth]));
        (points.collect(), events[0])
    }

    #[test]
    fn a_rate_is_what_was_counted_between_two_samples() {
        let samples = [sample(0, 0), sample(5, 10), sample(10, 10), sample(12, 17)];
        // Two samples are in the last step of five seconds.
        let (found, new) = figures(&samples, FEW, [0, 6, 7, 8]);
        let last = [Some(1.0), Some(1.5), Some(17.0), Some(17.0)];
        let first = [Some(2.0), Some(1.5), Some(10.0), Some(10.0)];
        assert_eq!((found, new), (vec![first, last], 17));
        let hour = (vec![[Some(17.0 / 12.0)]], 17);
        assert_eq!(figures(&samples, Range::HOUR, [0]), hour);
        assert_eq!(figures(&samples[..1], FEW, [0]), (vec![], 0));
        let (found, _) = figures(&samples[..3], FEW, [0, 6, 7]);
        assert_eq!(found[1], [Some(0.0), None, None]);
    }

    #[test]
    fn what_is_older_than_the_range_is_where_it_begins() {
        let samples: Vec<_> = (0..=100).map(|nth| sample(nth * 5, nth * 5)).collect();
        let (rates, events) = figures(&samples, FEW, [0]);
        assert_eq!((rates.len(), events), (60, 300));
        let is_one = |rate: &[Option<f64>; 1]| rate[0].is_some_and(|r| (r - 1.0).abs() < 1e-9);
        assert!(rates.iter().all(is_one), "{rates:?}");
    }

    #[test]
    fn no_more_is_kept_than_is_shown() {
        let metrics = Arc::new(Metrics::new());
        let health = Arc::new(Health::new(Arc::clone(&metrics)));
        let history = History::new(metrics, health);
        for _ in 0..KEPT + 100 {
            history.take();
        }
        let kept = history.kept();
        assert_eq!(kept.samples.len(), KEPT);
        assert!(kept.routes.len() <= LATEST + MINUTES);
    }

    #[test]
    fn of_many_routes_less_is_kept_of_what_is_far_back() {
        for routes in [1, 50, 1_000] {
            let counts = (0..routes).map(|nth| ([nth.to_string(), String::new()], [0; 6]));
            let counts: ByRouteCounts = counts.collect();
            let mut kept = Kept::default();
            for minute in 0..1_000 {
                kept.taken = minute * ROUTES_EVERY;
                kept.keep_routes(at(minute as u64 * 60), counts.clone());
            }
            let rows = kept.routes.len() * routes;
            assert!(rows <= ROWS + routes * (LATEST + 1), "{routes}: {rows}");
            // Six hours, and each of the last minutes.
            let range = at(999 * 60).before(Duration::from_secs(HOURS.seconds()));
            assert!(
                kept.routes[0].0 <= range,
                "{routes}: {:?}",
                kept.routes[0].0
            );
            let latest = kept.routes.iter().rev().map(|(at, _)| *at).take(LATEST);
            let minutes = (0..LATEST as u64).map(|nth| at((999 - nth) * 60));
            assert!(latest.eq(minutes), "{routes}");
        }
    }
}
