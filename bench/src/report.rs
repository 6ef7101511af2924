//! What is printed, and which measurements are wanted.

use std::fmt;

use serde::{Serialize, Serializer};

/// What the command line asked for.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Small sizes: shows that everything works, not how fast.
    pub(crate) quick: bool,
    /// Only measurements whose name has this in it.
    pub(crate) only: Option<String>,
}

impl Run {
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only))
    }

    /// `full`, or `quick` where small sizes were asked for.
    pub(crate) fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// How often measured thing and reference take turns.
    pub(crate) fn rounds(&self) -> usize {
        self.size(7, 3)
    }
}

/// What a measurement should reach.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
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
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtLeast(goal) => write!(f, "ratio >= {goal}"),
            Self::RatioAbove(goal) => write!(f, "ratio > {goal}"),
            Self::RatioAtMost(goal) => write!(f, "ratio <= {goal}"),
            Self::ValueAtLeast(goal) => write!(f, "value >= {goal}"),
            Self::ValueBelow(goal) => write!(f, "value < {goal}"),
        }
    }
}

impl Serialize for Goal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One line of the result.
#[derive(Debug, Serialize)]
pub(crate) struct Measurement<'a> {
    name: &'a str,
    value: f64,
    unit: &'a str,
    reference: &'a str,
    reference_value: Option<f64>,
    // value / reference_value, whichever of them is better when it is larger.
    ratio: Option<f64>,
    goal: Option<Goal>,
    met: Option<bool>,
}

impl<'a> Measurement<'a> {
    pub(crate) fn new(name: &'a str, value: f64, unit: &'a str) -> Self {
        Self {
            name,
            value,
            unit,
            reference: "none",
            reference_value: None,
            ratio: None,
            goal: None,
            met: None,
        }
    }

    pub(crate) fn against(mut self, reference: &'a str, value: f64) -> Self {
        self.reference = reference;
        self.reference_value = Some(value);
        self.ratio = Some(self.value / value);
        self
    }

    pub(crate) fn goal(mut self, goal: impl Into<Option<Goal>>) -> Self {
        self.goal = goal.into();
        self.met = self.goal.map(|goal| goal.met(self.value, self.ratio));
        self
    }

    pub(crate) fn print(&self) {
        let line = serde_json::to_string(self).expect("a measurement has only numbers and text");
        println!("{line}");
    }
}

/// Says what is going on.
pub(crate) fn progress(what: impl fmt::Display) {
    eprintln!("# {what}");
}
