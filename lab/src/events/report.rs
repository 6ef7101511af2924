//! What a run says of itself.

use std::collections::BTreeMap;

use serde::Serialize;

use super::broker::Counts;
use super::bugs::Bug;
use super::judge::Verdict;
use super::options::{Options, Storm};
use crate::base::Database;
use crate::crash::point::Point;
use crate::reasons::Reasons;

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    db: Database,
    storm: Storm,
    seed: u64,
    events: u64,
    #[serde(flatten)]
    counts: Counts,
    kills: usize,
    #[serde(flatten)]
    verdict: Verdict,
    by_point: BTreeMap<Point, usize>,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bug: Option<Bug>,
    #[serde(flatten)]
    pub(crate) reasons: Reasons,
}

impl Report {
    pub(super) fn new(
        options: &Options,
        counts: Counts,
        points: &[Point],
        hits: &BTreeMap<Point, usize>,
        mut verdict: Verdict,
        seconds: f64,
    ) -> Self {
        let hits = |point: &Point| hits.get(point).copied().unwrap_or_default();
        let killing = points.iter().filter(|point| point.strike().kills());
        let kills = killing.map(hits).sum();
        let mut reasons = Reasons::with(std::mem::take(&mut verdict.details));
        reasons.counted([
            ("double effects", verdict.double_effects),
            ("lost effects", verdict.lost_effects),
            ("violations", verdict.violations),
            ("events that nobody set aside", verdict.lost_letters),
            (
                "events that were applied and set aside",
                verdict.applied_and_set_aside,
            ),
            (
                "events that two were told to have handled",
                counts.handled_twice,
            ),
            (
                "messages that nobody acknowledged",
                counts.messages - counts.acknowledged,
            ),
        ]);
        if kills < options.kills {
            reasons.too_little(format!("{kills} kills instead of {}", options.kills));
        }
        let by_point = points.iter().chain(&[Point::Poisonous]);
        let by_point = by_point.map(|point| (*point, hits(point)));
        Self {
            db: options.database,
            storm: options.storm,
            seed: options.seed,
            events: options.events,
            counts,
            kills,
            verdict,
            by_point: by_point.collect(),
            seconds: (seconds * 10.0).round() / 10.0,
            bug: options.bug,
            reasons,
        }
    }
}
