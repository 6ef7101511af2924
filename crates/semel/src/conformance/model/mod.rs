//! A second telling of the protocol, to compare stores with: small, slow, and written from the
//! rules of `docs/protocol.md` without the functions of [`record`](crate::record).
//!
//! A property test or a fuzzer makes [`Step`]s from bytes and lets [`agree`] run them. Claims are
//! numbered by the model and named by tokens in the store; the [`Driver`] keeps the two together,
//! and wants the store's fences to grow with the numbers.
//!
//! ```
//! use std::sync::Arc;
//! use semel::conformance::{Bench, model::{Step, agree}};
//! use semel::memory::{Limits, MemoryStore};
//! use semel::{ManualClock, Timestamp};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
//! let store = MemoryStore::with_clock(Limits::default(), clock.clone());
//! let bench = Bench::new(store).with_clock(clock).exclusive();
//! let steps: Vec<Step> = (0..40).map(|n: u8| Step::of([n, n / 3, n / 5, n / 7, 0, 1])).collect();
//! agree(&bench, &steps).await.unwrap();
//! # });
//! ```

mod answer;
mod driver;
mod row;
mod step;

use std::time::Duration;

pub use answer::Answer;
pub use driver::{Driver, agree};
pub use row::Phase;
pub use step::{OneToken, Step};

use crate::record::StateKind;
use crate::store::{OnLost, Refusal};
use row::Row;

/// How many identities the model knows.
pub const IDENTITIES: usize = 3;

/// One identity of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    row: Option<Row>,
    // The nonce of each claim and resolution so far, by its number.
    nonces: Vec<usize>,
}

/// What the rules say about a few identities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    now: u64,
    subjects: [Subject; IDENTITIES],
    // How many nonces were made.
    nonces: usize,
}

impl Model {
    /// Takes one step and says what the answer must be.
    pub fn step(&mut self, step: &Step) -> Answer {
        match *step {
            Step::Claim {
                identity,
                again,
                fingerprint,
                lease,
                on_lost,
            } => {
                let nonce = self.nonce(identity, again);
                self.claim(identity, nonce, fingerprint, lease, on_lost)
            }
            Step::Renew {
                identity,
                token,
                lease,
            } => {
                let until = self.now + lease;
                self.fenced(identity, token, |row| match row.phase {
                    Phase::Running => {
                        row.lapses = row.lapses.max(until);
                        Ok(())
                    }
                    other => Err(Refusal::Settled(other.kind())),
                })
            }
            Step::Complete {
                identity,
                token,
                outcome,
                replay,
                tombstone,
            } => {
                let now = self.now;
                self.fenced(identity, token, |row| match row.phase {
                    Phase::Running | Phase::Lost => {
                        row.done(outcome, now, replay, tombstone);
                        Ok(())
                    }
                    Phase::Done(kept) if kept == outcome => Ok(()),
                    other => Err(Refusal::Settled(other.kind())),
                })
            }
            Step::KeepStep {
                identity,
                token,
                behind,
                name,
            } => self.fenced(identity, token, |row| {
                if !matches!(row.phase, Phase::Running | Phase::Lost) {
                    return Err(Refusal::Settled(row.phase.kind()));
                }
                let place = row.steps.len().saturating_sub(behind);
                match row.steps.get(place) {
                    None => row.steps.push(name),
                    Some(kept) if *kept == name => {}
                    Some(_) => return Err(Refusal::OtherSteps),
                }
                Ok(())
            }),
            Step::Abandon { identity, token } => {
                let now = self.now;
                self.fenced(identity, token, |row| match row.phase {
                    Phase::Running | Phase::Lost => {
                        row.free(now);
                        Ok(())
                    }
                    Phase::Free => Ok(()),
                    other => Err(Refusal::Settled(other.kind())),
                })
            }
            Step::MarkUnknown { identity, token } => {
                let now = self.now;
                self.fenced(identity, token, |row| match row.phase {
                    Phase::Running => {
                        row.lost(now);
                        Ok(())
                    }
                    Phase::Lost => Ok(()),
                    other => Err(Refusal::Settled(other.kind())),
                })
            }
            Step::Resolve {
                identity,
                back,
                happened,
                replay,
                tombstone,
            } => self.resolve(identity, back, happened.map(|o| (o, replay, tombstone))),
            Step::Purge { limit } => self.purge(limit),
            Step::List { state, lapsed } => Answer::Listed(self.listed(state, lapsed)),
            Step::Wait { identity, back } => self.wait(identity, back),
            Step::Advance { by } => {
                self.now += by;
                Answer::Passed
            }
        }
    }

    /// The record of an identity, unless its retention and tombstone are over.
    fn standing(&self, identity: usize) -> Option<&Row> {
        let row = self.subjects[identity].row.as_ref()?;
        (!row.is_gone(self.now)).then_some(row)
    }

    // The nonce of an earlier claim, or a new one.
    fn nonce(&mut self, identity: usize, again: Option<usize>) -> usize {
        let earlier = again.and_then(|back| {
            let nonces = &self.subjects[identity].nonces;
            nonces.get(nonces.len().checked_sub(back + 1)?)
        });
        if let Some(nonce) = earlier {
            return *nonce;
        }
        self.nonces += 1;
        self.nonces - 1
    }

