//! What is left to be done: keys to be asked for, and points to be come to.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use super::point::{Point, Work};

/// What one worker is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask for this key, and come to this point.
    Ask(i64, Option<(Point, u32)>),
    /// Nothing for now: others are at it.
    Wait,
    /// All is done.
    Done,
}

/// How an asking ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// It came to its point.
    pub(super) hit: bool,
    /// When it asks again, where it was not answered.
    pub(super) again_after: Option<Duration>,
    pub(super) killed: bool,
}

/// Shared by all workers' drivers.
#[derive(Debug)]
pub(super) struct Board(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    chance: fastrand::Rng,
    planned: VecDeque<(Point, u32)>,
    // How often somebody set out for a point and did not come to it.
    missed: BTreeMap<Point, usize>,
    // Points that a worker is on the way to.
    under_way: usize,
    keys: i64,
    unanswered: VecDeque<(Instant, i64)>,
    asked: usize,
    found: Found,
    since: Instant,
}

/// What came of it.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Found {
    /// How many keys there were.
    pub(super) keys: i64,
    /// All answers of each key.
    #[serde(skip)]
    pub(super) answers: HashMap<i64, Vec<String>>,
    /// How many of these were replays.
    pub(super) replays: usize,
    /// How often work ran again for conflicts with others.
    pub(super) run_again: usize,
    /// How often each point was come to.
    #[serde(skip)]
    pub(super) hits: BTreeMap<Point, usize>,
    /// Which attempts were killed: where, on which key, with which fence.
    #[serde(skip)]
    pub(super) killed: Vec<(Point, i64, u64)>,
    /// Why callers had to ask again.
    #[serde(rename = "asked_again")]
    pub(super) refusals: BTreeMap<String, usize>,
}

impl Found {
    /// The same with one half of each answer, and with the other.
    pub(super) fn split(&self, split: fn(&str) -> (String, String)) -> (Self, Self) {
        let (mut one, mut other) = (self.clone(), self.clone());
        for (key, answers) in &self.answers {
            let halves = answers.iter().map(|answer| split(answer));
            let (ones, others): (Vec<_>, Vec<_>) = halves.unzip();
            one.answers.insert(*key, ones);
            other.answers.insert(*key, others);
        }
        (one, other)
    }
}

/// A point that is missed as often in a row is one that nobody can come to.
const MISSES: usize = 50;

impl Inner {
    fn missed(&mut self, point: Point, place: u32) {
        let missed = self.missed.entry(point).or_default();
        *missed += 1;
        if *missed < MISSES {
            self.planned.push_back((point, place));
        }
    }
}

impl Board {
    /// With so many kills at each of these points, in an order that the seed decides.
    pub(super) fn new(points: &[Point], work: Work, kills: usize, seed: u64) -> Self {
        let mut chance = fastrand::Rng::with_seed(seed);
        let killing: Vec<Point> = points
            .iter()
            .copied()
            .filter(|p| p.strike().kills())
            .collect();
        let mut planned: Vec<(Point, u32)> = Vec::new();
        for (turn, point) in killing.iter().cycle().take(kills).enumerate() {
            let place = (turn / killing.len()) as u32 % point.places(work);
            planned.push((*point, place));
        }
        // What kills nobody comes as often as what does.
        for point in points.iter().filter(|p| !p.strike().kills()) {
            let share = kills.div_ceil(killing.len().max(1));
            planned.extend(std::iter::repeat_n((*point, 0), share));
        }
        chance.shuffle(&mut planned);
        Self(Mutex::new(Inner {
            chance,
            planned: planned.into(),
            missed: BTreeMap::new(),
            under_way: 0,
            keys: 0,
            unanswered: VecDeque::new(),
            asked: 0,
            found: Found::default(),
            since: Instant::now(),
        }))
    }

    pub(super) fn next(&self) -> Next {
        let mut inner = self.0.lock();
        let inner = &mut *inner;
        let now = Instant::now();
        let due = inner.unanswered.iter().position(|(when, _)| *when <= now);
        let key = if let Some((_, key)) = due.and_then(|at| inner.unanswered.remove(at)) {
            key
        } else if inner.planned.is_empty() && inner.under_way == 0 {
            // No point is left to come to.
            return match inner.unanswered.is_empty() && inner.asked == 0 {
                true => Next::Done,
                false => Next::Wait,
            };
        } else if inner.planned.is_empty() {
            return Next::Wait;
        } else if inner.keys > 0 && inner.chance.u8(..8) == 0 {
            // A duplicate: of one that was answered, or that another worker is at.
            let from = (inner.keys - 20).max(0);
            inner.chance.i64(from..inner.keys)
        } else {
            inner.keys += 1;
            inner.found.keys = inner.keys;
            inner.keys - 1
        };
        inner.asked += 1;
        let fresh = !inner.found.answers.contains_key(&key);
        // Some work must go through, for others to run into.
        let point = match fresh && inner.chance.u8(..5) > 0 {
            true => inner.planned.pop_front(),
            false => None,
        };
        inner.under_way += usize::from(point.is_some());
        Next::Ask(key, point)
    }

    /// Its caller was answered.
    pub(super) fn answered(&self, key: i64, answer: String, replayed: bool, again: u32) {
        let mut inner = self.0.lock();
        inner.since = Instant::now();
        inner.found.replays += usize::from(replayed);
        inner.found.run_again += again as usize;
        inner.found.answers.entry(key).or_default().push(answer);
    }

    /// An attempt was killed; 0 is the fence of one whose work had not begun.
    pub(super) fn killed(&self, point: Point, key: i64, fence: u64) {
        if fence > 0 {
            self.0.lock().found.killed.push((point, key, fence));
        }
    }

    /// Its caller was refused.
    pub(super) fn refused(&self, why: &str) {
        let mut inner = self.0.lock();
        *inner.found.refusals.entry(why.into()).or_default() += 1;
    }

    /// The asking ended: as it may, or with its worker. A key that was not answered is asked for
    /// again; a point that was not come to is left to others.
    pub(super) fn ended(&self, key: i64, point: Option<(Point, u32)>, ended: &Ended) {
        let mut inner = self.0.lock();
        inner.asked -= 1;
        if let Some((point, place)) = point {
            inner.under_way -= 1;
            match ended.hit {
                true => {
                    inner.missed.remove(&point);
                    *inner.found.hits.entry(point).or_default() += 1;
                }
                // Refused, while others were at the key or the server was away, it was not on its way at all.
                false if ended.again_after.is_some() && !ended.killed => {
                    inner.planned.push_back((point, place));
                }
                false => inner.missed(point, place),
            }
        }
        if let Some(after) = ended.again_after {
            inner.unanswered.push_back((Instant::now() + after, key));
        }
    }

    /// Every key is asked for once more, by a worker that is not killed.
    pub(super) fn once_more(&self) {
        let mut inner = self.0.lock();
        let now = Instant::now();
        inner.unanswered = (0..inner.keys).map(|key| (now, key)).collect();
    }

    /// How long ago somebody was answered last.
    pub(super) fn silent(&self) -> Duration {
        self.0.lock().since.elapsed()
    }

    pub(super) fn found(&self) -> Found {
        self.0.lock().found.clone()
    }
}
