//! Why a run does not pass, and how it is told.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde::Serialize;

use crate::named::Named as _;
use crate::nemesis::Fault;

/// Why a run does not pass: both may come from a machine that is too slow, but what is wrong stays wrong
/// whatever another seed shows, and what proves too little says nothing of the product.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Reasons {
    /// The product is wrong, or the run broke off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed_because: Vec<String>,
    /// Less happened than the run is for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    too_little: Vec<String>,
    /// For people.
    #[serde(skip)]
    pub(crate) details: Vec<String>,
}

impl Reasons {
    /// None yet.
    pub(crate) fn with(details: Vec<String>) -> Self {
        Self {
            details,
            ..Self::default()
        }
    }

    pub(crate) fn failed(&mut self, why: impl Into<String>) {
        self.failed_because.push(why.into());
    }

    /// For each kind of wrong that was counted.
    pub(crate) fn counted<'a>(&mut self, faults: impl IntoIterator<Item = (&'a str, usize)>) {
        for (what, count) in faults {
            if count > 0 {
                self.failed(format!("{count} {what}"));
            }
        }
    }

    pub(crate) fn too_little(&mut self, why: impl Into<String>) {
        self.too_little.push(why.into());
    }

    /// Whether nothing is wrong, and enough happened.
    pub const fn passed(&self) -> bool {
        self.failed_because.is_empty() && self.too_little.is_empty()
    }

    /// Prints what came of a run: details to standard error, the report as the last line of standard
    /// output. Whether it passed.
    pub(crate) fn tell(&self, report: &impl Serialize) -> Result<bool> {
        for line in &self.details {
            eprintln!("{line}");
        }
        line(report)?;
        Ok(self.passed())
    }
}

/// The faults of a run that hit somebody.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Faults {
    faults: usize,
    faults_by_kind: BTreeMap<Fault, usize>,
}

impl Faults {
    /// One that was planned and never struck proves nothing.
    pub(crate) fn of(struck: &[Fault], planned: &[Fault], reasons: &mut Reasons) -> Self {
        let mut by_kind = BTreeMap::new();
        for fault in struck {
            *by_kind.entry(*fault).or_default() += 1;
        }
        for fault in planned.iter().collect::<BTreeSet<_>>() {
            if !by_kind.contains_key(fault) {
                let name = fault.name();
                let why =
                    format!("the planned fault {name} never fired: with more --seconds it may");
                reasons.too_little(why);
            }
        }
        Self {
            faults: struck.len(),
            faults_by_kind: by_kind,
        }
    }
}

/// Prints a line of JSON.
pub(crate) fn line(what: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(what)?);
    Ok(())
}
