//! What `--faults` says.

use std::str::FromStr;

use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};

use super::Fault;
use crate::named::Named as _;

/// Which kinds of fault a run has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Chosen {
    /// Those that the run chooses.
    Any,
    /// These.
    These(Vec<Fault>),
}

impl Chosen {
    /// The kinds, where `any` are these.
    pub fn or(&self, any: impl FnOnce() -> Vec<Fault>) -> Vec<Fault> {
        match self {
            Self::Any => any(),
            Self::These(faults) => faults.clone(),
        }
    }
}

/// Names by comma, `any` or `none`.
impl FromStr for Chosen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::Any);
        }
        let mut faults = Vec::new();
        let names = text.split(',').filter(|name| !name.is_empty());
        for name in names.filter(|_| text != "none") {
            let fault = Fault::from_str(name, false).map_err(|_| {
                let all = Fault::names(Fault::value_variants());
                format!("there is no fault {name:?}; there are {all}")
            })?;
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
        Ok(Self::These(faults))
    }
}
