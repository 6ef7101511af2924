//! The words of the protocol, which the state machine and the stores' port share.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use chacha20::ChaCha12Rng;
use chacha20::rand_core::{Rng as _, SeedableRng as _};
use subtle::ConstantTimeEq as _;

use crate::{Fingerprint, Identity, Note, Outcome, StoreError, Timestamp};

/// The name of a [`State`](crate::State), without what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// See [`State::InFlight`](crate::State::InFlight).
    InFlight,
    /// See [`State::Unknown`](crate::State::Unknown).
    Unknown,
    /// See [`State::Completed`](crate::State::Completed).
    Completed,
    /// See [`State::Released`](crate::State::Released).
    Released,
}

impl StateKind {
    /// All of them, in the order of a record's life.
    pub const ALL: [Self; 4] = [
        Self::InFlight,
        Self::Unknown,
        Self::Completed,
        Self::Released,
    ];

    /// The name as operators see it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in-flight",
            Self::Unknown => "unknown",
            Self::Completed => "completed",
            Self::Released => "released",
        }
    }

    /// The state of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Number that grows with every new claim on an identity, also across expiry. Handed downstream,
/// it lets a service refuse a stale attempt. A store gives each number to one identity only, as far
/// as its page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// 128 random bits that name one attempt. Made once per attempt and used again when the transport
/// repeats a call, so that a winner never loses to its own first packet.
#[derive(Clone, Copy)]
pub struct Nonce([u8; 16]);

// As much from one key as `rand` takes: 64 KiB.
const NONCES_PER_KEY: u16 = 4096;

/// This thread's generator, under a key from the system: the system itself takes longer for 16 bytes
/// than the memory store for a replay.
struct Generator(Option<(ChaCha12Rng, u16)>);

impl Generator {
    fn take(&mut self) -> Result<[u8; 16], StoreError> {
        let (generator, left) = match &mut self.0 {
            Some(keyed) if keyed.1 > 0 => keyed,
            spent => {
                let mut key = [0; 32];
                fill(&mut key)?;
                spent.insert((ChaCha12Rng::from_seed(key), NONCES_PER_KEY))
            }
        };
        *left -= 1;
        let mut taken = [0; 16];
        generator.fill_bytes(&mut taken);
        Ok(taken)
    }
}

thread_local! {
    static GENERATOR: RefCell<Generator> = const { RefCell::new(Generator(None)) };
}

fn fill(bytes: &mut [u8]) -> Result<(), StoreError> {
    getrandom::fill(bytes).map_err(|e| {
        StoreError::new(
            crate::StoreErrorKind::NotApplied,
            "the system gave no random bytes",
        )
        .with_source(e)
    })
}

/// The bits of a nonce's first byte that are other ones in later rounds.
const ROUNDS: u8 = 0b1110;

impl Nonce {
    /// A fresh nonce: from a cryptographic generator of this thread, which gets a new key from the
    /// operating system every few thousand nonces.
    ///
    /// A process that is copied while it runs (a fork, a virtual machine's snapshot) takes the
    /// generator along: the wall clock is mixed into each nonce, so that copies do not make the same
    /// ones.
    ///
    /// # Errors
    /// [`NotApplied`](crate::StoreErrorKind::NotApplied) where the system has no randomness.
    pub fn random() -> Result<Self, StoreError> {
        #[cfg(feature = "simulation")]
        if let Some(bytes) = crate::simulation::bytes() {
            return Ok(Self(bytes));
        }
        let taken = GENERATOR.try_with(|generator| generator.borrow_mut().take());
        let mut bytes = match taken {
            Ok(bytes) => bytes?,
            // The thread is ending.
            Err(_) => {
                let mut bytes = [0; 16];
                fill(&mut bytes)?;
                bytes
            }
        };
        for (byte, time) in bytes
            .iter_mut()
            .zip(crate::time::wall_nanos().to_le_bytes())
        {
            *byte ^= time;
        }
        Ok(Self(bytes))
    }

