//! The port to a store: each protocol step is one atomic call.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use subtle::ConstantTimeEq as _;

use crate::record::{Record, StateKind};
use crate::{
    Fingerprint, FinishedStep, Identity, IdentityDigest, Outcome, Scope, StoreError, Timestamp,
};

/// What a store call answers.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

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

// One call of the system for 64 nonces.
const POOL_BYTES: usize = 1024;

/// Random bytes that this thread has in hand.
struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

impl Pool {
    fn take(&mut self) -> Result<[u8; 16]> {
        if self.used == self.bytes.len() {
            fill(&mut self.bytes)?;
            self.used = 0;
        }
        let mut taken = [0; 16];
        let end = self.used + taken.len();
        // What was given out is not kept.
        taken.swap_with_slice(&mut self.bytes[self.used..end]);
        self.used = end;
        Ok(taken)
    }
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) };
}

fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| {
        StoreError::new(
            crate::StoreErrorKind::NotApplied,
            "the system gave no random bytes",
        )
        .with_source(e)
    })
}

impl Nonce {
    /// A fresh nonce from the operating system's generator.
    ///
    /// The system is asked once for many nonces. A process that is copied while it runs (a fork,
    /// a virtual machine's snapshot) takes what is left of them along: the wall clock is mixed into
    /// each, so that copies do not make the same ones.
    ///
    /// # Errors
    /// [`NotApplied`](crate::StoreErrorKind::NotApplied) where the system has no randomness.
    pub fn random() -> Result<Self> {
        let taken = POOL.try_with(|pool| pool.borrow_mut().take());
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
    /// Answer "unknown" until somebody resolves it.
    #[default]
    Hold,
    /// Answer "unknown", and let the caller ask its reconciler. For the store the same as `Hold`.
    Reconcile,
}

/// What a claim brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Names the attempt.
    pub nonce: Nonce,
    /// Digest of what is asked, saved with the claim (R3).
    pub fingerprint: Fingerprint,
    /// How long the claim is held without renewal.
    pub lease: Duration,
    /// What to do with a lapsed lease, decided in the same atomic step.
    pub on_lost: OnLost,
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
    const HOUR: Duration = Duration::from_hours(1);

    /// Payments: 7 days.
    pub const PAYMENT: Self = Self::new(Self::HOUR.saturating_mul(24 * 7));
    /// Orders: 24 hours.
    pub const ORDER: Self = Self::new(Self::HOUR.saturating_mul(24));
    /// E-mails: 1 hour.
    pub const EMAIL: Self = Self::new(Self::HOUR);
    /// API calls: 5 minutes.
    pub const API: Self = Self::new(Duration::from_mins(5));
    /// Webhooks: 7 days.
    pub const WEBHOOK: Self = Self::new(Self::HOUR.saturating_mul(24 * 7));
    /// Deduplicated events: 30 days.
    pub const EVENT: Self = Self::new(Self::HOUR.saturating_mul(24 * 30));

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
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The caller owns the identity until it settles the claim or the lease lapses.
    Acquired(Acquired),
    /// Another attempt holds the lease.
    InFlight {
        /// The other attempt's fence, for [`Store::wait`].
        fence: Fence,
        /// How long its lease lasts if it is not renewed.
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
        /// The attempt's fence, for [`Store::resolve`].
        fence: Fence,
    },
    /// The identity was first used with another request. Nothing was changed.
    Mismatch,
    /// The outcome's retention ended, and its tombstone says so.
    Expired,
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
    /// There is no record: its retention ended and it was purged.
    #[error("there is no record of this identity")]
    Missing,
    /// The token is not the current one: another attempt took over, or somebody resolved it.
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

/// What somebody found out about an unknown attempt.
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
}

/// A decision about an unknown record, by an operator or a reconciler.
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

/// Whether a wait ended because of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// The record may have changed: claim again.
    Changed,
    /// The time ran out without a change.
    TimedOut,
}

/// How a record is named to operators. The whole key is not among it (R12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// What the store looks up.
    pub digest: IdentityDigest,
    /// Who and what the key belongs to.
    pub scope: Scope,
    /// What is done.
    pub operation: Box<str>,
    /// The start of the key.
    pub key_hint: Box<str>,
}

impl From<&Identity> for Label {
    fn from(identity: &Identity) -> Self {
        Self {
            digest: *identity.digest(),
            scope: identity.scope().clone(),
            operation: identity.operation().into(),
            key_hint: identity.key().hint().into(),
        }
    }
}

/// A record with its label, as a store shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Whose it is.
    pub label: Label,
    /// What the protocol knows of it.
    pub record: Record,
}

/// Where a listing goes on: opaque, made by one page for the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub Box<[u8]>);

/// Which records to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// Records in this state.
    pub state: StateKind,
    /// Among those in flight, only the ones past their lease.
    pub lapsed: bool,
    /// Go on after an earlier page.
    pub after: Option<Cursor>,
    /// At most this many; a store may answer fewer and still give a cursor.
    pub limit: usize,
}

impl ListQuery {
    /// The first page of the records in this state, 100 at most.
    pub const fn new(state: StateKind) -> Self {
        Self {
            state,
            lapsed: false,
            after: None,
            limit: 100,
        }
    }
}

