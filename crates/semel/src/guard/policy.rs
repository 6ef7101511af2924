//! What an operation wants to happen when things do not go straight.

use std::time::Duration;

use crate::store::{OnLost, Retention};

/// What to do with a duplicate while an attempt is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InFlight {
    /// Answer "in flight" at once.
    #[default]
    Reject,
    /// Wait for the attempt's outcome, at most this long, and then answer "in flight".
    Wait(Duration),
}

/// What becomes of the identity when the operation answers with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// It is released: the next call runs again.
    #[default]
    Release,
    /// The failure is kept, and replayed like a success.
    Keep,
}

/// What becomes of the identity when the operation panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnPanic {
    /// It is released: the next call runs again.
    #[default]
    Release,
    /// It becomes unknown: the panic may have come after the effect.
    Unknown,
}

/// What to do when the store cannot be used (R9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStoreError {
    /// Refuse to run: nothing happens without protection.
    #[default]
    FailClosed,
    /// Run without protection, and say so in the answer.
    FailOpen,
}

/// The policies of one operation. `Policy::default()` is the careful choice in each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub(crate) lease: Duration,
    pub(crate) retention: Retention,
    pub(crate) on_lost: OnLost,
    pub(crate) in_flight: InFlight,
    pub(crate) on_failure: OnFailure,
    pub(crate) on_panic: OnPanic,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) key_required: bool,
}

impl Policy {
    /// The shortest lease there is: a shorter one could lapse between two renewals.
    pub const MIN_LEASE: Duration = Duration::from_millis(30);

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

    /// What a claim does with a lapsed lease or an unknown outcome (R7). [`OnLost::Hold`] unless
    /// set.
    #[must_use]
    pub const fn with_on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// What a duplicate in flight gets. [`InFlight::Reject`] unless set.
    #[must_use]
    pub const fn with_in_flight(mut self, in_flight: InFlight) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// What a failure leaves. [`OnFailure::Release`] unless set.
    #[must_use]
    pub const fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// What a panic leaves. [`OnPanic::Release`] unless set.
    #[must_use]
    pub const fn with_on_panic(mut self, on_panic: OnPanic) -> Self {
        self.on_panic = on_panic;
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

    /// How long a claim is held without renewal.
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// How long an outcome is replayed.
    pub const fn retention(&self) -> Retention {
        self.retention
    }

    /// What happens without the store.
    pub const fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// What a panic leaves.
    pub const fn on_panic(&self) -> OnPanic {
        self.on_panic
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
            on_lost: OnLost::default(),
            in_flight: InFlight::default(),
            on_failure: OnFailure::default(),
            on_panic: OnPanic::default(),
            on_store_error: OnStoreError::default(),
            key_required: false,
        }
    }
}
