//! What the command line of `simulate` says.

use anyhow::{Context as _, Result, bail};

use super::{Bug, Model};

/// How to write the command.
pub const USAGE: &str =
    "simulate [--of guard|layer|broker] [--seeds 10000] [--from 1] [--trace yes] [--bug NAME]";

/// A run to be done.
#[derive(Debug, Clone)]
pub struct Options {
    /// The only model; all of them unless set.
    pub of: Option<Model>,
    /// How many seeds.
    pub seeds: u64,
    /// The first of them.
    pub from: u64,
    /// Whether one seed alone prints its trace although nothing is wrong.
    pub trace: bool,
    /// The planted bug.
    pub bug: Option<Bug>,
}

impl Options {
    /// Reads the arguments after the subcommand.
    ///
    /// # Errors
    /// Says which argument is wrong, and what would be right.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            of: None,
            seeds: 10_000,
            from: 1,
            trace: false,
            bug: None,
        };
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{name} needs a value; usage: {USAGE}"))?;
            options
                .set(&name, &value)
                .with_context(|| format!("{name} {value}"))?;
        }
        if let (Some(of), Some(bug)) = (options.of, options.bug)
            && of != bug.model()
        {
            bail!("{} is a bug of {}", bug.name(), bug.model().name());
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "--of" => {
                let of = Model::ALL.into_iter().find(|model| model.name() == value);
                self.of = Some(of.context("there is no such model")?);
            }
            "--seeds" => self.seeds = value.parse()?,
            "--from" => self.from = value.parse()?,
            "--trace" => self.trace = value == "yes",
            "--bug" => {
                let bug = Bug::ALL.iter().find(|bug| bug.name() == value);
                let names: Vec<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
                let bug = bug.with_context(|| format!("the bugs are {}", names.join(", ")))?;
                self.bug = Some(*bug);
            }
            _ => bail!("there is no such option; usage: {USAGE}"),
        }
        Ok(())
    }

    /// The models to be run.
    pub(super) fn models(&self) -> Vec<Model> {
        match self.of.or(self.bug.map(Bug::model)) {
            Some(model) => vec![model],
            None => Model::ALL.to_vec(),
        }
    }
}
