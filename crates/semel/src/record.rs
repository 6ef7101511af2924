//! The state machine of one identity, as pure functions: no I/O, no clock, no store.
//!
//! ```text
//!               claim                    complete
//!   (nothing) ────────▶ in flight ─────────────────────▶ completed ──(retention)──▶ (nothing)
//!       ▲                │  ▲  │ lapsed + hold,             ▲  ▲
//!       │        abandon │  │  │ or mark_unknown            │  │ resolve: happened,
//!       │                ▼  │  └───────────▶ unknown ───────┘  │ or the attempt's own complete
//!       └──(60 s)── released │               │ │ └────────────┘
//!                        ▲   └──(retry)──────┘ │
//!                        └─── resolve: did not happen, or the attempt's own abandon
//! ```
//! What is completed can be amended from outside: another outcome, or another retention.
//!
//! Stores call these functions. Those on a server say the conditions of their frequent writes in the
//! server's language too, and the conformance suite and the model tests hold them to it.

use std::time::Duration;

pub use crate::protocol::StateKind;
use crate::protocol::{
    Acquired, Claim, ClaimRequest, Fence, OnLost, Refusal, Resolution, Retention, Token,
};
use crate::{Fingerprint, FinishedStep, Note, Outcome, OutcomeKind, Progress, Timestamp};

/// How long a released record is kept, so that the fence and the attempt's number go on from it.
pub const RELEASED_FOR: Duration = Duration::from_secs(60);

/// How long a released record is kept whose attempt had finished steps: they are not to run again.
pub const RELEASED_WITH_STEPS_FOR: Duration = Duration::from_hours(24 * 7);

/// The state of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// An attempt holds the lease, or held it until it lapsed.
    InFlight,
    /// The attempt may have had its effect, and nobody recorded it.
    Unknown,
    /// The outcome is replayed until retention ends.
    Completed(Outcome),
    /// The attempt ended without an effect; the next claim is free to run.
    Released,
}

impl State {
    /// The state's name.
    pub const fn kind(&self) -> StateKind {
        match self {
            Self::InFlight => StateKind::InFlight,
            Self::Unknown => StateKind::Unknown,
            Self::Completed(_) => StateKind::Completed,
            Self::Released => StateKind::Released,
        }
    }
}

/// Who resolved an unknown record, when and why, and what it was before and after. The latest one
/// stays with the record, whatever claims come after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Who decided.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// The fence of the attempt that it was about.
    pub fence: Fence,
    /// The state before: unknown, or in flight past its lease.
    pub before: StateKind,
    /// The state after: completed, or released.
    pub after: StateKind,
}

/// Everything that the protocol knows of one identity.
///
/// In this order in memory: what a replay reads comes first and is read with one or two lines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// Where the record stands.
    pub state: State,
    /// When replays end; [`Timestamp::MAX`] while the record is in flight or unknown (R8).
    pub expires_at: Timestamp,
    /// When the record may be purged: `expires_at`, or the end of its tombstone.
    pub purge_at: Timestamp,
    /// Digest of what was asked, saved with the claim (R3).
    pub fingerprint: Fingerprint,
    /// Which attempt this is, counted from 1 while the record lives.
    pub attempt: u32,
    /// The token of the latest claim, or of the resolution that ended it.
    pub token: Token,
    /// When the lease lapses, or lapsed.
    pub lease_until: Timestamp,
    /// When the identity was first claimed.
    pub created_at: Timestamp,
    /// When the latest attempt claimed it.
    pub claimed_at: Timestamp,
    /// When the record was completed, released or found unknown; or amended.
    pub settled_at: Option<Timestamp>,
    /// The latest resolution by an operator or a reconciler.
    pub resolved: Option<Box<Resolved>>,
    /// What its attempts have finished, until it is completed.
    pub progress: Progress,
    /// What the latest attempt's claim said of its request.
    pub note: Note,
}

impl Record {
    /// Whether purging may remove the record at `now`. In flight and unknown: never (R8).
    pub fn is_purgeable(&self, now: Timestamp) -> bool {
        now >= self.purge_at
    }

    /// Whether the record is in flight past its lease.
    pub fn is_lapsed(&self, now: Timestamp) -> bool {
        matches!(self.state, State::InFlight) && now >= self.lease_until
    }

