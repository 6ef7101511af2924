//! The schedule: which fault strikes when, for how long and whom. All of it follows from the seed.

use std::time::Duration;

use super::{Fault, Lane};

/// One fault to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// What.
    pub fault: Fault,
    /// When, from the start of the work.
    pub at: Duration,
    /// For how long.
    pub lasts: Duration,
    /// Chooses whom, among those there are.
    pub whom: u32,
}

const FIRST: Duration = Duration::from_millis(800);
/// Something must succeed in between.
pub(crate) const SHORTEST_REST: Duration = Duration::from_millis(400);
/// How long gateways wait for the upstream.
pub const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(2);

/// For how long it goes on.
pub(crate) fn lasts(fault: Fault, lease: Duration, chance: &mut fastrand::Rng) -> Duration {
    let share = 1.0 + chance.f64();
    match fault {
        Fault::KillWorker | Fault::RestartGateway => Duration::from_millis(200),
        Fault::PauseWorker => lease * 3,
        Fault::ClockStep | Fault::ClockDrift | Fault::ServerClockStep | Fault::ServerClockDrift => {
            lease.mul_f64(share)
        }
        Fault::KillServer | Fault::RestartServer | Fault::KillGateway | Fault::KillUpstream => {
            Duration::from_millis(300).mul_f64(share)
        }
        Fault::PauseServer | Fault::PauseGateway => lease.mul_f64(1.25 * share),
        Fault::HangUpstream => UPSTREAM_TIMEOUT.mul_f64(1.1),
        Fault::Failover => Duration::from_secs(6),
        Fault::Cut => Duration::from_millis(400).mul_f64(share),
        Fault::Delay => Duration::from_millis(800).mul_f64(share),
        Fault::DropAnswers | Fault::HalveAnswers | Fault::Refuse => {
            Duration::from_millis(300).mul_f64(share)
        }
        Fault::CutUpstream | Fault::FailUpstream => Duration::from_millis(500).mul_f64(share),
        Fault::Blackhole => lease.mul_f64(share),
    }
}

/// Each fault of these lanes leaves outcomes that stay unknown: there must be more that do not.
fn rest(after: Fault) -> Duration {
    match after.lane() {
        Lane::Gateway | Lane::Upstream => SHORTEST_REST * 4,
        Lane::Worker | Lane::Server | Lane::Network => SHORTEST_REST,
    }
}

/// The faults of a run of this length. Those of the workers, the server and the network go on side by
/// side; in each of these lanes every kind comes up before any comes up again.
pub fn plan(faults: &[Fault], length: Duration, lease: Duration, seed: u64) -> Vec<Planned> {
    let mut chance = fastrand::Rng::with_seed(seed ^ 0x6e65_6d65_7369_7321);
    let mut planned = Vec::new();
    for lane in Lane::ALL {
        let own = |fault: &Fault| fault.lane() == lane;
        let mut lane: Vec<Fault> = faults.iter().copied().filter(own).collect();
        if lane.is_empty() {
            continue;
        }
        chance.shuffle(&mut lane);
        let mut at = FIRST.mul_f64(1.0 + chance.f64());
        for fault in lane.iter().copied().cycle() {
            let lasts = lasts(fault, lease, &mut chance);
            if at + lasts + SHORTEST_REST > length {
                break;
            }
            planned.push(Planned {
                fault,
                at,
                lasts,
                whom: chance.u32(..),
            });
            at += lasts + rest(fault).mul_f64(1.0 + 2.0 * chance.f64());
        }
    }
    planned.sort_by_key(|p| p.at);
    planned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_and_every_kind_comes_up() {
        let (length, lease) = (Duration::from_secs(20), Duration::from_secs(1));
        let kinds = [
            Fault::KillWorker,
            Fault::Cut,
            Fault::KillServer,
            Fault::Delay,
        ];
        let planned = plan(&kinds, length, lease, 7);
        assert_eq!(planned, plan(&kinds, length, lease, 7));
        assert_ne!(planned, plan(&kinds, length, lease, 8));
        for kind in kinds {
            assert!(planned.iter().any(|p| p.fault == kind), "{kind:?}");
        }
        assert!(planned.iter().all(|p| p.at + p.lasts < length));
    }
}
