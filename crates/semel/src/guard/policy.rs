//! How an operation handles duplicates, failures, panics, lost attempts and an unavailable store.

use std::time::Duration;

use crate::store::{OnLost, Retention};

/// What an error of the work means for the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnError {
    /// Nothing happened: the identity is released, and the next call runs again.
    Release,
    /// The failure is the operation's lasting answer: it is kept, and replayed like a success.
    Keep,
    /// Nobody knows whether the effect happened: the outcome is unknown.
    Unknown,
}

/// What a panic of the work means for the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnPanic {
    /// Nothing happened: the identity is released, and the next call runs again.
    Release,
    /// Nobody knows whether the effect happened: the outcome is unknown.
    Unknown,
}

/// What to do when the store cannot be reached (R9). A store that is full or damaged, or where others have the record
/// locked or keep changing it, can be reached: it always refuses. SQLite's lock is one for the whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStoreError {
    /// Refuse to run: nothing happens without protection.
    #[default]
    FailClosed,
    /// Run without protection, and say so in the answer.
    FailOpen,
}

/// The policies of one operation. What is not set is the careful choice for what the operation
/// protects:
///
/// | | an error | a panic | a lost attempt |
/// |---|---|---|---|
/// | effects anywhere | unknown | unknown | held |
/// | effects in a transaction or in steps | released | released | runs again |
///
/// A transaction that was not committed did not happen, and a step runs again under the same key.
/// Of effects elsewhere nobody knows. What is set holds for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub(crate) lease: Duration,
    pub(crate) retention: Retention,
    pub(crate) on_lost: Option<OnLost>,
    pub(crate) wait: Duration,
    pub(crate) on_error: Option<OnError>,
    pub(crate) on_panic: Option<OnPanic>,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) key_required: bool,
}

impl Policy {
    /// The shortest lease there is: a shorter one could lapse between two renewals.
    pub const MIN_LEASE: Duration = Duration::from_millis(30);

    /// For payments, and what else must not be done twice: a key is required, the answer is replayed for
    /// 7 days ([`Retention::PAYMENT`]), and a duplicate waits up to 2 s for the attempt in flight. All
    /// else is as careful as [`Policy::default`].
    pub fn payment() -> Self {
        Self::order().with_retention(Retention::PAYMENT)
    }

    /// [`Policy::payment`] for orders: replayed for 24 hours ([`Retention::ORDER`]).
    pub fn order() -> Self {
        Self::default()
            .with_key_required(true)
            .with_wait(Duration::from_secs(2))
    }

    /// [`Policy::default`] for events: they are remembered for longer than a broker may deliver them
    /// again ([`Retention::EVENT`], 30 days).
    pub fn event() -> Self {
        Self::default().with_retention(Retention::EVENT)
    }

    /// How long a claim is held without renewal; a running attempt renews it three times as often.
    /// 30 s unless set, [`MIN_LEASE`](Self::MIN_LEASE) at least.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Self::MIN_LEASE);
        self
    }

    /// How long an outcome is replayed. [`Retention::ORDER`] (24 h) unless set.
    #[must_use]
    pub const fn with_retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// What a claim does with a lapsed lease or an unknown outcome (R7).
    #[must_use]
    pub const fn with_on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = Some(on_lost);
        self
    }

    /// How long a duplicate waits for the attempt in flight, before it has to ask again. Not at all
    /// unless set.
    #[must_use]
    pub const fn with_wait(mut self, at_most: Duration) -> Self {
        self.wait = at_most;
        self
    }

    /// What an error means that [`Asked::classify`](super::Asked::classify) says nothing about.
    #[must_use]
    pub const fn with_on_error(mut self, on_error: OnError) -> Self {
        self.on_error = Some(on_error);
        self
    }

    /// What a panic means.
    #[must_use]
    pub const fn with_on_panic(mut self, on_panic: OnPanic) -> Self {
        self.on_panic = Some(on_panic);
        self
    }

    /// What happens without the store (R9). [`OnStoreError::FailClosed`] unless set.
    #[must_use]
    pub const fn with_on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.on_store_error = on_store_error;
        self
    }

    /// Whether calls without a key are refused (R13). They run plainly unless set.
    #[must_use]
    pub const fn with_key_required(mut self, required: bool) -> Self {
        self.key_required = required;
        self
    }

    /// This policy, with the lease and the retention of the other where those are longer: for records of
    /// which nobody knows by which of the two they were claimed.
    #[must_use]
    pub fn or_longer(mut self, other: Self) -> Self {
        self.lease = self.lease.max(other.lease);
        let (kept, other) = (&mut self.retention, other.retention);
        kept.replay = kept.replay.max(other.replay);
        kept.tombstone = kept.tombstone.max(other.tombstone);
        self
    }

    /// How long an outcome is replayed whose work chose so: not shorter than the lease, so that those who
    /// wait for it are answered.
    pub(crate) fn kept_for(&self, chosen: Option<Retention>) -> Retention {
        chosen.map_or(self.retention, |chosen| Retention {
            replay: chosen.replay.max(self.lease),
            ..chosen
        })
    }

    /// How long an outcome is replayed.
    pub const fn retention(&self) -> Retention {
        self.retention
    }

    /// What happens with a lost attempt, where it is set.
    pub const fn on_lost(&self) -> Option<OnLost> {
        self.on_lost
    }

    /// How long a duplicate waits for an attempt in flight.
    pub const fn wait(&self) -> Duration {
        self.wait
    }

    /// What happens without the store.
    pub const fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// Whether calls without a key are refused.
    pub const fn key_required(&self) -> bool {
        self.key_required
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            retention: Retention::ORDER,
            on_lost: None,
            wait: Duration::ZERO,
            on_error: None,
            on_panic: None,
            on_store_error: OnStoreError::default(),
            key_required: false,
        }
    }
}
