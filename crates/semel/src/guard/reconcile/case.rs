//! What a reconciler is asked about.

use super::super::StepKey;
use super::super::steps::decode;
use crate::store::{Entry, Fence};
use crate::{IdentityDigest, Key, Note, Progress, Scope, Timestamp, Value};

/// An attempt whose outcome nobody recorded.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Case<'a> {
    /// The name of the operation, which its work and the services that it called were given
    /// ([`AttemptInfo::id`](crate::guard::AttemptInfo::id), `Idempotency-Id`): find the effect by it.
    pub id: &'a IdentityDigest,
    /// Who and what the key belongs to.
    pub scope: &'a Scope,
    /// The name of what is done.
    pub operation: &'a str,
    /// The whole key, where a caller in line brought it. In the background there is none: stores
    /// keep a hint only (R12).
    pub key: Option<&'a Key>,
    /// What a caller in line says that was asked for, beyond the identity: over HTTP method and
    /// path. In the background there is none.
    pub about: Option<&'a str>,
    /// What the attempt's claim said of its request: in the background too.
    pub note: &'a Note,
    /// The start of the key.
    pub key_hint: &'a str,
    /// The attempt's fence, as the services downstream have seen it.
    pub fence: Fence,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// When it was claimed, by the store's clock.
    pub claimed_at: Timestamp,
    /// When the identity was first claimed, by the store's clock.
    pub since: Timestamp,
    /// The steps that it, and attempts before it, finished.
    pub progress: &'a Progress,
    /// Which question this is, from 1: of the callers in line at this moment, or of the background
    /// since it found the record. The number comes again where the store did not take an answer.
    pub asked: u32,
}

impl<'a> Case<'a> {
    /// The case of a record that a store shows: for tests of a reconciler, and for tools.
    pub fn of(entry: &'a Entry) -> Self {
        let Entry { label, record } = entry;
        Self {
            id: &label.digest,
            scope: &label.scope,
            operation: &label.operation,
            key: None,
            about: None,
            note: &record.note,
            key_hint: &label.key_hint,
            fence: record.token.fence,
            attempt: record.attempt,
            claimed_at: record.claimed_at,
            since: record.created_at,
            progress: &record.progress,
            asked: 1,
        }
    }

    /// The key that the step of this name handed to the service it calls: that of the finished
    /// step, or else of the one that was under way when the attempt was lost. It follows from the
    /// digest, so it is known in the background too.
    pub fn step_key(&self, name: &str) -> StepKey {
        let finished = self.progress.steps().position(|(step, _)| step == name);
        let place = finished.unwrap_or_else(|| self.progress.steps().count());
        self.step_key_at(place, name)
    }

    /// The key of the step of this name at this place, from 0: where several have one name.
    pub fn step_key_at(&self, place: usize, name: &str) -> StepKey {
        StepKey::of(self.id, self.since, place, name)
    }

    /// What the finished step of this name returned. `None` where it is not finished, or not of
    /// this type.
    pub fn step_result<T: Value>(&self, name: &str) -> Option<T> {
        let (_, result) = self.progress.steps().find(|(step, _)| *step == name)?;
        decode(result)
    }
}
