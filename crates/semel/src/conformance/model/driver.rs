//! Takes the model's steps on a store.

use std::time::Duration;

use super::row::{MARK, Phase, Row};
use super::{Answer, IDENTITIES, Model, OneToken, Step};
use crate::conformance::{Bench, Failure, ensure, ensure_eq};
use crate::record::{Record, State};
use crate::store::{
    Claim, ClaimRequest, Cursor, Fence, Fenced, ListQuery, Nonce, Refusal, Resolution, Retention,
    Store as _, StoreExt as _, Token, Verdict, Waited,
};
use crate::{Fingerprint, FinishedStep, Identity, Note, Outcome, Progress, Timestamp};

/// Takes these steps, and wants the store to answer as the model does.
///
/// # Errors
/// [`Failure`] names the step and the first difference; also where the bench has no clock that can
/// be advanced.
pub async fn agree(bench: &Bench, steps: &[Step]) -> Result<(), Failure> {
    let mut model = Model::default();
    let mut driver = Driver::new(bench)?;
    for (number, step) in steps.iter().enumerate() {
        let answer = model.step(step);
        let taken = driver.step(bench, step, &answer, &model).await;
        taken.map_err(|e| Failure::new(format!("step {number}, {step:?}: {e}")))?;
    }
    Ok(())
}

/// Keeps the model's numbers and a store's tokens together.
#[derive(Debug)]
pub struct Driver {
    identities: Vec<Identity>,
    // By identity and number of the claim.
    tokens: [Vec<Token>; IDENTITIES],
    nonces: Vec<Nonce>,
    // The store's time when the model's began, known from the first record.
    began: Option<u64>,
}

impl Driver {
    /// A driver with identities of its own.
    ///
    /// # Errors
    /// [`Failure`] where the bench has no clock that can be advanced.
    pub fn new(bench: &Bench) -> Result<Self, Failure> {
        ensure!(
            bench.is_manual(),
            "the model needs a clock that can be advanced"
        );
        let identities: Result<_, _> = (0..IDENTITIES)
            .map(|n| bench.identity(&format!("model-{n}")))
            .collect();
        Ok(Self {
            identities: identities?,
            tokens: Default::default(),
            nonces: Vec::new(),
            began: None,
        })
    }

    /// Takes one step, and compares the answer and what is stored with the model's, which has
    /// taken it already.
    ///
    /// # Errors
    /// [`Failure`] says where the two differ.
    pub async fn step(
        &mut self,
        bench: &Bench,
        step: &Step,
        answer: &Answer,
        model: &Model,
    ) -> Result<(), Failure> {
        while self.nonces.len() < model.nonces {
            self.nonces.push(Nonce::random()?);
        }
        match *step {
            Step::Claim { .. } => self.claim(bench, step, answer, model).await?,
            Step::Purge { limit } => {
                let purged = bench.store().purge(limit).await?;
                let Answer::Purged { at_most, all } = *answer else {
                    return differs(answer, &purged);
                };
                let right = purged.removed <= at_most && !(all && purged.more);
                ensure!(
                    right || !bench.is_exclusive(),
                    "wanted {answer:?}, found {purged:?}"
                );
            }
            Step::List { state, lapsed } => {
                let listed = self.list(bench, state, lapsed).await?;
                ensure_eq!(Answer::Listed(listed), *answer, "listing");
            }
            Step::Wait { identity, back } => {
                let token = OneToken::genuine(back);
                let fence = self.token(identity, token).fence;
                let digest = self.identities[identity].digest();
                let waited = bench.store().wait(digest, fence, Duration::ZERO).await?;
                let right = match answer {
                    Answer::Waited(Some(changed)) => *changed == (waited == Waited::Changed),
                    _ => true,
                };
                ensure!(right, "wanted {answer:?}, found {waited:?}");
            }
            Step::Advance { by } => bench.pass(Duration::from_micros(by)).await,
            _ => self.fenced(bench, step, answer).await?,
        }
        for identity in 0..IDENTITIES {
            self.compare(bench, identity, model).await?;
        }
        Ok(())
    }

