//! What a run of the benchmarks prints, line by line, and the tables that runs make.
//!
//! A crate of its own so that the check of the tables in `docs/` builds nothing else.

mod grid;
mod tables;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use tables::{Run, into_document, tables};

/// One line of a run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first one.
    Begin(Begin),
    /// One for each measurement.
    Row(Measurement),
    /// The last one, unless the run was cut short.
    End(End),
}

impl Line {
    /// Prints it on standard output.
    pub fn print(&self) {
        let line = serde_json::to_string(self).expect("a line has only numbers and text");
        println!("{line}");
    }
}

/// What is measured, when, and on what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// What the command line asked for.
    pub arguments: String,
    pub commit: String,
    pub rustc: String,
    pub machine: Machine,
    #[serde(flatten)]
    pub moment: Moment,
}

/// What figures depend on, besides the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_gib: usize,
    pub kernel: String,
    /// Its file system and device.
    pub disk: String,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub seconds: u64,
    #[serde(flatten)]
    pub moment: Moment,
}

/// What differs from run to run on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// In UTC, to the minute.
    pub date: String,
    /// The load average of the last minute.
    pub load: f64,
    /// How long a synced write of 4 KiB takes on the disk, in ms: the median of many.
    pub sync_ms: f64,
}

/// What a measurement should reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    RatioAtLeast(f64),
    RatioAbove(f64),
    RatioAtMost(f64),
    ValueAtLeast(f64),
    ValueBelow(f64),
}

impl Goal {
    fn met(self, value: f64, ratio: Option<f64>) -> bool {
        let ratio = ratio.unwrap_or(f64::NAN);
        match self {
            Self::RatioAtLeast(goal) => ratio >= goal,
            Self::RatioAbove(goal) => ratio > goal,
            Self::RatioAtMost(goal) => ratio <= goal,
            Self::ValueAtLeast(goal) => value >= goal,
            Self::ValueBelow(goal) => value < goal,
        }
    }

    fn is_of_the_ratio(self) -> bool {
        matches!(
            self,
            Self::RatioAtLeast(_) | Self::RatioAbove(_) | Self::RatioAtMost(_)
        )
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtLeast(goal) => write!(f, "ratio ≥ {goal}"),
            Self::RatioAbove(goal) => write!(f, "ratio > {goal}"),
            Self::RatioAtMost(goal) => write!(f, "ratio ≤ {goal}"),
            Self::ValueAtLeast(goal) => write!(f, "≥ {goal}"),
            Self::ValueBelow(goal) => write!(f, "< {goal}"),
        }
    }
}

/// The lowest, the middle and the highest of some rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub min: f64,
    /// Of an even number the upper of the two in the middle.
    pub median: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(rounds: &[f64]) -> Self {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| *sorted.get(place).expect("a measurement of something");
        Self {
            min: at(0),
            median: at(sorted.len() / 2),
            max: at(sorted.len().saturating_sub(1)),
        }
    }
}

/// What was measured, in rounds; beside a reference, which took turns with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measurement {
    pub name: String,
    pub unit: String,
    value: Spread,
    reference: Option<String>,
    reference_value: Option<Spread>,
    // Of each round's value and its reference's, whichever of them is better when it is larger.
    ratio: Option<Spread>,
    goal: Option<Goal>,
    rounds: Vec<f64>,
    reference_rounds: Vec<f64>,
}

impl Measurement {
    pub fn new(name: &str, unit: &str, rounds: Vec<f64>) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            value: Spread::of(&rounds),
            reference: None,
            reference_value: None,
            ratio: None,
            goal: None,
            rounds,
            reference_rounds: Vec::new(),
        }
    }

    /// Compared with `reference`, measured once in each round.
    pub fn against(mut self, reference: &str, rounds: &[f64]) -> Self {
        assert_eq!(rounds.len(), self.rounds.len(), "rounds of {}", self.name);
        let pairs = self.rounds.iter().zip(rounds);
        let ratios: Vec<f64> = pairs.map(|(value, reference)| value / reference).collect();
        self.reference = Some(reference.to_owned());
        self.reference_value = Some(Spread::of(rounds));
        self.ratio = Some(Spread::of(&ratios));
        self.reference_rounds = rounds.to_vec();
        self
    }

    pub fn goal(mut self, goal: impl Into<Option<Goal>>) -> Self {
        self.goal = goal.into();
        self
    }

    pub fn print(self) {
        Line::Row(self).print();
    }
}
