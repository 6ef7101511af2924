//! Planted bugs: gateways that are wrong, as clients and the upstream see them.

use std::collections::HashMap;

use clap::ValueEnum;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::records::{Answer, Call, Identity, Said};

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bug {
    /// One byte of a replay's body is another.
    OneByte,
    /// A replay lacks a field.
    DroppedField,
    /// A replay comes without its body, and says so, although nothing broke off.
    OmittedBody,
    /// The answer that another principal got under the same key.
    OtherPrincipal,
    /// The answer that a caller of another service got under the same key.
    OtherService,
    /// The upstream is told one name for all principals' operations.
    OneId,
    /// Another request under the same key gets the answer.
    MismatchReplays,
    /// The same request is called another one.
    FalseMismatch,
    /// An attempt's request is sent twice.
    ForwardsTwice,
    /// Every attempt has the same fence.
    ConstantFence,
    /// What ran is run again under a new fence.
    RunsAgain,
    /// 201 without the upstream.
    Invents,
    /// A replay is not marked.
    MarkForgotten,
    /// A first answer is marked.
    MarksFirst,
    /// "In flight" although the answer is known.
    FalseInFlight,
    /// "Outcome unknown" although nothing was lost.
    FalseUnknown,
    /// "Store unavailable" although it is there.
    FalseUnavailable,
    /// The connection breaks.
    HangsUp,
    /// 504 of the upstream although that answered.
    FalseTimeout,
    /// A status that the upstream never sent.
    InventsStatus,
    /// Some keys stay in flight for ever.
    Stuck,
    /// The gateways of both services have one name.
    OneService,
    /// The gateways look for the principal in a field that nobody sends.
    NoPrincipal,
    /// The gateways run lost attempts again although they are to hold them.
    Reruns,
    /// The gateways release the key after a 504, which comes after the effect.
    ReleasesTimeout,
    /// A gateway that is asked to end does, with exit code 1.
    EndsBadly,
    /// Every request of a spell is cut off, not some: there is a cause each time, and too little is
    /// answered.
    CutsAll,
    /// Nobody is answered any more after a while.
    Silent,
}

impl Bug {
    /// The check that must catch it.
    pub const fn caught_by(self) -> &'static str {
        match self {
            Self::OneByte | Self::DroppedField | Self::OmittedBody => "bytes",
            Self::MismatchReplays | Self::FalseMismatch => "mismatch",
            Self::ForwardsTwice | Self::ConstantFence => "fence",
            Self::RunsAgain | Self::Reruns | Self::ReleasesTimeout => "once",
            Self::Invents => "executed",
            Self::MarkForgotten | Self::MarksFirst => "mark",
            Self::Stuck => "settled",
            Self::EndsBadly => "drain",
            Self::CutsAll => "answered",
            Self::Silent => "standstill",
            Self::OtherPrincipal
            | Self::OtherService
            | Self::OneId
            | Self::OneService
            | Self::NoPrincipal => "whose",
            Self::FalseInFlight
            | Self::FalseUnknown
            | Self::FalseUnavailable
            | Self::HangsUp
            | Self::FalseTimeout
            | Self::InventsStatus => "cause",
        }
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
