//! One call: what is done once, and how it differs from the guard's policy.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{OnError, Policy};
use crate::store::{OnLost, Retention};
use crate::{Fingerprint, FinishedStep, Identity, Note};

type Classifier = dyn Fn(&dyn Any) -> Option<OnError> + Send + Sync;

/// One call of an operation: what is done once, what makes two calls the same, and how the call
/// differs from its guard's policy.
#[derive(Clone)]
pub struct Asked {
    pub(super) identity: Option<Identity>,
    pub(super) fingerprint: Fingerprint,
    pub(super) effects: Effects,
    /// The step that an attempt leaves which is released before its work began.
    pub(super) unbegun: Option<FinishedStep>,
    pub(super) about: Option<Box<str>>,
    pub(super) note: Note,
    pub(crate) overrides: Overrides,
    pub(super) classifier: Option<Arc<Classifier>>,
}

/// Where the effects of the work are. It decides what a lost attempt, an error and a panic mean
/// where the [`Policy`] does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effects {
    Anywhere,
    InSteps,
    InTransaction,
    /// In the transaction that the work is offered, if it takes it. The record says whether it did.
    Offered,
}

/// What one call changes of its guard's policy.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Overrides {
    pub(crate) policy: Option<Policy>,
    pub(crate) retention: Option<Retention>,
    pub(crate) replay_at_least: Duration,
    pub(crate) lease: Option<Duration>,
    pub(crate) key_required: Option<bool>,
}

impl Overrides {
    pub(crate) fn over(&self, guards: Policy) -> Policy {
        let mut policy = self.policy.unwrap_or(guards);
        policy.retention = self.retention.unwrap_or(policy.retention);
        policy.retention.replay = policy.retention.replay.max(self.replay_at_least);
        policy.key_required = self.key_required.unwrap_or(policy.key_required);
        policy.with_lease(self.lease.unwrap_or(policy.lease))
    }
}

impl Asked {
    /// The operation named by `identity`. A call with the same identity and another fingerprint is
    /// a mismatch (R3).
    pub fn new(identity: Identity, fingerprint: Fingerprint) -> Self {
        Self {
            identity: Some(identity),
            ..Self::unkeyed(fingerprint)
        }
    }

    /// A call without a key: it runs plainly, and no record is made (R13), unless the policy
    /// requires a key.
    pub fn unkeyed(fingerprint: Fingerprint) -> Self {
        Self {
            identity: None,
            fingerprint,
            effects: Effects::Anywhere,
            unbegun: None,
            about: None,
            note: Note::EMPTY,
            overrides: Overrides::default(),
            classifier: None,
        }
    }

    /// All effects of the work are in its steps. A lost attempt may then run again, and unless the
    /// policy says otherwise it does, under the same [step keys](super::StepKey). Once it gave out one
    /// of them, another request under the same key is a mismatch for seven days.
    #[must_use]
    pub const fn in_steps(self) -> Self {
        self.with_effects(Effects::InSteps)
    }

    /// The work is offered a transaction and may take it ([`Opening`](super::Opening)), for callers
    /// of [`Guard::begin`](super::Guard::begin). Unless the policy says otherwise, an attempt that
    /// took it and was lost runs again, and one that did not is held. An attempt counts as one that
    /// took it where an earlier one under the same record did.
    #[must_use]
    pub const fn transaction_offered(self) -> Self {
        self.with_effects(Effects::Offered)
    }

    pub(crate) const fn with_effects(mut self, effects: Effects) -> Self {
        self.effects = effects;
        self
    }

    pub(crate) fn with_unbegun(mut self, step: Option<FinishedStep>) -> Self {
        self.unbegun = step;
        self
    }

    /// This call's policy, in place of its guard's.
    #[must_use]
    pub const fn with_policy(mut self, policy: Policy) -> Self {
        self.overrides.policy = Some(policy);
        self
    }

    /// What is asked for in words, for a reconciler: see [`Case::about`](super::Case::about).
    #[must_use]
    pub fn about(mut self, about: impl Into<Box<str>>) -> Self {
        self.about = Some(about.into());
        self
    }

    /// What operators, and a reconciler in the background, find with the record: see [`Note`].
    #[must_use]
    pub fn with_note(mut self, note: Note) -> Self {
        self.note = note;
        self
    }

    /// Decides what each error means. Errors of another type than `E` get the policy's answer.
    ///
    /// ```
    /// # use semel::guard::{Asked, OnError};
    /// # use semel::{Fingerprint, Identity, Key, Scope};
    /// enum ChargeError { Declined, Busy, TimedOut }
    ///
    /// # fn asked(identity: Identity, fingerprint: Fingerprint) -> Asked {
    /// Asked::new(identity, fingerprint).classify(|error: &ChargeError| match error {
    ///     ChargeError::Declined => OnError::Keep,
    ///     ChargeError::Busy => OnError::Release,
    ///     ChargeError::TimedOut => OnError::Unknown,
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn classify<E: 'static>(
        mut self,
        classify: impl Fn(&E) -> OnError + Send + Sync + 'static,
    ) -> Self {
        let classify = move |error: &dyn Any| error.downcast_ref().map(&classify);
        self.classifier = Some(Arc::new(classify));
        self
    }

    /// The policy of this call on a guard with that of `guard`.
    pub fn policy(&self, guard: &Policy) -> Policy {
        self.overrides.over(*guard)
    }

    /// What is done once, where the call has a key.
    pub const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// What makes two calls the same.
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl From<(&Identity, Fingerprint)> for Asked {
    fn from((identity, fingerprint): (&Identity, Fingerprint)) -> Self {
        Self::new(identity.clone(), fingerprint)
    }
}

impl Effects {
    /// Whether an attempt that ended without a word may run again.
    pub(super) const fn on_lost(self) -> OnLost {
        match self {
            Self::InSteps | Self::InTransaction => OnLost::Retry,
            Self::Anywhere | Self::Offered => OnLost::Hold,
        }
    }

    /// Whether a crash of the store may forget the claim: it takes all effects back, and a lost attempt
    /// runs again anyway.
    pub(super) fn may_be_forgotten(self, policy: &Policy) -> bool {
        let on_lost = policy.on_lost.unwrap_or(self.on_lost());
        self == Self::InTransaction && on_lost == OnLost::Retry
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked")
            .field("identity", &self.identity)
            .field("effects", &self.effects)
            .finish_non_exhaustive()
    }
}
