//! The writes: each one `UpdateItem` under a condition.
//!
//! What a step writes is what `semel::record` says of a record as the condition wants it; only the
//! condition is said once more here.

use std::collections::HashMap;
use std::fmt::Write as _;

use aws_sdk_dynamodb::types::AttributeValue;
use semel::record::Update as Asked;
use semel::store::{ClaimRequest, OnLost, Token};
use semel::{FinishedStep, Identity, Progress, Record, State, StateKind, Timestamp};

use super::item::{
    self, ATTEMPT, CLAIMED, CREATED, EXPIRES, FENCE, FINGERPRINT, Item, KEY_HINT, LEASE,
    LEASE_UNTIL, NONCE, NOTE, OPERATION, OUTCOME, PK, PURGE, RENEWALS, RESOLVED, Row, SCOPE,
    SETTLED, STATE, STATUS, STEPS, STEPS_BYTES, TTL, number,
};

/// Whether no step is finished.
const BARE: &str = "(attribute_not_exists(#steps_bytes) OR #steps_bytes <= :bare)";

/// An update expression, its condition, and what both refer to.
#[derive(Debug, Clone, Default)]
pub(super) struct Update {
    set: String,
    remove: String,
    /// Under which condition.
    pub(super) condition: String,
    /// `#name` to name: some names are words of DynamoDB's own.
    pub(super) names: HashMap<String, String>,
    /// `:name` to value.
    pub(super) values: Item,
}

impl Update {
    /// `SET … REMOVE …`.
    pub(super) fn expression(&self) -> String {
        match (&*self.set, &*self.remove) {
            (set, "") => format!("SET {set}"),
            ("", remove) => format!("REMOVE {remove}"),
            (set, remove) => format!("SET {set} REMOVE {remove}"),
        }
    }

    fn name(&mut self, name: &str) {
        self.names.insert(format!("#{name}"), name.to_owned());
    }

    pub(super) fn value(&mut self, name: &str, value: AttributeValue) {
        self.values.insert(format!(":{name}"), value);
    }

    /// Sets an attribute to what an expression says of its value.
    pub(super) fn set_to(&mut self, name: &str, value: AttributeValue, expression: &str) {
        self.name(name);
        self.value(name, value);
        let comma = if self.set.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(self.set, "{comma}#{name} = {expression}");
    }

    pub(super) fn set(&mut self, name: &str, value: AttributeValue) {
        self.set_to(name, value, &format!(":{name}"));
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.name(name);
        let comma = if self.remove.is_empty() { "" } else { ", " };
        let _ = write!(self.remove, "{comma}#{name}");
    }

    /// "Never" is an attribute that is not there.
    pub(super) fn set_time(&mut self, name: &str, time: Timestamp) {
        if time == Timestamp::MAX {
            self.remove(name);
        } else {
            self.set(name, number(time.as_micros()));
        }
    }

    /// One more condition, which all others must hold with. Every `#name` in it is an attribute.
    pub(super) fn when(&mut self, condition: &str) {
        for word in condition.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '#') {
            if let Some(name) = word.strip_prefix('#') {
                self.name(name);
            }
        }
        if self.condition.is_empty() {
            self.condition.push_str(condition);
        } else {
            let _ = write!(self.condition, " AND {condition}");
        }
    }

    fn when_token(&mut self, token: &Token) {
        self.value("if_fence", number(token.fence.0));
        self.value("if_nonce", item::nonce(&token.nonce));
        self.when("#fence = :if_fence AND #nonce = :if_nonce");
    }

    /// Only if the record is as it was read. A record that changes without a new token changes its
    /// state or the number of its renewals.
    fn when_as(&mut self, row: &Row) {
        self.when_token(&row.record.token);
        self.value("if_state", item::state(row.record.state.kind()));
        self.value("if_renewals", number(row.renewals));
        self.when("#state = :if_state AND #renewals = :if_renewals");
    }

    fn when_state_in(&mut self, kinds: &[StateKind]) {
        let mut states = String::new();
        for (n, kind) in kinds.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            let _ = write!(states, "{comma}:from_{n}");
            self.value(&format!("from_{n}"), item::state(*kind));
        }
        self.when(&format!("#state IN ({states})"));
    }

    /// How long a released record is kept depends on whether steps are finished: a release is
    /// written only if that is as `record` has it.
    fn when_steps_as(&mut self, record: &Record) {
        if let State::Released = record.state {
            self.value("bare", number(Progress::BARE_BYTES as u64));
            self.when(if record.progress.is_bare() {
                BARE
            } else {
                "#steps_bytes > :bare"
            });
        }
    }

    fn remove_all(&mut self, names: &[&str]) {
        for name in names {
            self.remove(name);
        }
    }

    fn set_token(&mut self, token: &Token) {
        self.set(FENCE, number(token.fence.0));
        self.set(NONCE, item::nonce(&token.nonce));
    }

    /// What every claim that is acquired writes, but for the attempt's number and the creation.
    fn set_claim(&mut self, identity: &Identity, record: &Record, lease: u64) {
        self.set(STATE, item::state(StateKind::InFlight));
        self.set_token(&record.token);
        self.set(RENEWALS, number(0));
        self.set(FINGERPRINT, item::bytes(&record.fingerprint.to_bytes()));
        self.set(LEASE, number(lease));
        self.set_time(LEASE_UNTIL, record.lease_until);
        self.set_time(CLAIMED, record.claimed_at);
        self.set(SCOPE, item::scope(identity.scope()));
        self.set(OPERATION, item::text(identity.operation()));
        self.set(KEY_HINT, item::text(identity.hint()));
        match record.note.as_text() {
            "" => self.remove(NOTE),
            note => self.set(NOTE, item::text(note)),
        }
        // What is finished, and who resolved it, stay.
        self.remove_all(&[SETTLED, EXPIRES, PURGE, TTL, OUTCOME, STATUS]);
    }

    /// What the end of an attempt writes.
    fn set_settled(&mut self, record: &Record) {
        self.set(STATE, item::state(record.state.kind()));
        self.set_time(SETTLED, record.settled_at.unwrap_or(Timestamp::MAX));
        self.set_time(EXPIRES, record.expires_at);
        self.set_time(PURGE, record.purge_at);
        if record.purge_at == Timestamp::MAX {
            self.remove(TTL);
        } else {
            // Rounded up: never before the microsecond.
            let seconds = record.purge_at.as_micros().div_ceil(1_000_000);
            self.set(TTL, number(seconds));
        }
        if let State::Completed(outcome) = &record.state {
            self.set(OUTCOME, item::bytes(outcome.as_bytes()));
            self.set(STATUS, number(outcome.code().into()));
            self.remove_all(&[STEPS, STEPS_BYTES]);
        }
        if let Some(resolved) = &record.resolved {
            self.set_token(&record.token);
            self.set(RESOLVED, item::text(resolved.to_text()));
        }
    }
}

