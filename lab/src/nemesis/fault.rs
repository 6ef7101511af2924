//! The faults by name, and to whom they apply.

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

macro_rules! faults {
    ($($(#[doc = $what:literal])+ $fault:ident = $name:literal in $lane:ident,)+) => {
        /// One kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[doc = $what])+ $fault,)+
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$fault,)+];

            /// The name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$fault => $name,)+
                }
            }

            /// Who suffers.
            pub const fn lane(self) -> Lane {
                match self {
                    $(Self::$fault => Lane::$lane,)+
                }
            }
        }
    };
}

faults! {
    /// SIGKILL to a worker, which is started again.
    KillWorker = "kill-worker" in Worker,
    /// SIGSTOP to a worker for three leases.
    PauseWorker = "pause-worker" in Worker,
    /// A worker's wall clock is an hour ahead or behind for a while.
    ClockStep = "clock-step" in Worker,
    /// A worker's wall clock goes a tenth too fast or too slowly for a while.
    ClockDrift = "clock-drift" in Worker,
    /// SIGKILL to the server or a node, which is started again soon after.
    KillServer = "kill-server" in Server,
    /// SIGSTOP to the server or a node, for longer than a lease.
    PauseServer = "pause-server" in Server,
    /// PostgreSQL's immediate shutdown, and the start after it; SIGTERM to others.
    RestartServer = "restart-server" in Server,
    /// A node of a cluster is gone for so long that another takes its place.
    Failover = "failover" in Server,
    /// The server's wall clock is set forward by an hour for good, or back for a while.
    ServerClockStep = "server-clock-step" in Server,
    /// The server's wall clock goes a tenth too fast or too slowly for a while.
    ServerClockDrift = "server-clock-drift" in Server,
    /// All connections are cut, again and again.
    Cut = "cut" in Network,
    /// Each piece of data is late.
    Delay = "delay" in Network,
    /// Requests arrive; their answers are cut off.
    DropAnswers = "drop-answers" in Network,
    /// Requests arrive; half of an answer comes back.
    HalveAnswers = "halve-answers" in Network,
    /// Connections stand and nothing passes; afterwards it passes late.
    Blackhole = "blackhole" in Network,
    /// No connection can be made.
    Refuse = "refuse" in Network,
    /// SIGKILL to a gateway, which is started again.
    KillGateway = "kill-gateway" in Gateway,
    /// SIGSTOP to a gateway, for longer than a lease.
    PauseGateway = "pause-gateway" in Gateway,
    /// SIGTERM to a gateway, which ends what it does, and is started again.
    RestartGateway = "restart-gateway" in Gateway,
    /// SIGKILL to the upstream, which is started again: its connections break, new ones are refused.
    KillUpstream = "kill-upstream" in Upstream,
    /// The upstream answers some requests not, for longer than gateways wait for it.
    HangUpstream = "hang-upstream" in Upstream,
    /// Some effects happen, and the connection is cut before the answer or within it.
    CutUpstream = "cut-upstream" in Upstream,
    /// Some requests are answered 5xx: without an effect, or by a 504 with one.
    FailUpstream = "fail-upstream" in Upstream,
}

impl Fault {
    /// The fault of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fault| fault.name() == name)
    }

    /// Whether it is a clock that is wrong.
    pub const fn is_of_clocks(self) -> bool {
        matches!(
            self,
            Self::ClockStep | Self::ClockDrift | Self::ServerClockStep | Self::ServerClockDrift
        )
    }

    /// All names, for messages.
    pub fn names() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|fault| fault.name()).collect();
        names.join(", ")
    }
}