    /// What its latest claim was answered.
    pub const fn acquired(&self) -> Acquired {
        Acquired {
            token: self.token,
            attempt: self.attempt,
            since: self.created_at,
            is_repeated: false,
        }
    }

    fn settled(&self, state: State, now: Timestamp, expires: Timestamp, purge: Timestamp) -> Self {
        Self {
            state,
            settled_at: Some(now),
            expires_at: expires,
            purge_at: purge,
            ..self.clone()
        }
    }

    fn completed(&self, outcome: &Outcome, retention: Retention, now: Timestamp) -> Self {
        let expires = now.after(retention.replay);
        let completed = self.settled(
            State::Completed(outcome.clone()),
            now,
            expires,
            expires.after(retention.tombstone),
        );
        Self {
            // The outcome says it all from now on.
            progress: Progress::EMPTY,
            ..completed
        }
    }

    fn released(&self, now: Timestamp) -> Self {
        let end = now.after(if self.progress.is_bare() {
            RELEASED_FOR
        } else {
            RELEASED_WITH_STEPS_FOR
        });
        self.settled(State::Released, now, end, end)
    }
}

/// What a claim answers, and the record to write where it changes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The answer to the caller.
    pub claim: Claim,
    /// The record to store in the same atomic step; `None` where nothing changes.
    pub write: Option<Record>,
}

impl Decision {
    const fn unchanged(claim: Claim) -> Self {
        Self { claim, write: None }
    }
}

/// Decides a claim (R1, R3, R7).
///
/// `floor` is a fence that the store gave out before, on this identity or any other: the new one
/// is above it, above the record's, and not below the clock's microseconds, so that it grows even
/// across expiry.
pub fn claim(
    current: Option<&Record>,
    request: &ClaimRequest,
    now: Timestamp,
    floor: Fence,
) -> Decision {
    let Some(record) = current.filter(|r| !r.is_purgeable(now)) else {
        return first(current, request, now, floor);
    };
    if let State::Released = record.state {
        // A copy of the claim that began the attempt, which is over: nobody waits for its answer.
        if record.token.nonce == request.nonce {
            return Decision::unchanged(Claim::InFlight {
                fence: record.token.fence,
                remaining: Duration::ZERO,
            });
        }
        // Nothing happened under it: another payload is welcome (conformance row 59). But where
        // steps are finished, something did.
        if !record.progress.is_bare() && record.fingerprint != request.fingerprint {
            return Decision::unchanged(Claim::Mismatch);
        }
        return next(record, request, now, floor);
    }
    if now >= record.expires_at {
        return Decision::unchanged(Claim::Expired);
    }
    if record.fingerprint != request.fingerprint {
        return Decision::unchanged(Claim::Mismatch);
    }
    match &record.state {
        State::Completed(outcome) => Decision::unchanged(Claim::Completed {
            outcome: outcome.clone(),
            remaining: now.until(record.expires_at),
        }),
        // The caller's own claim, sent again by a transport that lost the answer.
        State::InFlight if record.token.nonce == request.nonce => {
            Decision::unchanged(Claim::Acquired(Acquired {
                is_repeated: true,
                ..record.acquired()
            }))
        }
        State::InFlight if now < record.lease_until => Decision::unchanged(Claim::InFlight {
            fence: record.token.fence,
            remaining: now.until(record.lease_until),
        }),
        State::InFlight | State::Unknown if request.on_lost == OnLost::Retry => {
            next(record, request, now, floor)
        }
        State::InFlight => Decision {
            claim: Claim::Unknown {
                fence: record.token.fence,
            },
            write: Some(unknown(record, now)),
        },
        State::Unknown | State::Released => Decision::unchanged(Claim::Unknown {
            fence: record.token.fence,
        }),
    }
}

/// Acquires an identity that nobody used before, or whose record is past its retention.
fn first(
    previous: Option<&Record>,
    request: &ClaimRequest,
    now: Timestamp,
    floor: Fence,
) -> Decision {
    acquired(Record {
        fingerprint: request.fingerprint,
        token: Token {
            fence: next_fence(previous, floor, now),
            nonce: request.nonce,
        },
        attempt: 1,
        state: State::InFlight,
        created_at: now,
        claimed_at: now,
        lease_until: now.after(request.lease),
        settled_at: None,
        expires_at: Timestamp::MAX,
        purge_at: Timestamp::MAX,
        resolved: None,
        progress: Progress::EMPTY,
        note: request.note.clone(),
    })
}