    /// Of the same attempt, where it takes a lost one over and two names may have it.
    ///
    /// No other attempt has it: with two names nonces are the guard's own and random, also in the claim API,
    /// which uses its clients' with one name only. So it is another's as rarely as any random one.
    pub(crate) const fn taking_over(mut self) -> Self {
        self.0[0] ^= 1;
        self
    }

    /// Of the same attempt, where two names may have it, after it was given back so often under one of them: under
    /// its own nonce a released record is not acquired. Less than 8.
    pub(crate) const fn after(mut self, rounds: u8) -> Self {
        self.0[0] ^= (rounds << 1) & ROUNDS;
        self
    }

    /// Whether this is `first`, or that [after](Self::after) some rounds.
    pub(crate) fn is_of_rounds_from(&self, first: &Self) -> bool {
        self.0[0] | ROUNDS == first.0[0] | ROUNDS && self.0[1..] == first.0[1..]
    }

    /// From bytes read back from a store.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The nonce's bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

// Compared word by word: byte by byte takes as long as finding the record.
fn words(bytes: &[u8; 16]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks::<8>();
    [words[0], words[1]].map(u64::from_ne_bytes)
}

impl PartialEq for Nonce {
    fn eq(&self, other: &Self) -> bool {
        words(&self.0).ct_eq(&words(&other.0)).into()
    }
}

impl Eq for Nonce {}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(…)")
    }
}

/// Proof of one claim: the fence it was given and the nonce it was made with. Both are compared
/// (a fence alone could repeat in a store that forgets).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// The claim's epoch; handed downstream as the fence.
    pub fence: Fence,
    /// The attempt's nonce.
    pub nonce: Nonce,
}

/// What a claim does with a record whose lease lapsed, or whose outcome is unknown (R7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnLost {
    /// Take it over and run again: for operations whose effect is safe to repeat, or fenced.
    Retry,
    /// Answer "unknown" until it is resolved.
    #[default]
    Hold,
    /// Answer "unknown", and let the caller ask its reconciler. For the store the same as `Hold`.
    Reconcile,
}

/// What a claim brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Names the attempt.
    pub nonce: Nonce,
    /// Digest of what is asked, saved with the claim (R3).
    pub fingerprint: Fingerprint,
    /// How long the claim is held without renewal.
    pub lease: Duration,
    /// What to do with a lapsed lease, decided in the same atomic step.
    pub on_lost: OnLost,
    /// What operators find with the record. Written where the claim is acquired.
    pub note: Note,
    /// Whether a crash of the store may forget the claim. So it may where all effects of the attempt are
    /// in a transaction of the same database, which the crash then takes back as well, and where a lost
    /// attempt runs again anyway: a store that can does not wait for the disk. Everybody sees the claim
    /// all the same. Its fence may be given out again then.
    pub is_forgettable: bool,
}

impl ClaimRequest {
    /// A claim that holds a lost attempt's record, and has nothing to say to operators.
    pub const fn new(nonce: Nonce, fingerprint: Fingerprint, lease: Duration) -> Self {
        Self {
            nonce,
            fingerprint,
            lease,
            on_lost: OnLost::Hold,
            note: Note::EMPTY,
            is_forgettable: false,
        }
    }

    /// Whether it is by this claim of the identity that an attempt has its token; of two names also by a [later
    /// round](crate::secrets) of it.
    pub fn began(&self, identity: &Identity, token: &Token) -> bool {
        let found = &token.nonce;
        *found == self.nonce || identity.other().is_some() && found.is_of_rounds_from(&self.nonce)
    }

    /// Whether a crash of the store may forget it: see [`is_forgettable`](Self::is_forgettable).
    #[must_use]
    pub const fn forgettable(mut self, is_forgettable: bool) -> Self {
        self.is_forgettable = is_forgettable;
        self
    }

    /// What to do with a lapsed lease.
    #[must_use]
    pub const fn with_on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// What operators find with the record.
    #[must_use]
    pub fn with_note(mut self, note: Note) -> Self {
        self.note = note;
        self
    }
}

