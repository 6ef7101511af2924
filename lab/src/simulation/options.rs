//! What the command line of `simulate` says.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum as _};

use super::{Bug, Model};
use crate::named::Named as _;

/// A run to be done.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The only model; all of them unless set
    #[arg(long)]
    pub of: Option<Model>,
    /// How many seeds
    #[arg(long, default_value_t = 10_000)]
    pub seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    pub from: u64,
    /// One seed alone prints its trace although nothing is wrong
    #[arg(long)]
    pub trace: bool,
    /// The planted bug
    #[arg(long)]
    pub bug: Option<Bug>,
}

impl Options {
    /// The models to be run.
    pub(super) fn models(&self) -> Result<Vec<Model>> {
        Ok(match (self.of, self.bug) {
            (Some(of), Some(bug)) if of != bug.model() => {
                bail!("{} is a bug of {}", bug.name(), bug.model().name())
            }
            (Some(model), _) => vec![model],
            (None, Some(bug)) => vec![bug.model()],
            (None, None) => Model::value_variants().to_vec(),
        })
    }
}
