//! What the command line of `torture --through gateway` says.

use anyhow::{Context as _, Result, bail};

use super::bugs::Bug;
use super::judge::OnLost;
use crate::nemesis::{Fault, Lane};
use crate::torture;

/// Few clients: a fault may leave what each of them asks for unknown.
const DEFAULTS: [&str; 4] = ["--tasks", "10", "--seconds", "10"];

/// A run to be done.
#[derive(Debug, Clone)]
pub struct Options {
    /// What it has in common with a run without gateways; `tasks` are the clients.
    pub(super) run: torture::Options,
    pub(super) on_lost: OnLost,
    pub(super) bug: Option<Bug>,
    /// How many identities must be asked for: a slow machine takes longer.
    pub(super) enough: usize,
}

impl Options {
    /// Reads the arguments after the subcommand, without `--through gateway`.
    ///
    /// # Errors
    /// Says which argument is wrong, and what would be right.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let (mut on_lost, mut planted, mut enough) = (None, None, 400);
        let mut rest = DEFAULTS.map(str::to_owned).to_vec();
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--on-lost" => on_lost = Some(policy(&arguments.next().unwrap_or_default())?),
                "--bug" => planted = Some(bug(&arguments.next().unwrap_or_default())?),
                "--enough" => enough = arguments.next().unwrap_or_default().parse()?,
                "--processes" | "--keys" | "--tolerance" | "--floor" => {
                    bail!("{name} is not for gateways")
                }
                _ => rest.push(name),
            }
        }
        let run = torture::Options::parse(rest)?;
        let mut chance = fastrand::Rng::with_seed(run.seed ^ 0x67_6174_6577_6179);
        let of_seed = match run.seed % 3 {
            0 => OnLost::Hold,
            1 => OnLost::Retry,
            _ => OnLost::Reconcile,
        };
        let mut options = Self {
            on_lost: on_lost.unwrap_or(of_seed),
            bug: planted,
            enough,
            run,
        };
        options.choose(&mut chance);
        for fault in &options.run.faults {
            options.applies(*fault)?;
        }
        Ok(options)
    }

    /// With `--faults any` the seed chooses one kind of fault for the store, for the gateways and for
    /// the upstream.
    fn choose(&mut self, chance: &mut fastrand::Rng) {
        if !self.run.any_faults {
            return;
        }
        let of = |lane| Fault::ALL.iter().filter(move |fault| fault.lane() == lane);
        let mut store = torture::faults_within(&self.run.store, self.run.length);
        store.retain(|fault| fault.lane() != Lane::Worker);
        for place in [
            store,
            of(Lane::Gateway).copied().collect(),
            of(Lane::Upstream).copied().collect(),
        ] {
            self.run.faults.extend(chance.choice(place));
        }
    }

    fn applies(&self, fault: Fault) -> Result<()> {
        match fault.lane() {
            Lane::Gateway | Lane::Upstream => Ok(()),
            Lane::Worker => bail!("the fault {} is of a run without gateways", fault.name()),
            Lane::Server | Lane::Network => torture::applies(fault, &self.run.store),
        }
    }
}

impl OnLost {
    /// The name on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Retry => "retry",
            Self::Reconcile => "reconcile",
        }
    }
}

fn policy(name: &str) -> Result<OnLost> {
    let all = [OnLost::Hold, OnLost::Retry, OnLost::Reconcile];
    let found = all.into_iter().find(|policy| policy.name() == name);
    found.context("--on-lost is hold, retry or reconcile")
}

fn bug(name: &str) -> Result<Bug> {
    Bug::from_name(name).with_context(|| {
        let names: Vec<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        format!("there is no bug {name:?}; there are {}", names.join(", "))
    })
}