    // A token by how many claims back it was, before the step at hand.
    fn token(&self, identity: usize, token: OneToken) -> Token {
        let tokens = &self.tokens[identity];
        let number = tokens.len().checked_sub(token.back + 1);
        let mut found = number.map_or(
            Token {
                fence: Fence(1),
                nonce: Nonce::from_bytes([1; 16]),
            },
            |number| tokens[number],
        );
        if token.other_nonce {
            let mut bytes = *found.nonce.as_bytes();
            bytes[0] ^= 1;
            found.nonce = Nonce::from_bytes(bytes);
        }
        if token.other_fence {
            // Far above all that a run can reach.
            found.fence.0 += 1 << 52;
        }
        found
    }

    // Remembers a new token, and wants its fence to be above all before it.
    fn issued(&mut self, identity: usize, claim: usize, token: Token) -> Result<(), Failure> {
        let tokens = &mut self.tokens[identity];
        if let Some(known) = tokens.get(claim) {
            ensure_eq!(token, *known, "token of a claim sent again");
            return Ok(());
        }
        if let Some(last) = tokens.last() {
            ensure!(
                token.fence > last.fence,
                "the fence went from {} to {}",
                last.fence,
                token.fence
            );
        }
        tokens.push(token);
        Ok(())
    }

    async fn claim(
        &mut self,
        bench: &Bench,
        step: &Step,
        answer: &Answer,
        model: &Model,
    ) -> Result<(), Failure> {
        let &Step::Claim {
            identity,
            again,
            fingerprint,
            lease,
            on_lost,
        } = step
        else {
            return Ok(());
        };
        let tokens = &self.tokens[identity];
        let earlier = again.and_then(|back| tokens.get(tokens.len().checked_sub(back + 1)?));
        let fresh = self.nonces[model.nonces.saturating_sub(1)];
        let request = ClaimRequest::new(
            earlier.map_or(fresh, |token| token.nonce),
            Fingerprint::of(&[fingerprint]),
            Duration::from_micros(lease),
        )
        .with_on_lost(on_lost)
        .with_note(note_of(fingerprint));
        let claim = bench.store().claim(&self.identities[identity], &request);
        let found = claim.await?;
        let fence_of = |claim: usize| tokens.get(claim).map(|t| t.fence);
        let right = match (answer, &found) {
            (
                Answer::Acquired {
                    claim,
                    attempt,
                    since,
                    is_repeated,
                },
                Claim::Acquired(acquired),
            ) => {
                ensure_eq!(acquired.token.nonce, request.nonce, "nonce");
                ensure_eq!(acquired.attempt, *attempt, "attempt");
                ensure_eq!(acquired.is_repeated, *is_repeated, "whether it is repeated");
                let began = *self
                    .began
                    .get_or_insert_with(|| acquired.since.as_micros().saturating_sub(*since));
                let since = Timestamp::from_micros(began + since);
                ensure_eq!(acquired.since, since, "beginning of the record");
                return self.issued(identity, *claim, acquired.token);
            }
            (
                Answer::InFlight { claim, remaining },
                Claim::InFlight {
                    fence,
                    remaining: left,
                },
            ) => fence_of(*claim) == Some(*fence) && remaining == left,
            (
                Answer::Completed { outcome, remaining },
                Claim::Completed {
                    outcome: kept,
                    remaining: left,
                },
            ) => *kept == outcome_of(*outcome) && remaining == left,
            (Answer::Unknown { claim }, Claim::Unknown { fence }) => {
                fence_of(*claim) == Some(*fence)
            }
            (Answer::Mismatch, Claim::Mismatch) | (Answer::Expired, Claim::Expired) => true,
            _ => false,
        };
        if right {
            return Ok(());
        }
        differs(answer, &found)
    }

