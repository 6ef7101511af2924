//! What a run says of itself.

use std::collections::BTreeMap;

use serde::Serialize;

use super::board::Found;
use super::judge::Verdict;
use super::options::Options;
use super::point::{Point, Work};
use crate::reasons::Reasons;

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    db: &'static str,
    work: Work,
    seed: u64,
    kills: usize,
    cuts: usize,
    keys: i64,
    answers: usize,
    replays: usize,
    run_again: usize,
    effects: usize,
    double_effects: usize,
    lost_effects: usize,
    missing_answers: usize,
    wrong_answers: usize,
    wrong_balances: usize,
    left_in_flight: usize,
    wrong_leftovers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Steps>,
    by_point: BTreeMap<&'static str, usize>,
    /// Of these kills, those that left the whole transaction; the others left nothing.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    effects_left: BTreeMap<&'static str, usize>,
    asked_again: BTreeMap<String, usize>,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bug: Option<&'static str>,
    #[serde(flatten)]
    pub(crate) reasons: Reasons,
    #[serde(skip)]
    details: Vec<String>,
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
        found: &Found,
        verdict: Verdict,
        steps: Option<Steps>,
        seconds: f64,
    ) -> Self {
        let hits = |point: &Point| found.hits.get(point).copied().unwrap_or_default();
        let sum = |kills: bool| {
            let of = points.iter().filter(|p| p.strike().kills() == kills);
            of.map(hits).sum()
        };
        let mut reasons = Reasons::default();
        reasons.counted(verdict.faults());
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
            db: options.database.name(),
            work: options.work,
            seed: options.seed,
            kills,
            cuts: sum(false),
            keys: found.keys,
            answers: found.answers.values().map(Vec::len).sum(),
            replays: found.replays,
            run_again: found.run_again,
            effects: verdict.effects,
            double_effects: verdict.double_effects,
            lost_effects: verdict.lost_effects,
            missing_answers: verdict.missing_answers,
            wrong_answers: verdict.wrong_answers,
            wrong_balances: verdict.wrong_balances,
            left_in_flight: verdict.left_in_flight,
            wrong_leftovers: verdict.wrong_leftovers,
            effects_left: verdict.left.iter().map(|(p, n)| (p.name(), *n)).collect(),
            steps,
            by_point: points.iter().map(|p| (p.name(), hits(p))).collect(),
            asked_again: found.refusals.clone(),
            seconds: (seconds * 10.0).round() / 10.0,
            bug: options.bug.map(super::Bug::name),
            reasons,
            details: verdict.details,
        }
    }

    /// Whether nothing is wrong, and every point was come to.
    pub const fn passed(&self) -> bool {
        self.reasons.passed()
    }

    /// Prints it: what is wrong to standard error, the table, and JSON as the last line.
    ///
    /// # Errors
    /// Where it cannot be put into JSON.
    pub fn print(&self) -> anyhow::Result<()> {
        for line in &self.details {
            eprintln!("{line}");
        }
        println!("{:<20} kills  effects left", "point");
        for point in Point::ALL {
            let name = point.name();
            let Some(hits) = self.by_point.get(name) else {
                continue;
            };
            let left = match self.effects_left.get(name) {
                _ if !point.strike().kills() => "(alive)".into(),
                Some(left) => left.to_string(),
                None => String::new(),
            };
            println!("{name:<20} {hits:>5}  {left:>12}");
        }
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}