/// How long an outcome is kept, counted from its completion by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Retention {
    /// How long it is replayed: `[completed, completed + replay)`.
    pub replay: Duration,
    /// How much longer claims are answered "expired" instead of running anew.
    pub tombstone: Duration,
}

impl Retention {
    /// Payments: 7 days.
    pub const PAYMENT: Self = Self::new(Duration::from_hours(24 * 7));
    /// Orders: 24 hours.
    pub const ORDER: Self = Self::new(Duration::from_hours(24));
    /// E-mails: 1 hour.
    pub const EMAIL: Self = Self::new(Duration::from_hours(1));
    /// API calls: 5 minutes.
    pub const API: Self = Self::new(Duration::from_mins(5));
    /// Webhooks: 7 days.
    pub const WEBHOOK: Self = Self::new(Duration::from_hours(24 * 7));
    /// Deduplicated events: 30 days.
    pub const EVENT: Self = Self::new(Duration::from_hours(24 * 30));

    /// Replays for this long, without a tombstone.
    pub const fn new(replay: Duration) -> Self {
        Self {
            replay,
            tombstone: Duration::ZERO,
        }
    }

    /// The same with a tombstone that lasts `tombstone` longer than the replays.
    #[must_use]
    pub const fn with_tombstone(mut self, tombstone: Duration) -> Self {
        self.tombstone = tombstone;
        self
    }
}

/// A claim that was acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acquired {
    /// What completing, renewing and abandoning need.
    pub token: Token,
    /// Which attempt this is, from 1. Above 1: an earlier one was released, lapsed or resolved.
    pub attempt: u32,
    /// When this life of the identity began, by the store's clock: the record's `created_at`. The
    /// same in every attempt until the outcome's retention ended (takeovers, retries after a release
    /// that the store still knows); another one afterwards.
    pub since: Timestamp,
    /// Whether it was acquired before, under the same nonce: its answer was lost. Its lease began then.
    pub is_repeated: bool,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The caller owns the identity until it settles the claim or the lease lapses.
    Acquired(Acquired),
    /// Another attempt holds the lease.
    InFlight {
        /// The other attempt's fence, for [`Store::wait`](crate::Store::wait).
        fence: Fence,
        /// How long its lease lasts if it is not renewed; zero where [this claim is over](Self::is_over).
        remaining: Duration,
    },
    /// The operation ran; this is to be replayed.
    Completed {
        /// What was kept.
        outcome: Outcome,
        /// How much longer it will be replayed.
        remaining: Duration,
    },
    /// An attempt may have had its effect, and nobody recorded it.
    Unknown {
        /// The attempt's fence, for [`StoreExt::resolve`](crate::StoreExt::resolve).
        fence: Fence,
    },
    /// The identity was first used with another request. Nothing was changed.
    Mismatch,
    /// The outcome's retention ended, and its tombstone says so.
    Expired,
}

impl Claim {
    /// Whether the attempt that this claim began was given back: the claim is a copy, or its nonce is used again. It
    /// begins nothing (protocol rule R1), and nobody is to be waited for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::InFlight { remaining, .. } if remaining.is_zero())
    }
}

/// The answer to a fenced step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a refused step changed nothing (protocol rule R4)"]
pub enum Fenced {
    /// Done, as durable as the store promises; or done before with the same token.
    Applied,
    /// Nothing was changed.
    Refused(Refusal),
}

impl From<Refusal> for Fenced {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Why a fenced step changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no record: its retention ended and it was purged, or the claim was forgotten in a
    /// crash of the database, as a claim may be whose effects are in a transaction.
    #[error("there is no record of this identity")]
    Missing,
    /// The token is not the current one: another attempt took over, or it was resolved.
    #[error("a later claim or a resolution took the place of this attempt")]
    Superseded,
    /// The transition is not valid from this state.
    #[error("the record is already {}", .0.as_str())]
    Settled(StateKind),
    /// An attempt still holds its lease; resolving would decide over its head.
    #[error("an attempt still holds its lease")]
    Running,
    /// Other steps are kept than the caller knows of.
    #[error("the record keeps other finished steps than these")]
    OtherSteps,
}

