//! The faults by name, and to whom they apply.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Who suffers: faults of different lanes go on at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// A worker's process.
    Worker,
    /// The server, or one node of a cluster.
    Server,
    /// The way between them.
    Network,
    /// A gateway's process.
    Gateway,
    /// The service behind the gateways.
    Upstream,
}

impl Lane {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Worker,
        Self::Server,
        Self::Network,
        Self::Gateway,
        Self::Upstream,
    ];
}

/// One kind of fault.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL to a worker, which is started again.
    KillWorker,
    /// SIGSTOP to a worker for three leases.
    PauseWorker,
    /// A worker's wall clock is an hour ahead or behind for a while.
    ClockStep,
    /// A worker's wall clock goes a tenth too fast or too slowly for a while.
    ClockDrift,
    /// SIGKILL to the server or a node, which is started again soon after.
    KillServer,
    /// SIGSTOP to the server or a node, for longer than a lease.
    PauseServer,
    /// PostgreSQL's immediate shutdown, and the start after it; SIGTERM to others.
    RestartServer,
    /// A node of a cluster is gone for so long that another takes its place.
    Failover,
    /// The server's wall clock is set forward by an hour for good, or back for a while.
    ServerClockStep,
    /// The server's wall clock goes a tenth too fast or too slowly for a while.
    ServerClockDrift,
    /// All connections are cut, again and again.
    Cut,
    /// Each piece of data is late.
    Delay,
    /// Requests arrive; their answers are cut off.
    DropAnswers,
    /// Requests arrive; half of an answer comes back.
    HalveAnswers,
    /// Connections stand and nothing passes; afterwards it passes late.
    Blackhole,
    /// No connection can be made.
    Refuse,
    /// SIGKILL to a gateway, which is started again.
    KillGateway,
    /// SIGSTOP to a gateway, for longer than a lease.
    PauseGateway,
    /// SIGTERM to a gateway, which ends what it does, and is started again.
    RestartGateway,
    /// SIGKILL to the upstream, which is started again: its connections break, new ones are refused.
    KillUpstream,
    /// The upstream answers some requests not, for longer than gateways wait for it.
    HangUpstream,
    /// Some effects happen, and the connection is cut before the answer or within it.
    CutUpstream,
    /// Some requests are answered 5xx: without an effect, or by a 504 with one.
    FailUpstream,
}

impl Fault {
    /// Who suffers.
    pub const fn lane(self) -> Lane {
        match self {
            Self::KillWorker | Self::PauseWorker | Self::ClockStep | Self::ClockDrift => {
                Lane::Worker
            }
            Self::KillServer
            | Self::PauseServer
            | Self::RestartServer
            | Self::Failover
            | Self::ServerClockStep
            | Self::ServerClockDrift => Lane::Server,
            Self::Cut
            | Self::Delay
            | Self::DropAnswers
            | Self::HalveAnswers
            | Self::Blackhole
            | Self::Refuse => Lane::Network,
            Self::KillGateway | Self::PauseGateway | Self::RestartGateway => Lane::Gateway,
            Self::KillUpstream | Self::HangUpstream | Self::CutUpstream | Self::FailUpstream => {
                Lane::Upstream
            }
        }
    }

    /// Whether it is a clock that is wrong.
    pub const fn is_of_clocks(self) -> bool {
        matches!(
            self,
            Self::ClockStep | Self::ClockDrift | Self::ServerClockStep | Self::ServerClockDrift
        )
    }
}
