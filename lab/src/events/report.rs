//! What a run says of itself.

use std::collections::BTreeMap;

use serde::Serialize;

use super::broker::Counts;
use super::bugs::Bug;
use super::judge::{Letters, Verdict};
use super::options::{Options, Storm};
use crate::base::Database;
use crate::crash::point::Point;
use crate::reasons::Reasons;

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    db: Database,
    storm: Storm,
    seed: u64,
    events: u64,
    /// Of these events, planned: 3 to 10 of each.
    messages: usize,
    /// With those that came again because nobody acknowledged them.
    deliveries: usize,
    redelivered: usize,
    kills: usize,
    handled: usize,
    applied: usize,
    double_effects: usize,
    lost_effects: usize,
    violations: usize,
    lost_letters: usize,
    applied_and_set_aside: usize,
    letters: Letters,
    by_point: BTreeMap<Point, usize>,
    refused: BTreeMap<String, usize>,
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
        verdict: Verdict,
        seconds: f64,
    ) -> Self {
        let hits = |point: &Point| hits.get(point).copied().unwrap_or_default();
        let killing = points.iter().filter(|point| point.strike().kills());
        let kills = killing.map(hits).sum();
        let mut reasons = Reasons::with(verdict.details);
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
            messages: counts.messages,
            deliveries: counts.delivered,
            redelivered: counts.redelivered,
            kills,
            handled: counts.handled,
            applied: verdict.applied,
            double_effects: verdict.double_effects,
            lost_effects: verdict.lost_effects,
            violations: verdict.violations,
            lost_letters: verdict.lost_letters,
            applied_and_set_aside: verdict.applied_and_set_aside,
            letters: verdict.letters,
            by_point: by_point.collect(),
            refused: counts.refusals,
            seconds: (seconds * 10.0).round() / 10.0,
            bug: options.bug,
            reasons,
        }
    }
}