/// Acquires an identity for the attempt after this record's.
fn next(record: &Record, request: &ClaimRequest, now: Timestamp, floor: Fence) -> Decision {
    acquired(Record {
        fingerprint: request.fingerprint,
        token: Token {
            fence: next_fence(Some(record), floor, now),
            nonce: request.nonce,
        },
        attempt: record.attempt.saturating_add(1),
        state: State::InFlight,
        claimed_at: now,
        lease_until: now.after(request.lease),
        settled_at: None,
        expires_at: Timestamp::MAX,
        purge_at: Timestamp::MAX,
        note: request.note.clone(),
        // When it began, what is finished, and who resolved it stay.
        ..record.clone()
    })
}

const fn acquired(record: Record) -> Decision {
    Decision {
        claim: Claim::Acquired(record.acquired()),
        write: Some(record),
    }
}

fn next_fence(previous: Option<&Record>, floor: Fence, now: Timestamp) -> Fence {
    let before = previous.map_or(floor, |r| r.token.fence.max(floor));
    Fence(before.0.saturating_add(1).max(now.as_micros()))
}

fn unknown(record: &Record, now: Timestamp) -> Record {
    record.settled(State::Unknown, now, Timestamp::MAX, Timestamp::MAX)
}

/// A write that a fenced step asks for: the new record, or nothing where it was done before.
pub type Transition = Result<Option<Record>, Refusal>;

/// A change of a record: every step of the protocol but the claim, as a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// By the attempt that holds this token (R4).
    Held(Token, Update),
    /// By a decision from outside, if the record still has the fence that the resolution names: ends
    /// one that is unknown or lapsed, or [amends](crate::store::Verdict::Amended) one that is completed.
    Resolve(Box<Resolution>),
}

/// What the attempt that holds a record's token changes in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// Prolongs the lease to this long from now. Never shortens it; one that lapsed and that nobody
    /// took over is renewed.
    Renew(Duration),
    /// Records the outcome (R5). An unknown record takes it too, however late it comes. The same
    /// outcome again changes nothing and is no error.
    Complete(Outcome, Retention),
    /// Keeps the result of a finished step behind the `kept` bytes of those before it. The same step
    /// at the same place changes nothing and is no error.
    KeepStep {
        /// The step and its result.
        step: FinishedStep,
        /// How many bytes the steps before it take.
        kept: usize,
    },
    /// Gives the identity back: the attempt had no effect, or none beyond its finished steps.
    Abandon,
    /// Says that the attempt may have had its effect and that nobody will record it.
    MarkUnknown,
}

impl Change {
    /// [`Update::Renew`].
    pub const fn renew(token: &Token, lease: Duration) -> Self {
        Self::Held(*token, Update::Renew(lease))
    }

    /// [`Update::Complete`].
    pub fn complete(token: &Token, outcome: &Outcome, retention: Retention) -> Self {
        Self::Held(*token, Update::Complete(outcome.clone(), retention))
    }

    /// The same completion with its outcome [omitted](crate::OutcomeKind::Omitted), for a store that cannot
    /// keep the whole; `None` of any other change.
    pub fn omitting(&self) -> Option<Self> {
        match self {
            Self::Held(token, Update::Complete(outcome, retention)) => {
                Some(Self::complete(token, &outcome.to_omitted(), *retention))
            }
            _ => None,
        }
    }

    /// [`Update::KeepStep`].
    pub fn keep_step(token: &Token, step: &FinishedStep, kept: usize) -> Self {
        let step = step.clone();
        Self::Held(*token, Update::KeepStep { step, kept })
    }

    /// [`Update::Abandon`].
    pub const fn abandon(token: &Token) -> Self {
        Self::Held(*token, Update::Abandon)
    }

    /// [`Update::MarkUnknown`].
    pub const fn mark_unknown(token: &Token) -> Self {
        Self::Held(*token, Update::MarkUnknown)
    }

    /// [`Change::Resolve`].
    pub fn resolve(resolution: &Resolution) -> Self {
        Self::Resolve(Box::new(resolution.clone()))
    }