    async fn fenced(&mut self, bench: &Bench, step: &Step, answer: &Answer) -> Result<(), Failure> {
        let store = bench.store();
        let digest = |identity: usize| self.identities[identity].digest();
        let found = match *step {
            Step::Renew {
                identity,
                token,
                lease,
            } => {
                let token = self.token(identity, token);
                let lease = Duration::from_micros(lease);
                store.renew(digest(identity), &token, lease).await?
            }
            Step::Complete {
                identity,
                token,
                outcome,
                replay,
                tombstone,
            } => {
                let token = self.token(identity, token);
                let (outcome, kept) = (outcome_of(outcome), retention(replay, tombstone));
                let done = store.complete(digest(identity), &token, &outcome, kept);
                done.await?
            }
            Step::KeepStep {
                identity,
                token,
                behind,
                name,
            } => {
                let token = self.token(identity, token);
                let step = step_of(name)?;
                let entry = store.get(digest(identity)).await?;
                let progress = entry.map_or(Progress::EMPTY, |entry| entry.record.progress);
                let end = progress.as_bytes().len();
                let kept = end.saturating_sub(behind * length_of_last(&progress));
                store
                    .keep_step(digest(identity), &token, &step, kept)
                    .await?
            }
            Step::Abandon { identity, token } => {
                let token = self.token(identity, token);
                store.abandon(digest(identity), &token).await?
            }
            Step::MarkUnknown { identity, token } => {
                let token = self.token(identity, token);
                store.mark_unknown(digest(identity), &token).await?
            }
            Step::Resolve {
                identity,
                back,
                happened,
                replay,
                tombstone,
            } => {
                let token = OneToken::genuine(back);
                let verdict = happened.map_or(Verdict::DidNotHappen, |outcome| Verdict::Happened {
                    outcome: outcome_of(outcome),
                    retention: retention(replay, tombstone),
                });
                let nonce = match answer {
                    Answer::Resolved { .. } => self.nonces.last().copied(),
                    // One that resolved before would be the same resolution sent again.
                    _ => None,
                };
                let resolution = Resolution {
                    verdict,
                    by: "model".into(),
                    reason: "chance".into(),
                    fence: self.token(identity, token).fence,
                    nonce: nonce.map_or_else(Nonce::random, Ok)?,
                };
                let found = store.resolve(digest(identity), &resolution).await?;
                if let (Answer::Resolved { claim }, Fenced::Applied) = (answer, found) {
                    let token = bench.entry(digest(identity)).await?.record.token;
                    ensure_eq!(token.nonce, resolution.nonce, "nonce of the resolution");
                    self.issued(identity, *claim, token)?;
                }
                found
            }
            _ => return Ok(()),
        };
        let right = match (answer, found) {
            (Answer::Applied | Answer::Resolved { .. }, Fenced::Applied)
            | (Answer::PastRetention(None), Fenced::Applied)
            | (Answer::PastRetention(_), Fenced::Refused(Refusal::Missing)) => true,
            (
                Answer::Refused(wanted) | Answer::PastRetention(Some(wanted)),
                Fenced::Refused(found),
            ) => *wanted == found,
            _ => false,
        };
        if right {
            return Ok(());
        }
        differs(answer, &found)
    }

    async fn list(
        &self,
        bench: &Bench,
        state: crate::StateKind,
        lapsed: bool,
    ) -> Result<Vec<usize>, Failure> {
        let mut after: Option<Cursor> = None;
        let mut listed = Vec::new();
        loop {
            let query = ListQuery {
                lapsed,
                after,
                limit: 2,
                ..ListQuery::new(state)
            };
            let page = bench.store().list(&query).await?;
            for entry in &page.entries {
                let of = |identity: &Identity| *identity.digest() == entry.label.digest;
                listed.extend(self.identities.iter().position(of));
            }
            after = page.next;
            if after.is_none() {
                listed.sort_unstable();
                return Ok(listed);
            }
        }
    }