/// What was found out about an unknown attempt, or is decided about a completed one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It had its effect, with this outcome.
    Happened {
        /// What to replay from now on.
        outcome: Outcome,
        /// For how long.
        retention: Retention,
    },
    /// It had no effect; the next claim may run.
    DidNotHappen,
    /// Nothing new: the record is completed, and what is replayed is another outcome from now on, or
    /// the same for longer. To remove an outcome, put an omitted one in its place, with no time to
    /// replay it and a tombstone.
    Amended {
        /// What to replay from now on.
        outcome: Outcome,
        /// For how long from now.
        retention: Retention,
    },
}

impl Verdict {
    /// The outcome that is replayed after it, and for how long.
    pub const fn outcome(&self) -> Option<(&Outcome, Retention)> {
        match self {
            Self::Happened { outcome, retention } | Self::Amended { outcome, retention } => {
                Some((outcome, *retention))
            }
            Self::DidNotHappen => None,
        }
    }

    /// Whether it is about a record that is completed; otherwise about one that is unknown, or in
    /// flight past its lease.
    pub const fn amends(&self) -> bool {
        matches!(self, Self::Amended { .. })
    }
}

/// A decision about a record from outside, by an operator or a reconciler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// What was found out.
    pub verdict: Verdict,
    /// Who decided.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// The fence of the attempt that was looked into; nothing changes if the record moved on.
    pub fence: Fence,
    /// Takes the place of the attempt's nonce.
    pub nonce: Nonce,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// More of them than one key gives, of which no bit is always the same.
    #[test]
    fn nonces_are_random() {
        let count = 2 * usize::from(NONCES_PER_KEY) + 1;
        let nonces: Vec<[u8; 16]> = (0..count).map(|_| Nonce::random().unwrap().0).collect();
        let bits = |of: fn(u8, u8) -> u8| {
            let joined =
                |one: [u8; 16], other: &[u8; 16]| std::array::from_fn(|at| of(one[at], other[at]));
            nonces.iter().fold(nonces[0], joined)
        };
        assert_eq!(bits(|one, other| one & other), [0; 16]);
        assert_eq!(bits(|one, other| one | other), [255; 16]);
        // The clock is mixed into the first half.
        let halves: HashSet<&[u8]> = nonces.iter().map(|nonce| &nonce[8..]).collect();
        assert_eq!(halves.len(), nonces.len());
    }

    #[test]
    fn who_takes_over_under_another_name_has_another_nonce() {
        for nonce in [[0; 16], [255; 16]].map(Nonce::from_bytes) {
            assert_ne!(nonce.taking_over(), nonce);
            assert_eq!(nonce.taking_over().taking_over(), nonce);
        }
    }

    #[test]
    fn the_rounds_of_a_claim_have_nonces_that_can_be_told_from_others() {
        for first in [[0; 16], [255; 16]].map(Nonce::from_bytes) {
            let rounds = (0..8).map(|rounds| first.after(rounds));
            let bytes: HashSet<_> = rounds.clone().map(|round| *round.as_bytes()).collect();
            assert_eq!(bytes.len(), 8);
            assert!(bytes.contains(first.as_bytes()));
            for round in rounds {
                assert!(round.is_of_rounds_from(&first));
                assert!(!round.taking_over().is_of_rounds_from(&first));
            }
            let mut other = *first.as_bytes();
            other[15] ^= 1;
            assert!(!Nonce::from_bytes(other).is_of_rounds_from(&first));
        }
    }

    #[test]
    fn retentions_last_as_long_as_their_names_say() {
        use Retention as R;
        let seconds = [R::API, R::EMAIL, R::ORDER, R::PAYMENT, R::WEBHOOK, R::EVENT]
            .map(|retention| retention.replay.as_secs());
        assert_eq!(seconds, [300, 3_600, 86_400, 604_800, 604_800, 2_592_000]);
    }
}