    /// The fence that the record has to have.
    pub const fn fence(&self) -> Fence {
        match self {
            Self::Held(token, _) => token.fence,
            Self::Resolve(resolution) => resolution.fence,
        }
    }

    /// The outcome that it records, if any.
    pub const fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Held(_, Update::Complete(outcome, _)) => Some(outcome),
            Self::Held(..) => None,
            Self::Resolve(resolution) => match resolution.verdict.outcome() {
                Some((outcome, _)) => Some(outcome),
                None => None,
            },
        }
    }

    /// Whether it puts an omitted outcome in the place of one that was kept: what that was is to leave
    /// the store's files, too, at the next [purge](crate::Store::purge).
    pub fn erases(&self) -> bool {
        match self {
            Self::Resolve(resolution) => {
                let outcome = resolution.verdict.outcome();
                let is_omitted =
                    |(outcome, _): (&Outcome, _)| outcome.kind() == OutcomeKind::Omitted;
                resolution.verdict.amends() && outcome.is_some_and(is_omitted)
            }
            Self::Held(..) => false,
        }
    }

    /// Whether no attempt is in flight after it: those that wait for one are to be woken.
    pub const fn ends_attempt(&self) -> bool {
        !matches!(
            self,
            Self::Held(_, Update::Renew(_) | Update::KeepStep { .. })
        )
    }

    /// How it is refused inside a transaction where it was made before: what that transaction has
    /// written beside it would be there twice.
    pub const fn made_before(&self) -> Refusal {
        match self {
            Self::Held(_, Update::Complete(..)) => Refusal::Settled(StateKind::Completed),
            Self::Held(_, Update::KeepStep { .. }) => Refusal::OtherSteps,
            Self::Held(_, Update::Abandon) => Refusal::Settled(StateKind::Released),
            Self::Held(_, Update::MarkUnknown) => Refusal::Settled(StateKind::Unknown),
            // A renewal is none that was made before.
            Self::Held(_, Update::Renew(_)) | Self::Resolve(_) => Refusal::Superseded,
        }
    }

    /// Decides what becomes of a record. `floor` as for a [`claim`].
    ///
    /// # Errors
    /// [`Refusal`] where the record has another token or fence, or is in a state that the change does
    /// not begin from.
    pub fn decide(&self, record: Option<&Record>, now: Timestamp, floor: Fence) -> Transition {
        let record = record.ok_or(Refusal::Missing)?;
        match self {
            Self::Held(token, _) if record.token != *token => Err(Refusal::Superseded),
            Self::Held(_, update) => update.decide(record, now),
            Self::Resolve(resolution) => resolve(record, resolution, now, floor),
        }
    }
}

impl Update {
    fn decide(&self, record: &Record, now: Timestamp) -> Transition {
        match (self, &record.state) {
            (Self::Renew(lease), State::InFlight) => Ok(Some(Record {
                lease_until: now.after(*lease).max(record.lease_until),
                ..record.clone()
            })),
            (Self::Complete(outcome, retention), State::InFlight | State::Unknown) => {
                Ok(Some(record.completed(outcome, *retention, now)))
            }
            (Self::Complete(outcome, _), State::Completed(kept)) if kept == outcome => Ok(None),
            (Self::KeepStep { step, kept }, State::InFlight | State::Unknown) => {
                keep_step(record, step, *kept)
            }
            (Self::Abandon, State::InFlight | State::Unknown) => Ok(Some(record.released(now))),
            (Self::Abandon, State::Released) => Ok(None),
            (Self::MarkUnknown, State::InFlight) => Ok(Some(unknown(record, now))),
            (Self::MarkUnknown, State::Unknown) => Ok(None),
            _ => Err(settled(record)),
        }
    }
}

fn keep_step(record: &Record, step: &FinishedStep, kept: usize) -> Transition {
    let progress = record.progress.as_bytes();
    if progress.len() == kept {
        let progress = record.progress.stored_with(step);
        let progress = progress.ok_or(Refusal::OtherSteps)?;
        return Ok(Some(Record {
            progress,
            ..record.clone()
        }));
    }
    let same = progress
        .get(kept..)
        .is_some_and(|later| later.starts_with(step.as_bytes()));
    if same {
        Ok(None)
    } else {
        Err(Refusal::OtherSteps)
    }
}