/// A page of a listing. Records that change while it is read may be missed or seen once more;
/// those that stand still are seen exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The records.
    pub entries: Vec<Entry>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

/// What a purge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purged {
    /// How many records were removed.
    pub removed: usize,
    /// Whether the bound stopped it: call again.
    pub more: bool,
}

/// What an acknowledged step survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Nothing: records live as long as the process.
    Process,
    /// A crash of the store's process, but not a loss of power.
    Crash,
    /// A loss of power: on disk before it is acknowledged.
    Power,
    /// The loss of a node: on several before it is acknowledged.
    Replicated,
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The kind of store, as in its URL.
    pub store: &'static str,
    /// The durability class that its settings reach.
    pub durability: Durability,
    /// What an operator should know, as sentences.
    pub warnings: Vec<String>,
}

/// A store of records.
///
/// Every method is one atomic step in the store. There are no optional methods: every store does
/// all of it, and passes every case of the conformance suite. The store's own clock decides about
/// leases and retention (R6). All methods may be called from many tasks at once.
///
/// An error of kind [`Unknown`](crate::StoreErrorKind::Unknown) means that the step may have
/// happened. Calling again with the same nonce or token is then right: `claim` answers `Acquired`
/// to the nonce that holds the claim, `complete`, `keep_step`, `abandon` and `mark_unknown` answer
/// `Applied` where they were done before with the same token (and outcome or step), and `resolve`
/// where it was done before with the same nonce.
///
/// A record past its retention counts as gone for claims and reads. Fenced steps on it may still
/// find it until it is purged, and answer `Applied` or `Settled` where they would answer `Missing`
/// afterwards; they never bring it back.
///
/// # Cancellation
/// Dropping a returned future may leave the step done or not done, as with a lost answer.
pub trait Store: Send + Sync + 'static {
    /// Claims an identity. Of any number of concurrent claims exactly one is acquired (R1).
    fn claim(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Claim>> + Send;

    /// Prolongs the lease to `lease` from now, by the store's clock. Never shortens it.
    fn renew(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        lease: Duration,
    ) -> impl Future<Output = Result<Fenced>> + Send;

    /// Records the outcome; from the answer on every claim sees it until retention ends (R5).
    fn complete(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        outcome: &Outcome,
        retention: Retention,
    ) -> impl Future<Output = Result<Fenced>> + Send;

    /// Keeps the result of a finished step of the attempt, behind the `kept` bytes of the steps
    /// before it. The next attempt reads them with [`get`](Self::get): they stay through lapses,
    /// takeovers and releases, until the record is completed.
    fn keep_step(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        step: &FinishedStep,
        kept: usize,
    ) -> impl Future<Output = Result<Fenced>> + Send;

    /// Gives the identity back: the attempt had no effect, or none beyond its finished steps.
    fn abandon(
        &self,
        identity: &IdentityDigest,
        token: &Token,
    ) -> impl Future<Output = Result<Fenced>> + Send;

    /// Says that the attempt may have had its effect and that nobody will record it.
    fn mark_unknown(
        &self,
        identity: &IdentityDigest,
        token: &Token,
    ) -> impl Future<Output = Result<Fenced>> + Send;

    /// Ends an unknown or lapsed record by a decision from outside, if it still has the fence that
    /// the resolution names.
    fn resolve(
        &self,
        identity: &IdentityDigest,
        resolution: &Resolution,
    ) -> impl Future<Output = Result<Fenced>> + Send;

    /// Reads one record. Purged and purgeable records are not there.
    fn get(&self, identity: &IdentityDigest) -> impl Future<Output = Result<Option<Entry>>> + Send;

    /// Lists records by state.
    fn list(&self, query: &ListQuery) -> impl Future<Output = Result<Page>> + Send;

    /// Removes at most `limit` records whose retention (and tombstone) ended.
    fn purge(&self, limit: usize) -> impl Future<Output = Result<Purged>> + Send;

    /// Returns once the record may no longer be in flight under `fence`, or after `timeout`. At
    /// once where it already is not. Pushed by stores that can, polled with back-off otherwise.
    ///
    /// A lease that lapses is no change of the record: bound the wait by the `remaining` of
    /// [`Claim::InFlight`], and claim again.
    fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> impl Future<Output = Result<Waited>> + Send;

    /// Checks that the store can be reached and used, and says what its settings promise.
    fn probe(&self) -> impl Future<Output = Result<Probe>> + Send;

    /// Waits for steps under way and gives up resources. Later calls fail with
    /// [`Closed`](crate::StoreErrorKind::Closed). Closing twice is no error.
    fn close(&self) -> impl Future<Output = Result<()>> + Send;
}

/// A store that tests may empty. Separate from [`Store`] so that nothing else can.
pub trait Clear: Store {
    /// Removes every record, in flight or not. Refuses with
    /// [`Config`](crate::StoreErrorKind::Config) on a store that was not opened for tests, unless
    /// `force` is set.
    fn clear(&self, force: bool) -> impl Future<Output = Result<()>> + Send;
}
