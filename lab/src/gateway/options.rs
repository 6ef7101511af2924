//! What the command line of `torture --through gateway` says.

use std::time::Duration;

use clap::{Args, ValueEnum as _, value_parser};
use serde::{Deserialize, Serialize};

use super::bugs::Bug;
use super::judge::OnLost;
use crate::nemesis::{Fault, Lane};
use crate::torture::{self, Run, seconds};

/// A run to be done. Its clients are few: a fault may leave what each of them asks for unknown.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct Options {
    /// What it has in common with a run without gateways.
    #[command(flatten)]
    pub(super) run: Run,
    /// How long the clients work; four times as long at most, where they have not asked for enough.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) length: Duration,
    /// How many clients.
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..))]
    pub(super) tasks: u32,
    /// What gateways do with lost attempts; by default the seed chooses.
    #[arg(long)]
    on_lost: Option<OnLost>,
    /// The planted bug.
    #[arg(long)]
    pub(super) bug: Option<Bug>,
    /// How many identities must be asked for: a slow machine takes longer.
    #[arg(long, default_value_t = 400)]
    pub(super) enough: usize,
}

impl Options {
    /// What gateways do with lost attempts.
    pub(super) fn on_lost(&self) -> OnLost {
        self.on_lost.unwrap_or(match self.run.seed % 3 {
            0 => OnLost::Hold,
            1 => OnLost::Retry,
            _ => OnLost::Reconcile,
        })
    }

    /// What goes wrong; `any` is one kind of fault for the store, one for the gateways and one for the
    /// upstream, which the seed chooses.
    pub(super) fn faults(&self) -> Vec<Fault> {
        self.run.faults.or(|| {
            let mut chance = fastrand::Rng::with_seed(self.run.seed ^ 0x67_6174_6577_6179);
            let all = Fault::value_variants().iter().copied();
            let of = |lane| {
                all.clone()
                    .filter(move |fault| fault.lane() == lane)
                    .collect()
            };
            let mut store = torture::faults_within(&self.run.store, self.length);
            store.retain(|fault| fault.lane() != Lane::Worker);
            let places: [Vec<Fault>; 3] = [store, of(Lane::Gateway), of(Lane::Upstream)];
            let chosen = places.into_iter().filter_map(|place| chance.choice(place));
            chosen.collect()
        })
    }
}