const fn settled(record: &Record) -> Refusal {
    Refusal::Settled(record.state.kind())
}

/// Ends an unknown record, or one in flight past its lease, by a decision from outside, or amends a
/// completed one. The fence grows, so that the attempt it was about can no longer write. The same
/// resolution again, known by its nonce, changes nothing and is no error.
fn resolve(record: &Record, resolution: &Resolution, now: Timestamp, floor: Fence) -> Transition {
    if record.resolved.is_some() && record.token.nonce == resolution.nonce {
        return Ok(None);
    }
    if record.token.fence != resolution.fence {
        return Err(Refusal::Superseded);
    }
    let amends = resolution.verdict.amends();
    match record.state {
        // Nothing is brought back.
        State::Completed(_) if amends && record.is_purgeable(now) => return Err(Refusal::Missing),
        State::Completed(_) if amends => {}
        State::InFlight if !record.is_lapsed(now) => return Err(Refusal::Running),
        State::Unknown | State::InFlight if !amends => {}
        _ => return Err(settled(record)),
    }
    let mut next = match resolution.verdict.outcome() {
        Some((outcome, retention)) => record.completed(outcome, retention, now),
        None => record.released(now),
    };
    next.token = Token {
        fence: next_fence(Some(record), floor, now),
        nonce: resolution.nonce,
    };
    next.resolved = Some(Box::new(Resolved {
        by: resolution.by.clone(),
        reason: resolution.reason.clone(),
        at: now,
        fence: record.token.fence,
        before: record.state.kind(),
        after: next.state.kind(),
    }));
    Ok(Some(next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Nonce, Verdict};

    /// What stores, and what stands before them, go by without looking into a change themselves.
    #[test]
    fn a_change_says_what_it_is_about() {
        let token = Token {
            fence: Fence(7),
            nonce: Nonce::from_bytes([1; 16]),
        };
        let (answer, omitted) = (Outcome::success(b"placed"), Outcome::void().to_omitted());
        let resolution = |verdict| {
            Change::resolve(&Resolution {
                verdict,
                by: "ada".into(),
                reason: "as said".into(),
                fence: Fence(7),
                nonce: Nonce::from_bytes([2; 16]),
            })
        };
        let happened = |outcome: &Outcome| Verdict::Happened {
            outcome: outcome.clone(),
            retention: Retention::ORDER,
        };
        let amended = |outcome: &Outcome| Verdict::Amended {
            outcome: outcome.clone(),
            retention: Retention::ORDER,
        };
        let step = FinishedStep::new("reserve", b"7").unwrap();
        let settled = Refusal::Settled;
        // The outcome, whether it erases one, whether it ends an attempt, and how it is refused the second time.
        #[rustfmt::skip]
        let changes = [
            (Change::renew(&token, Duration::from_secs(1)), None, false, false, Refusal::Superseded),
            (Change::keep_step(&token, &step, 0), None, false, false, Refusal::OtherSteps),
            (Change::complete(&token, &answer, Retention::ORDER), Some(&answer), false, true, settled(StateKind::Completed)),
            (Change::complete(&token, &omitted, Retention::ORDER), Some(&omitted), false, true, settled(StateKind::Completed)),
            (Change::abandon(&token), None, false, true, settled(StateKind::Released)),
            (Change::mark_unknown(&token), None, false, true, settled(StateKind::Unknown)),
            (resolution(Verdict::DidNotHappen), None, false, true, Refusal::Superseded),
            (resolution(happened(&omitted)), Some(&omitted), false, true, Refusal::Superseded),
            (resolution(amended(&answer)), Some(&answer), false, true, Refusal::Superseded),
            (resolution(amended(&omitted)), Some(&omitted), true, true, Refusal::Superseded),
        ];
        for (change, outcome, erases, ends, twice) in changes {
            assert_eq!(change.fence(), Fence(7), "{change:?}");
            assert_eq!(change.outcome(), outcome, "{change:?}");
            assert_eq!(change.erases(), erases, "{change:?}");
            assert_eq!(change.ends_attempt(), ends, "{change:?}");
            assert_eq!(change.made_before(), twice, "{change:?}");
        }
    }
}
