//! A store that writes down every call and every answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use semel::record::{Change, Update};
use semel::store::{
    Acquired, Claim, ClaimRequest, Entry, Fence, Fenced, Nonce, OnLost, Purged, Refusal, Result,
    Token, Waited,
};
use semel::{
    AnyStore, Fingerprint, Identity, IdentityDigest, Key, Scope, State, StateKind, Store,
    StoreError,
};

use super::{Answer, Call, Held, Kept, KeyIndex, Log, Refused, Step, digest, hash_of};
use crate::clock::nanos;

/// The run's identities, and their numbers.
#[derive(Debug)]
pub struct Names {
    identities: Vec<Identity>,
    numbers: HashMap<IdentityDigest, KeyIndex>,
}

impl Names {
    /// `count` identities that no other run has.
    ///
    /// # Panics
    /// Never: the keys made here are valid.
    pub fn new(run: &str, count: KeyIndex) -> Self {
        let name = |index| {
            let key = Key::new(&format!("lab-{index:08}")).expect("a plain key is valid");
            Identity::new(Scope::new(["lab", run]), "torture", key)
        };
        let identities: Vec<Identity> = (0..count).map(name).collect();
        let numbers = (0..)
            .zip(&identities)
            .map(|(i, identity)| (*identity.digest(), i))
            .collect();
        Self {
            identities,
            numbers,
        }
    }

    /// The identity with this number.
    pub fn identity(&self, key: KeyIndex) -> &Identity {
        &self.identities[key as usize]
    }

    fn number(&self, digest: &IdentityDigest) -> KeyIndex {
        self.numbers[digest]
    }
}

/// Writes down what is asked of a store, and its answers.
#[derive(Debug, Clone)]
pub struct Recorder {
    store: AnyStore,
    names: Arc<Names>,
    log: Arc<Log>,
}

impl From<&Token> for Held {
    fn from(token: &Token) -> Self {
        Self {
            fence: token.fence.0,
            nonce: number_of(token.nonce),
        }
    }
}

impl From<Held> for Token {
    fn from(held: Held) -> Self {
        Self {
            fence: Fence(held.fence),
            nonce: Nonce::from_bytes(held.nonce.to_be_bytes()),
        }
    }
}

fn number_of(nonce: Nonce) -> u128 {
    u128::from_be_bytes(*nonce.as_bytes())
}

/// The digest of a fingerprint that histories hold.
fn print_of(fingerprint: Fingerprint) -> u64 {
    digest(&fingerprint.to_bytes())
}

fn fenced(answer: &Fenced) -> Answer {
    match answer {
        Fenced::Applied => Answer::Applied,
        Fenced::Refused(refusal) => Answer::Refused(match refusal {
            Refusal::Missing => Refused::Missing,
            Refusal::Settled(StateKind::InFlight) => Refused::InFlight,
            Refusal::Settled(StateKind::Unknown) => Refused::Unknown,
            Refusal::Settled(StateKind::Completed) => Refused::Completed,
            Refusal::Settled(StateKind::Released) => Refused::Released,
            Refusal::Running => Refused::Running,
            Refusal::OtherSteps => Refused::OtherSteps,
            _ => Refused::Superseded,
        }),
    }
}

fn step_of(update: &Update) -> Step {
    match update {
        Update::Renew(lease) => Step::Renew {
            lease: nanos(*lease),
        },
        Update::Complete(outcome, retention) => Step::Complete(Kept::new(outcome, *retention)),
        Update::KeepStep { step, kept } => Step::Keep {
            part: digest(step.as_bytes()),
            after: *kept,
        },
        Update::Abandon => Step::Abandon,
        Update::MarkUnknown => Step::MarkUnknown,
    }
}

fn claimed(answer: &Claim) -> Answer {
    match answer {
        Claim::Acquired(Acquired { token, attempt, .. }) => Answer::Acquired {
            fence: token.fence.0,
            attempt: *attempt,
        },
        Claim::InFlight { fence, remaining } => Answer::InFlight {
            fence: fence.0,
            remaining: nanos(*remaining),
        },
        Claim::Completed { outcome, remaining } => Answer::Completed {
            outcome: hash_of(outcome),
            remaining: nanos(*remaining),
        },
        Claim::Unknown { fence } => Answer::Unknown { fence: fence.0 },
        Claim::Mismatch => Answer::Mismatch,
        Claim::Expired => Answer::Expired,
    }
}

impl Recorder {
    /// Stands before `store` and writes to `log`.
    pub const fn new(store: AnyStore, names: Arc<Names>, log: Arc<Log>) -> Self {
        Self { store, names, log }
    }

    async fn write<T>(
        &self,
        call: Call,
        step: impl Future<Output = Result<T>>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> Result<T> {
        let id = self.log.invoke(&call);
        let result = step.await;
        let answer = match &result {
            Ok(value) => answer(value),
            Err(error) => Answer::Failed(StoreError::kind(error).into()),
        };
        self.log.answer(id, &answer);
        result
    }
}

impl Store for Recorder {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let call = Call::Claim {
            key: self.names.number(identity.digest()),
            nonce: number_of(request.nonce),
            print: print_of(request.fingerprint),
            lease: nanos(request.lease),
            retry: request.on_lost == OnLost::Retry,
        };
        self.write(call, self.store.claim(identity, request), claimed)
            .await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let key = self.names.number(identity);
        let call = match change {
            Change::Held(token, update) => Call::Fenced {
                key,
                held: token.into(),
                step: step_of(update),
            },
            Change::Resolve(resolution) => Call::Resolve {
                key,
                fence: resolution.fence.0,
                nonce: number_of(resolution.nonce),
                happened: Kept::of_verdict(&resolution.verdict),
            },
        };
        self.write(call, self.store.change(identity, change), fenced)
            .await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let key = self.names.number(identity);
        self.write(Call::Get { key }, self.store.get(identity), |entry| {
            entry.as_ref().map_or(Answer::Absent, |entry| {
                let state = &entry.record.state;
                Answer::Found {
                    state: state.kind(),
                    held: (&entry.record.token).into(),
                    outcome: match state {
                        State::Completed(outcome) => Some(hash_of(outcome)),
                        _ => None,
                    },
                }
            })
        })
        .await
    }

    // A listing is not written down: a page is not one instant, so that it proves nothing about any key.
    semel::delegate!(store: list, probe, close);

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let removed = |purged: &Purged| Answer::Purged(purged.removed);
        self.write(Call::Purge, self.store.purge(limit), removed)
            .await
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        let call = Call::Wait {
            key: self.names.number(identity),
            fence: fence.0,
            timeout: nanos(timeout),
        };
        let step = self.store.wait(identity, fence, timeout);
        self.write(call, step, |waited| match waited {
            Waited::Changed => Answer::Changed,
            Waited::TimedOut => Answer::TimedOut,
        })
        .await
    }
}

/// The same token with another nonce or another fence: never to be obeyed.
pub(crate) fn forged(token: &Token, other_nonce: bool) -> Token {
    let mut held = Held::from(token);
    if other_nonce {
        held.nonce ^= 1;
    } else {
        held.fence = held.fence.wrapping_sub(1);
    }
    held.into()
}
