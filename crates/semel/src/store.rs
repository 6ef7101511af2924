//! The port to a store: each protocol step is one atomic call.

use std::future::Future;
use std::time::Duration;

use crate::record::{Change, Record};
use crate::{FinishedStep, Identity, IdentityDigest, Outcome, Scope, StoreError};

use crate::protocol::StateKind;
pub use crate::protocol::{
    Acquired, Claim, ClaimRequest, Fence, Fenced, Nonce, OnLost, Refusal, Resolution, Retention,
    Token, Verdict,
};

/// What a store call answers.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

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
            key_hint: identity.hint().into(),
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

/// Where a listing continues: opaque, made by one page for the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub Box<[u8]>);

/// Which records to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// Records in this state.
    pub state: StateKind,
    /// Among those in flight, only the ones past their lease. Says nothing of records in another state.
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

    /// Whether it is for lapsed records alone.
    pub const fn only_lapsed(&self) -> bool {
        self.lapsed && matches!(self.state, StateKind::InFlight)
    }
}

/// A page of a listing. Records that change while it is read may be missed or seen once more;
/// those that do not change are seen exactly once.
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
/// to the nonce that holds the claim, and `change` answers `Applied` where the same change was made
/// before under the same token, or by the same resolution.
///
/// A record past its retention counts as gone for claims and reads. Fenced steps on it may still
/// find it until it is purged, and answer `Applied` or `Settled` where they would answer `Missing`
/// afterwards; they never bring it back.
///
/// # Cancellation
/// Dropping a returned future may leave the step done or not done, as with a lost answer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no store of records",
    note = "open one: `semel::memory::MemoryStore`, or `SqliteStore::open(url)` and the others of `semel-stores`",
    note = "several guards may share one behind an `Arc`"
)]
pub trait Store: Send + Sync + 'static {
    /// Claims an identity. Of any number of concurrent claims exactly one is acquired (R1).
    fn claim(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Claim>> + Send;

    /// Changes a record, or says why not: [`Change::decide`] says which.
    fn change(
        &self,
        identity: &IdentityDigest,
        change: &Change,
    ) -> impl Future<Output = Result<Fenced>> + Send;

    /// Reads one record. Purged and purgeable records are not there.
    fn get(&self, identity: &IdentityDigest) -> impl Future<Output = Result<Option<Entry>>> + Send;

    /// Lists records by state.
    fn list(&self, query: &ListQuery) -> impl Future<Output = Result<Page>> + Send;

    /// Removes at most `limit` records whose retention (and tombstone) ended. A store that has its own
    /// files then also removes from them what was [erased](Change::erases) by it before.
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

/// Each [`Change`] as a method, on every store.
pub trait StoreExt: Store {
    /// Prolongs the lease to `lease` from now, by the store's clock. Never shortens it.
    fn renew(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        lease: Duration,
    ) -> impl Future<Output = Result<Fenced>> + Send {
        changed(self, identity, Change::renew(token, lease))
    }

    /// Records the outcome; from the answer on every claim sees it until retention ends (R5).
    fn complete(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        outcome: &Outcome,
        retention: Retention,
    ) -> impl Future<Output = Result<Fenced>> + Send {
        changed(self, identity, Change::complete(token, outcome, retention))
    }

    /// Keeps the result of a finished step of the attempt, behind the `kept` bytes of the steps
    /// before it. The next attempt reads them with [`get`](Store::get): they stay through lapses,
    /// takeovers and releases, until the record is completed.
    fn keep_step(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        step: &FinishedStep,
        kept: usize,
    ) -> impl Future<Output = Result<Fenced>> + Send {
        changed(self, identity, Change::keep_step(token, step, kept))
    }

    /// Gives the identity back: the attempt had no effect, or none beyond its finished steps.
    fn abandon(
        &self,
        identity: &IdentityDigest,
        token: &Token,
    ) -> impl Future<Output = Result<Fenced>> + Send {
        changed(self, identity, Change::abandon(token))
    }

    /// Says that the attempt may have had its effect and that nobody will record it.
    fn mark_unknown(
        &self,
        identity: &IdentityDigest,
        token: &Token,
    ) -> impl Future<Output = Result<Fenced>> + Send {
        changed(self, identity, Change::mark_unknown(token))
    }

    /// Ends an unknown or lapsed record by a decision from outside, or amends a completed one, if it
    /// still has the fence that the resolution names.
    fn resolve(
        &self,
        identity: &IdentityDigest,
        resolution: &Resolution,
    ) -> impl Future<Output = Result<Fenced>> + Send {
        changed(self, identity, Change::resolve(resolution))
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

async fn changed<S: Store + ?Sized>(
    store: &S,
    identity: &IdentityDigest,
    change: Change,
) -> Result<Fenced> {
    store.change(identity, &change).await
}

/// A store that tests may empty. Separate from [`Store`] so that nothing else can.
pub trait Clear: Store {
    /// Removes every record, in flight or not. Refuses with
    /// [`Config`](crate::StoreErrorKind::Config) on a store that was not opened for tests, unless
    /// `force` is set.
    fn clear(&self, force: bool) -> impl Future<Output = Result<()>> + Send;
}