/// A claim that knows nothing of the record: acquires where there is none, where it was released,
/// and under `Retry` where it is unknown. `record` is what a first claim writes.
pub(super) fn claim(identity: &Identity, request: &ClaimRequest, record: &Record) -> Update {
    let mut update = Update::default();
    update.set_claim(identity, record, item::micros(request.lease));
    update.value("none", number(0));
    update.set_to(
        ATTEMPT,
        number(1),
        "if_not_exists(#attempt, :none) + :attempt",
    );
    update.set_to(
        CREATED,
        number(record.created_at.as_micros()),
        "if_not_exists(#created_us, :created_us)",
    );
    update.value("bare", number(Progress::BARE_BYTES as u64));
    update.value("released", item::state(StateKind::Released));
    let mut unknown = "";
    if request.on_lost == OnLost::Retry {
        update.value("unknown", item::state(StateKind::Unknown));
        unknown = " OR (#fence < :fence AND #state = :unknown AND #fingerprint = :fingerprint)";
    }
    update.when(&format!(
        "attribute_not_exists(#{PK}) \
         OR (#fence < :fence AND #state = :released AND #nonce <> :nonce AND #purge_us > :claimed_us \
         AND ({BARE} OR #fingerprint = :fingerprint)){unknown}"
    ));
    update
}

/// A claim's write of `record` in place of a row that was read: a takeover, or a claim on what is past its
/// retention.
pub(super) fn take_over(
    identity: &Identity,
    request: &ClaimRequest,
    row: &Row,
    record: &Record,
) -> Update {
    let mut update = Update::default();
    update.set_claim(identity, record, item::micros(request.lease));
    update.set(ATTEMPT, number(record.attempt.into()));
    update.set_time(CREATED, record.created_at);
    if record.attempt == 1 {
        // What was there is gone.
        update.remove_all(&[STEPS, STEPS_BYTES, RESOLVED]);
    }
    update.when_as(row);
    update
}

/// Ends or amends the record of a row that was read: a lapse found, or a resolution.
pub(super) fn settle_as(row: &Row, record: &Record) -> Update {
    let mut update = Update::default();
    update.set_settled(record);
    update.when_steps_as(record);
    update.when_as(row);
    update
}

/// What an attempt's own token asks for: `next` by `semel::record`, and `lease` as far as it is known.
pub(super) fn held(token: &Token, asked: &Asked, lease: u64, next: &Record) -> Update {
    match asked {
        Asked::Renew(length) => renew(token, item::micros(*length), next.lease_until, lease),
        Asked::KeepStep { step, kept } => keep_step(token, step, *kept),
        Asked::MarkUnknown => settle(token, &[StateKind::InFlight], next),
        Asked::Complete(..) | Asked::Abandon => {
            settle(token, &[StateKind::InFlight, StateKind::Unknown], next)
        }
    }
}

/// Prolongs the lease: to at least the length that it has, whatever that is.
fn renew(token: &Token, lease: u64, until: Timestamp, before: u64) -> Update {
    let mut update = Update::default();
    update.when_token(token);
    update.value("in_flight", item::state(StateKind::InFlight));
    update.when("#state = :in_flight");
    update.set_to(RENEWALS, number(1), "#renewals + :renewals");
    if before <= lease {
        update.set(LEASE, number(lease));
        update.set_time(LEASE_UNTIL, until);
        update.when("#lease_us <= :lease_us");
    } else {
        update.value(LEASE, number(lease));
        update.when("#lease_us > :lease_us");
    }
    update
}

/// Ends an attempt from one of these states, by its own token.
fn settle(token: &Token, from: &[StateKind], record: &Record) -> Update {
    let mut update = Update::default();
    update.when_token(token);
    update.when_state_in(from);
    update.when_steps_as(record);
    update.set_settled(record);
    update
}

/// Keeps a finished step behind `kept` bytes of those before it.
pub(super) fn keep_step(token: &Token, step: &FinishedStep, kept: usize) -> Update {
    let mut update = Update::default();
    update.when_token(token);
    update.when_state_in(&[StateKind::InFlight, StateKind::Unknown]);
    let list = AttributeValue::L(vec![item::bytes(step.as_bytes())]);
    if kept == 0 {
        update.when("attribute_not_exists(#steps)");
        update.set(STEPS, list);
    } else {
        update.value("kept", number(kept as u64));
        update.when("#steps_bytes = :kept");
        update.set_to(STEPS, list, "list_append(#steps, :steps)");
    }
    let bytes = kept.saturating_add(step.as_bytes().len());
    update.set(STEPS_BYTES, number(bytes as u64));
    update
}
