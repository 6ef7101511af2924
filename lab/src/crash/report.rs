//! What a run says of itself.

use std::collections::BTreeMap;

use serde::Serialize;

use super::board::Found;
use super::bugs::Bug;
use super::judge::Verdict;
use super::options::Options;
use super::point::{Point, Work};
use crate::base::Database;
use crate::named::Named as _;
use crate::reasons::Reasons;

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    db: Database,
    work: Work,
    seed: u64,
    kills: usize,
    cuts: usize,
    answers: usize,
    #[serde(flatten)]
    found: Found,
    #[serde(flatten)]
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Steps>,
    by_point: BTreeMap<Point, usize>,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bug: Option<Bug>,
    #[serde(flatten)]
    pub(crate) reasons: Reasons,
}

/// What concerns steps only.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Steps {
    /// Calls of steps that were kept already.
    pub(super) reruns: usize,
    /// Payments asked for again under their key, and not taken again.
    pub(super) repeats_honoured: usize,
}

impl Report {
    pub(super) fn new(
        options: &Options,
        points: &[Point],
        found: Found,
        mut verdict: Verdict,
        steps: Option<Steps>,
        seconds: f64,
    ) -> Self {
        let hits = |point: &Point| found.hits.get(point).copied().unwrap_or_default();
        let sum = |kills: bool| {
            let of = points.iter().filter(|p| p.strike().kills() == kills);
            of.map(hits).sum()
        };
        let faults = verdict.faults();
        let mut reasons = Reasons::with(std::mem::take(&mut verdict.details));
        reasons.counted(faults);
        for point in points {
            if hits(point) == 0 {
                reasons.too_little(format!("nobody came to {}", point.name()));
            }
        }
        let kills = sum(true);
        let planned = points.iter().any(|p| p.strike().kills());
        if planned && kills < options.kills {
            reasons.too_little(format!("{kills} kills instead of {}", options.kills));
        }
        Self {
            db: options.database,
            work: options.work(),
            seed: options.seed,
            kills,
            cuts: sum(false),
            answers: found.answers.values().map(Vec::len).sum(),
            steps,
            by_point: points.iter().map(|p| (*p, hits(p))).collect(),
            found,
            verdict,
            seconds: (seconds * 10.0).round() / 10.0,
            bug: options.bug,
            reasons,
        }
    }

    /// Prints it, after a table of the points. Whether nothing is wrong, and every point was come to.
    pub(super) fn print(&self) -> anyhow::Result<bool> {
        println!("{:<20} kills  effects left", "point");
        for (point, hits) in &self.by_point {
            let left = match self.verdict.left.get(point) {
                _ if !point.strike().kills() => "(alive)".into(),
                Some(left) => left.to_string(),
                None => String::new(),
            };
            println!("{:<20} {hits:>5}  {left:>12}", point.name());
        }
        self.reasons.tell(self)
    }
}