    fn claim(
        &mut self,
        identity: usize,
        nonce: usize,
        fingerprint: u8,
        lease: u64,
        on_lost: OnLost,
    ) -> Answer {
        let now = self.now;
        let (mut attempt, mut created, mut steps) = (1, now, Vec::new());
        if let Some(row) = self.standing(identity) {
            let claim = row.claim;
            let own = self.subjects[identity].nonces[claim] == nonce;
            if row.phase == Phase::Free && own {
                let remaining = Duration::ZERO;
                return Answer::InFlight { claim, remaining };
            }
            if row.phase != Phase::Free {
                if row.expires.is_some_and(|at| now >= at) {
                    return Answer::Expired;
                }
                if row.fingerprint != fingerprint {
                    return Answer::Mismatch;
                }
                match row.phase {
                    Phase::Done(outcome) => {
                        let remaining = micros(row.expires.unwrap_or(u64::MAX) - now);
                        return Answer::Completed { outcome, remaining };
                    }
                    Phase::Running if own => {
                        return Answer::Acquired {
                            claim,
                            attempt: row.attempt,
                            since: row.created,
                            is_repeated: true,
                        };
                    }
                    Phase::Running if now < row.lapses => {
                        let remaining = micros(row.lapses - now);
                        return Answer::InFlight { claim, remaining };
                    }
                    _ if on_lost == OnLost::Retry => {}
                    _ => {
                        let lapsed = row.phase == Phase::Running;
                        if let Some(row) = &mut self.subjects[identity].row
                            && lapsed
                        {
                            row.lost(now);
                        }
                        return Answer::Unknown { claim };
                    }
                }
            }
            if !row.is_bare() && row.fingerprint != fingerprint {
                return Answer::Mismatch;
            }
            (attempt, created, steps) = (row.attempt + 1, row.created, row.steps.clone());
        }
        let subject = &mut self.subjects[identity];
        let claim = subject.nonces.len();
        subject.nonces.push(nonce);
        subject.row = Some(Row {
            phase: Phase::Running,
            fingerprint,
            claim,
            attempt,
            created,
            claimed: now,
            lapses: now + lease,
            settled: None,
            expires: None,
            gone: None,
            steps,
        });
        Answer::Acquired {
            claim,
            attempt,
            since: created,
            is_repeated: false,
        }
    }

    fn fenced(
        &mut self,
        identity: usize,
        token: OneToken,
        step: impl FnOnce(&mut Row) -> Result<(), Refusal>,
    ) -> Answer {
        let now = self.now;
        let subject = &mut self.subjects[identity];
        let number = subject.nonces.len().checked_sub(token.back + 1);
        let Some(row) = &mut subject.row else {
            return Answer::Refused(Refusal::Missing);
        };
        let gone = row.is_gone(now);
        let result = if number == Some(row.claim) && token.is_genuine() {
            step(row)
        } else {
            Err(Refusal::Superseded)
        };
        match result {
            _ if gone => Answer::PastRetention(result.err()),
            Ok(()) => Answer::Applied,
            Err(refusal) => Answer::Refused(refusal),
        }
    }

    fn resolve(
        &mut self,
        identity: usize,
        back: usize,
        happened: Option<(u8, u64, u64)>,
    ) -> Answer {
        let now = self.now;
        let subject = &mut self.subjects[identity];
        let number = subject.nonces.len().checked_sub(back + 1);
        let Some(row) = &mut subject.row else {
            return Answer::Refused(Refusal::Missing);
        };
        let refusal = match row.phase {
            _ if number != Some(row.claim) => Some(Refusal::Superseded),
            Phase::Running if now < row.lapses => Some(Refusal::Running),
            Phase::Running | Phase::Lost => None,
            settled => Some(Refusal::Settled(settled.kind())),
        };
        match refusal {
            Some(refusal) if row.is_gone(now) => return Answer::PastRetention(Some(refusal)),
            Some(refusal) => return Answer::Refused(refusal),
            None => {}
        }
        match happened {
            Some((outcome, replay, tombstone)) => row.done(outcome, now, replay, tombstone),
            None => row.free(now),
        }
        row.claim = subject.nonces.len();
        subject.nonces.push(self.nonces);
        self.nonces += 1;
        let claim = subject.nonces.len() - 1;
        Answer::Resolved { claim }
    }

    fn purge(&mut self, limit: usize) -> Answer {
        let now = self.now;
        let is_gone = |s: &&mut Subject| s.row.as_ref().is_some_and(|r| r.is_gone(now));
        let gone: Vec<_> = self.subjects.iter_mut().filter(is_gone).collect();
        let (at_most, all) = (gone.len().min(limit), gone.len() < limit);
        if all {
            gone.into_iter().for_each(|subject| subject.row = None);
        }
        Answer::Purged { at_most, all }
    }

    fn listed(&self, state: StateKind, lapsed: bool) -> Vec<usize> {
        let shown = |identity: &usize| {
            self.standing(*identity).is_some_and(|row| {
                let is_lapsed = row.phase == Phase::Running && self.now >= row.lapses;
                row.phase.kind() == state && (is_lapsed || !lapsed || state != StateKind::InFlight)
            })
        };
        (0..IDENTITIES).filter(shown).collect()
    }

    fn wait(&self, identity: usize, back: usize) -> Answer {
        let subject = &self.subjects[identity];
        let number = subject.nonces.len().checked_sub(back + 1);
        Answer::Waited(match &subject.row {
            Some(row) if number == Some(row.claim) && row.phase == Phase::Running => {
                // Past the lease a store may say either.
                (self.now < row.lapses).then_some(false)
            }
            _ => Some(true),
        })
    }
}

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}