    // Compares a stored record with the model's.
    async fn compare(
        &mut self,
        bench: &Bench,
        identity: usize,
        model: &Model,
    ) -> Result<(), Failure> {
        let found = bench
            .store()
            .get(self.identities[identity].digest())
            .await?;
        let (row, record) = match (model.standing(identity), found) {
            (None, None) => return Ok(()),
            (Some(row), Some(entry)) => (row, entry.record),
            (wanted, found) => {
                return Err(Failure::new(format!(
                    "identity {identity}: wanted {wanted:?}, found {found:?}"
                )));
            }
        };
        let began = *self
            .began
            .get_or_insert_with(|| record.claimed_at.as_micros().saturating_sub(row.claimed));
        let wanted = expected(row, began, self.tokens[identity][row.claim], &record)?;
        ensure_eq!(record, wanted, "record of identity {identity}");
        Ok(())
    }
}

/// The record that a row of the model stands for.
fn expected(row: &Row, began: u64, token: Token, found: &Record) -> Result<Record, Failure> {
    let at = |micros: u64| Timestamp::from_micros(began + micros);
    let or_never = |micros: Option<u64>| micros.map_or(Timestamp::MAX, at);
    Ok(Record {
        fingerprint: Fingerprint::of(&[row.fingerprint]),
        token,
        attempt: row.attempt,
        state: match row.phase {
            Phase::Running => State::InFlight,
            Phase::Lost => State::Unknown,
            Phase::Done(outcome) => State::Completed(outcome_of(outcome)),
            Phase::Free => State::Released,
        },
        created_at: at(row.created),
        claimed_at: at(row.claimed),
        lease_until: at(row.lapses),
        settled_at: row.settled.map(at),
        expires_at: or_never(row.expires),
        purge_at: or_never(row.gone),
        // Who resolved it is no part of the model; the suite's own cases look at that.
        resolved: found.resolved.clone(),
        progress: progress_of(&row.steps)?,
        note: note_of(row.fingerprint),
    })
}

/// What a claim with this fingerprint says of its request; some say nothing.
fn note_of(fingerprint: u8) -> Note {
    let said = (fingerprint == 0).then(|| ("request", fingerprint.to_string()));
    Note::new(said)
}

fn step_of(name: u8) -> Result<FinishedStep, Failure> {
    if name == MARK {
        return Ok(FinishedStep::in_transaction());
    }
    FinishedStep::new("step", &[name]).map_err(|e| Failure::new(e.to_string()))
}

// Only the mark ends in so many zeros: a step, in its name's number.
fn length_of_last(progress: &Progress) -> usize {
    let mark = FinishedStep::in_transaction();
    match progress.as_bytes() {
        kept if kept.ends_with(mark.as_bytes()) => mark.as_bytes().len(),
        _ => 2 + "step".len() + 4 + 1,
    }
}

fn progress_of(names: &[u8]) -> Result<Progress, Failure> {
    names.iter().try_fold(Progress::EMPTY, |progress, name| {
        let next = progress.with(&step_of(*name)?);
        next.map_err(|e| Failure::new(e.to_string()))
    })
}

fn outcome_of(name: u8) -> Outcome {
    match name {
        0 => Outcome::void(),
        1 => Outcome::success(b"one"),
        _ => Outcome::failure(&[name; 40]),
    }
}

fn retention(replay: u64, tombstone: u64) -> Retention {
    let replay = Retention::new(Duration::from_micros(replay));
    replay.with_tombstone(Duration::from_micros(tombstone))
}

#[track_caller]
fn differs<T>(wanted: &Answer, found: &dyn std::fmt::Debug) -> Result<T, Failure> {
    Err(Failure::new(format!("wanted {wanted:?}, found {found:?}")))
}
