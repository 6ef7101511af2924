//! What the overview's charts show: this process's counters every few seconds, for some hours.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::Timestamp;
use semel::guard::Signal;
use tokio::time::{MissedTickBehavior, interval};

use crate::metrics::{ByRouteCounts, FREQUENT, Metrics};
use crate::operations::about_now;
use crate::store::Health;

/// How often a sample is taken.
const EVERY: Duration = Duration::from_secs(5);
/// How many samples are kept: those of six hours, and one before them.
const KEPT: usize = 6 * 720 + 1;
/// Routes' counts are kept with every so many samples.
const ROUTES_EVERY: usize = 12;

/// What is counted, and what pages call it.
pub(super) const EVENTS: [(Signal, &str); 6] = [
    (Signal::New, "New"),
    (Signal::Replayed, "Replayed"),
    (Signal::InFlight, "Conflicts"),
    (Signal::Mismatch, "Mismatches"),
    (Signal::Unknown, "Unknown"),
    (Signal::Stale, "Stale"),
];

/// How far back a page looks, and in which steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    Minutes,
    Hour,
    Hours,
}

impl Range {
    pub(super) const ALL: [Self; 3] = [Self::Minutes, Self::Hour, Self::Hours];

    /// Its name in URLs, and for people.
    pub(super) const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Minutes => ("5m", "5 minutes"),
            Self::Hour => ("1h", "hour"),
            Self::Hours => ("6h", "6 hours"),
        }
    }

    /// How long it is, in seconds.
    pub(super) const fn seconds(self) -> u64 {
        let (step, steps) = self.steps();
        step * steps / 1_000_000
    }

    /// Microseconds of a step, and how many steps there are.
    const fn steps(self) -> (u64, u64) {
        match self {
            Self::Minutes => (5_000_000, 60),
            Self::Hour => (60_000_000, 60),
            Self::Hours => (300_000_000, 72),
        }
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

/// A step of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    /// Its end.
    pub(super) at: Timestamp,
    /// How many a second.
    pub(super) rates: [f64; EVENTS.len()],
    /// How long the store took on average and at most, in milliseconds; none where it had nothing to do.
    pub(super) store: Option<[f64; 2]>,
    pub(super) in_flight: u64,
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
            kept.routes.push_back((sample.at, self.metrics.by_route()));
            if kept.routes.len() > KEPT / ROUTES_EVERY + 1 {
                kept.routes.pop_front();
            }
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
        let samples = kept.samples.iter().chain([&now]);
        let (points, events) = points(samples, &now, range);
        let (step, steps) = range.steps();
        let begin = now.at.before(Duration::from_micros(step * steps));
        let before = kept
            .routes
            .iter()
            .rfind(|(at, _)| *at <= begin)
            .or_else(|| kept.routes.front());
        let before = before.map(|(_, counts)| counts);
        let mut routes = self.metrics.by_route();
        for (route, counts) in &mut routes {
            if let Some(before) = before.and_then(|before| before.get(route)) {
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
    let (step, steps) = range.steps();
    let last = now.at.as_micros() / step;
    let mut base: Option<&Sample> = None;
    // By step: its last sample, and the slowest and the most of all.
    let mut found: BTreeMap<u64, (&Sample, u64, u64)> = BTreeMap::new();
    for sample in samples {
        let nth = sample.at.as_micros() / step;
        if nth + steps <= last {
            base = Some(sample);
            continue;
        }
        // Where nothing is known of before the first, nothing is known of its step.
        if base.is_none() {
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
    let mut points = Vec::with_capacity(found.len());
    for (sample, slowest, in_flight) in found.into_values() {
        let seconds = before.at.until(sample.at).as_secs_f64().max(0.001);
        let counts = less(&sample.events, &before.events);
        let store_steps = sample.steps.saturating_sub(before.steps);
        let mean = millis(sample.sum.saturating_sub(before.sum)) / float(store_steps.max(1));
        points.push(Point {
            at: sample.at,
            rates: counts.map(|count| float(count) / seconds),
            store: (store_steps > 0).then(|| [mean, millis(slowest).max(mean)]),
            in_flight,
        });
        before = sample;
    }
    (points, events)
}

fn millis(nanos: u64) -> f64 {
    float(nanos) / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
const fn float(count: u64) -> f64 {
    count as f64
}

/// The place of an event among those that are counted for each route.
pub(super) fn of_route(counts: &[u64; FREQUENT.len()], event: &str) -> u64 {
    let at = FREQUENT.iter().position(|known| *known == event);
    at.map_or(0, |at| counts[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64, new: u64) -> Sample {
        Sample {
            at: Timestamp::from_micros(1_000_000_000_000_000 + second * 1_000_000),
            events: [new, 0, 0, 0, 0, 0],
            steps: new * 2,
            sum: new * 2 * 1_500_000,
            slowest: new * 1_000_000,
            in_flight: new,
        }
    }

    fn rates(samples: &[Sample], range: Range) -> (Vec<f64>, u64) {
        let (points, events) = points(samples.iter(), &samples[samples.len() - 1], range);
        (
            points.iter().map(|point| point.rates[0]).collect(),
            events[0],
        )
    }

    #[test]
    fn a_rate_is_what_was_counted_between_two_samples() {
        let samples = [sample(0, 0), sample(5, 10), sample(10, 10), sample(12, 17)];
        // Two samples are in the last step of five seconds.
        assert_eq!(rates(&samples, Range::Minutes), (vec![2.0, 1.0], 17));
        assert_eq!(rates(&samples, Range::Hour), (vec![17.0 / 12.0], 17));
        assert_eq!(rates(&samples[..1], Range::Minutes), (vec![], 0));
        let (found, _) = points(samples.iter(), &samples[3], Range::Minutes);
        assert_eq!(found[0].store, Some([1.5, 10.0]));
        assert_eq!(
            (found[1].store, found[1].in_flight),
            (Some([1.5, 17.0]), 17)
        );
        let (found, _) = points(samples[..3].iter(), &samples[2], Range::Minutes);
        assert_eq!((found[1].rates[0], found[1].store), (0.0, None));
    }

    #[test]
    fn what_is_older_than_the_range_is_where_it_begins() {
        let samples: Vec<_> = (0..=100).map(|nth| sample(nth * 5, nth * 5)).collect();
        let (rates, events) = rates(&samples, Range::Minutes);
        assert_eq!((rates.len(), events), (60, 300));
        assert!(
            rates.iter().all(|rate| (rate - 1.0).abs() < 1e-9),
            "{rates:?}"
        );
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
        assert!(kept.routes.len() <= KEPT / ROUTES_EVERY + 1);
    }
}
