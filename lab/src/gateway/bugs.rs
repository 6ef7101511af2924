//! Planted bugs: gateways that are wrong, as clients and the upstream see them.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::records::{Answer, Call, Identity, Said};

macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $bug:ident = $name:literal caught by $check:literal,)+) => {
        /// One of them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Bug {
            $($(#[doc = $what])+ $bug,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)+];

            /// The name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }

            /// The check that must catch it.
            pub const fn caught_by(self) -> &'static str {
                match self {
                    $(Self::$bug => $check,)+
                }
            }
        }
    };
}

bugs! {
    /// One byte of a replay's body is another.
    OneByte = "one-byte" caught by "bytes",
    /// A replay lacks a field.
    DroppedField = "dropped-field" caught by "bytes",
    /// A replay comes without its body, and says so, although nothing broke off.
    OmittedBody = "omitted-body" caught by "bytes",
    /// The answer that another principal got under the same key.
    OtherPrincipal = "other-principal" caught by "whose",
    /// The answer that a caller of another service got under the same key.
    OtherService = "other-service" caught by "whose",
    /// The upstream is told one name for all principals' operations.
    OneId = "one-id" caught by "whose",
    /// Another request under the same key gets the answer.
    MismatchReplays = "mismatch-replays" caught by "mismatch",
    /// The same request is called another one.
    FalseMismatch = "false-mismatch" caught by "mismatch",
    /// An attempt's request is sent twice.
    ForwardsTwice = "forwards-twice" caught by "fence",
    /// Every attempt has the same fence.
    ConstantFence = "constant-fence" caught by "fence",
    /// What ran is run again under a new fence.
    RunsAgain = "runs-again" caught by "once",
    /// 201 without the upstream.
    Invents = "invents" caught by "executed",
    /// A replay is not marked.
    MarkForgotten = "mark-forgotten" caught by "mark",
    /// A first answer is marked.
    MarksFirst = "marks-first" caught by "mark",
    /// "In flight" although the answer is known.
    FalseInFlight = "false-in-flight" caught by "cause",
    /// "Outcome unknown" although nothing was lost.
    FalseUnknown = "false-unknown" caught by "cause",
    /// "Store unavailable" although it is there.
    FalseUnavailable = "false-unavailable" caught by "cause",
    /// The connection breaks.
    HangsUp = "hangs-up" caught by "cause",
    /// 504 of the upstream although that answered.
    FalseTimeout = "false-timeout" caught by "cause",
    /// A status that the upstream never sent.
    InventsStatus = "invents-status" caught by "cause",
    /// Some keys stay in flight for ever.
    Stuck = "stuck" caught by "settled",
    /// The gateways of both services have one name.
    OneService = "one-service" caught by "whose",
    /// The gateways look for the principal in a field that nobody sends.
    NoPrincipal = "no-principal" caught by "whose",
    /// The gateways run lost attempts again although they are to hold them.
    Reruns = "reruns" caught by "once",
    /// The gateways release the key after a 504, which comes after the effect.
    Releases504 = "releases-504" caught by "once",
    /// A gateway that is asked to end leaves something behind.
    EndsBadly = "ends-badly" caught by "drain",
    /// Every request of a spell is cut off, not some: there is a cause each time, and too little is
    /// answered.
    CutsAll = "cuts-all" caught by "answered",
    /// Nobody is answered any more after a while.
    Silent = "silent" caught by "standstill",
}

impl Bug {
    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name)
    }
}

/// Stands between a client and the gateways.
#[derive(Debug)]
pub(super) struct Liar {
    bug: Bug,
    answers: Mutex<HashMap<Identity, Answer>>,
}

impl Liar {
    pub(super) fn new(bug: Bug) -> Self {
        Self {
            bug,
            answers: Mutex::new(HashMap::new()),
        }
    }

    /// What is said without asking, if anything.
    pub(super) fn instead(&self, call: &Call) -> Option<Said> {
        let problem = |status, code: &str| Said::Problem {
            status,
            code: code.into(),
        };
        let answers = self.answers.lock();
        let known = answers.get(&call.identity).copied();
        let some = call.id.is_multiple_of(8);
        let of_another = |differs: &dyn Fn(&Identity) -> bool| {
            let mut others = answers.iter();
            let found = others.find(|(of, _)| of.key == call.identity.key && differs(of));
            found.map(|(_, answer)| {
                Said::Answer(Answer {
                    replayed: true,
                    ..*answer
                })
            })
        };
        match self.bug {
            Bug::OtherPrincipal => {
                of_another(&|of| of.principal != call.identity.principal && is_sibling(of, call))
            }
            Bug::OtherService => of_another(&|of| of.service != call.identity.service),
            Bug::FalseMismatch if known.is_some() && some => Some(problem(422, "mismatch")),
            Bug::Invents if some => Some(Said::Answer(Answer {
                execution: u64::MAX,
                replayed: false,
                omitted: false,
                head: 1,
                body: 2,
            })),
            Bug::FalseInFlight if known.is_some() && some => Some(problem(409, "in-flight")),
            Bug::FalseUnknown if some => Some(problem(409, "outcome-unknown")),
            Bug::FalseUnavailable if some => Some(problem(503, "store-unavailable")),
            Bug::FalseTimeout if some => Some(problem(504, "upstream-timeout")),
            Bug::InventsStatus if some => Some(Said::Failed { status: 500 }),
            Bug::HangsUp if some => Some(Said::Broken("as planned".into())),
            Bug::Stuck if call.identity.key % 8 == 5 => Some(problem(409, "in-flight")),
            Bug::Silent if call.id > 20 => Some(problem(409, "in-flight")),
            _ => None,
        }
    }

    /// Changes what was said.
    pub(super) fn twist(&self, call: &mut Call) {
        if self.bug == Bug::MismatchReplays
            && call.said.is_problem("mismatch")
            && let Some(answer) = self.answers.lock().get(&call.identity)
        {
            call.said = Said::Answer(Answer {
                replayed: true,
                ..*answer
            });
        }
        let Said::Answer(answer) = &mut call.said else {
            return;
        };
        match self.bug {
            Bug::OneByte if answer.replayed => answer.body ^= 1,
            Bug::DroppedField if answer.replayed => answer.head ^= 1,
            Bug::OmittedBody if answer.replayed => answer.omitted = true,
            Bug::MarkForgotten => answer.replayed = false,
            Bug::MarksFirst => answer.replayed = true,
            _ => {}
        }
        self.answers.lock().insert(call.identity, *answer);
    }
}

fn is_sibling(of: &Identity, call: &Call) -> bool {
    of.service == call.identity.service
}
