//! Records as the admin API shows them, in JSON. The command line reads the same.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel::guard::Signal;
use semel::record::Resolved;
use semel::store::{Durability, Entry, Probe};
use semel::{Outcome, OutcomeKind, Record, Service, State, StateKind, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::act::is_erased;
use super::filter::{Found, about_now};
use crate::events::Kept;

/// A record in a list. Times are the store's clock's, in RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = RecordSummary)]
pub struct Summary {
    /// Its name: the `Idempotency-Id` of the operation, 64 hexadecimal digits.
    pub id: String,
    /// `in-flight`, `unknown`, `completed` or `released`.
    pub state: String,
    /// Whether it is in flight past its lease, as far as this machine's clock can tell.
    pub lapsed: bool,
    /// The service that it belongs to.
    pub service: String,
    /// What is done.
    pub operation: String,
    /// Whom and what the key belongs to.
    pub scope: Vec<String>,
    /// How the key begins. Stores do not have the rest.
    pub key_hint: String,
    /// What its claim said of the request: texts with names.
    pub note: BTreeMap<String, String>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The number of the latest claim or resolution: an action is about it.
    pub fence: u64,
    /// When the identity was first claimed.
    pub created_at: Option<String>,
    /// When the latest attempt began.
    pub claimed_at: Option<String>,
    /// When its lease lapses, or lapsed.
    pub lease_until: Option<String>,
    /// When it was completed, released or found unknown.
    pub settled_at: Option<String>,
    /// When replays end; in flight and unknown: never.
    pub expires_at: Option<String>,
    /// How old it is by this machine's clock.
    pub age_seconds: u64,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Records)]
pub struct Page {
    /// The records; may be fewer than were asked for.
    pub records: Vec<Summary>,
    /// Where the next page begins; none at the end.
    pub next: Option<String>,
    /// How many records were looked at.
    pub looked_at: usize,
    /// Whether not all was looked at that comes before or on this page: there is a bound.
    pub partial: bool,
}

/// One record, with all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Record)]
pub struct Detail {
    /// What a list shows.
    #[serde(flatten)]
    pub summary: Summary,
    /// What happened to it, the oldest first: what the record says, and what this gateway saw lately.
    pub events: Vec<Event>,
    /// The latest resolution.
    pub resolved: Option<Resolution>,
    /// The steps that its attempts have finished. Results are not shown.
    pub steps: Vec<Step>,
    /// What is replayed.
    pub outcome: Option<Answer>,
    /// What can be done about it.
    pub actions: Vec<Choice>,
}

/// Something that happened to a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = RecordEvent)]
pub struct Event {
    /// What: as in the metric `semel_events_total`.
    pub event: String,
    /// When, by the clock of the store, or of the gateway that saw it; the first time of several.
    pub at: Option<String>,
    /// How often in a row.
    pub times: u32,
    /// When the last of them was.
    pub last_at: Option<String>,
    /// Which attempt, where that is known.
    pub attempt: Option<u32>,
    /// The fence of that attempt.
    pub fence: Option<u64>,
    /// Who says so: `store`, the record itself; or `gateway`, which saw it happen.
    pub seen_by: String,
    /// Whether the request was only observed.
    pub observed: bool,
}

/// A record after an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Decision)]
pub struct Done {
    /// The number of the audit log's entry.
    pub audit: String,
    /// Whether it is not done yet: somebody else has to confirm it.
    pub proposed: bool,
    /// The record as it is now.
    #[serde(flatten)]
    pub record: Detail,
}

/// What became of many records.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Decisions)]
pub struct DoneMany {
    /// The number of the audit log's entry.
    pub audit: String,
    /// How many records.
    pub records: usize,
    /// `reencrypt`: how many records in flight, unknown or released another key than the first is needed for,
    /// and how many answers cannot be read; the log names these.
    #[serde(default, skip_serializing_if = "is_none")]
    pub left: usize,
    /// Whether it is not done yet: somebody else has to confirm it.
    pub proposed: bool,
}

/// What waits for somebody else to confirm it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Proposed {
    /// The number of the audit log's entry.
    pub audit: String,
    /// It is not done yet.
    pub proposed: bool,
}

impl Proposed {
    /// By this entry of the audit log.
    pub const fn new(audit: String) -> Self {
        Self {
            audit,
            proposed: true,
        }
    }
}

/// How things stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    /// The program's version.
    pub version: String,
    /// The store's condition.
    pub store: StoreCondition,
    /// How many records somebody may have to look at.
    pub records: Counts,
    /// How often each event happened in this process, by its name; none on a store itself.
    pub events: BTreeMap<String, u64>,
}

/// The store's condition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreCondition {
    /// `up`, `full` or `down`.
    pub condition: String,
    /// Why it is not up.
    pub why: Option<String>,
}

/// How many records there are. None where they could not be counted in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// Unknown ones.
    pub unknown: Option<Count>,
    /// In flight past their lease.
    pub lapsed: Option<Count>,
    /// In flight, lapsed ones too.
    pub in_flight: Option<Count>,
}

/// How many there are, as far as it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Count {
    /// So many were counted.
    pub records: usize,
    /// Whether there may be more.
    pub more: bool,
}

/// What holds for each route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    /// In the order in which they are tried.
    pub routes: Vec<RoutePolicy>,
}

/// What holds for a route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RoutePolicy {
    /// Its name.
    pub name: String,
    /// What it takes.
    pub matches: String,
    /// Where its requests go.
    pub upstreams: Vec<String>,
    /// Whether its requests happen once. The rest is there if so.
    pub protect: bool,
    /// The service that its keys belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// `enforce` or `observe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The convention that it follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Whether requests without a key are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_key: Option<bool>,
    /// How long an attempt is held without being renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// How long answers are replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// How long a duplicate waits for an attempt in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// What becomes of a lost attempt: `hold`, `retry` or `reconcile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<String>,
    /// The largest body of a request with a key, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_body: Option<u64>,
    /// Whether requests without a principal are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_principal: Option<bool>,
}

/// The store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Store)]
pub struct StoreView {
    /// Which one.
    pub store: String,
    /// Its condition.
    pub condition: StoreCondition,
    /// What acknowledged records survive.
    pub survives: String,
    /// What operators should change.
    pub warnings: Vec<String>,
    /// Whether it finds records by their state. Otherwise a list looks through all records, some on each
    /// page.
    pub finds_by_state: bool,
}

/// A decision by an operator or a reconciler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resolution {
    /// Who decided.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Option<String>,
    /// The fence of the attempt that it was about.
    pub fence: u64,
    /// The state before.
    pub before: String,
    /// The state after.
    pub after: String,
}

/// A finished step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = RecordStep)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// How large its result is.
    pub bytes: usize,
}

/// What is replayed. Redacted, it has no values: personal data may be among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = StoredAnswer)]
pub struct Answer {
    /// `success`, `failure`, or `omitted` where it was too large to keep.
    pub kind: String,
    /// The status, or the application's code; 0 where there is none.
    pub status: u16,
    /// Its fields, in their order.
    pub headers: Vec<Field>,
    /// How large the body is; none where there is none.
    pub body_bytes: Option<usize>,
    /// The body, where it is text.
    pub body: Option<String>,
    /// The body in Base64, where it is not.
    pub body_base64: Option<String>,
    /// Whether values are left out.
    pub redacted: bool,
    /// Why nothing but its kind can be read: which encryption key is missing, or that its object is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// A field of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = StoredField)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its value, unless redacted.
    pub value: Option<String>,
}

/// Something that can be done about a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Choice {
    /// The action's name.
    pub action: String,
    /// What it does.
    pub effect: String,
    /// What could go wrong.
    pub risk: String,
}

impl From<&Entry> for Summary {
    fn from(Entry { label, record }: &Entry) -> Self {
        let (operation, service) = Service::split(&label.operation);
        let now = about_now();
        Self {
            id: label.digest.to_string(),
            state: record.state.kind().as_str().to_owned(),
            lapsed: record.is_lapsed(now),
            service: service.to_owned(),
            operation: operation.to_owned(),
            scope: label.scope.segments().map(str::to_owned).collect(),
            key_hint: label.key_hint.to_string(),
            note: record
                .note
                .iter()
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
                .collect(),
            attempt: record.attempt,
            fence: record.token.fence.0,
            created_at: time(record.created_at),
            claimed_at: time(record.claimed_at),
            lease_until: time(record.lease_until),
            settled_at: record.settled_at.and_then(time),
            expires_at: time(record.expires_at),
            age_seconds: record.created_at.until(now).as_secs(),
        }
    }
}

impl Summary {
    /// Whether it is completed, and its answer is not replayed any more.
    pub(crate) fn is_expired(&self) -> bool {
        // As text, times are in their order.
        self.state == "completed"
            && self.expires_at.is_some()
            && self.expires_at <= time(about_now())
    }

    /// Its state in a word.
    pub(crate) fn standing(&self) -> &str {
        match self.lapsed {
            true => "lapsed",
            false if self.is_expired() => "expired",
            false => &self.state,
        }
    }

    /// What its state means.
    pub(crate) fn meaning(&self) -> &str {
        match (self.state.as_str(), self.lapsed) {
            _ if self.is_expired() => {
                "its answer is not replayed any more; retries are told that it expired"
            }
            ("in-flight", true) => {
                "nobody renews its lease any more, and nobody recorded an outcome"
            }
            ("in-flight", false) => "an attempt runs, and renews its lease",
            ("unknown", _) => "it may have had its effect, and nobody recorded it",
            ("completed", _) => "its answer is replayed",
            ("released", _) => "it ended without an effect; the next request runs",
            (other, _) => other,
        }
    }
}

impl Detail {
    pub(crate) fn of(entry: &Entry, lately: &[Kept]) -> Self {
        let record = &entry.record;
        let outcome = match &record.state {
            State::Completed(outcome) => Some(Answer::redacted(outcome)),
            _ => None,
        };
        let unreadable = record.progress.readable().err();
        let steps = record.progress.steps();
        let steps = steps.map(|(name, result)| Step {
            name: match &unreadable {
                Some(why) if name.is_empty() => why.to_string(),
                _ => name.to_owned(),
            },
            bytes: result.len(),
        });
        Self {
            summary: entry.into(),
            events: events(record, lately),
            resolved: record.resolved.as_deref().map(Resolution::from),
            steps: steps.collect(),
            outcome,
            actions: choices(record),
        }
    }
}

impl From<&Probe> for StoreView {
    fn from(probe: &Probe) -> Self {
        let survives = match probe.durability {
            Durability::Process => "nothing: records end with the process",
            Durability::Crash => "a crash of the store's process, but not a loss of power",
            Durability::Power => "a loss of power",
            Durability::Replicated => "the loss of a node",
            _ => "",
        };
        Self {
            store: probe.store.to_owned(),
            condition: StoreCondition::default(),
            survives: survives.to_owned(),
            warnings: probe.warnings.clone(),
            // They have no index by state: `docs/stores.md`.
            finds_by_state: !["redis", "nats", "dynamodb"].contains(&probe.store),
        }
    }
}

impl From<Found> for Page {
    fn from(found: Found) -> Self {
        Self {
            records: found.entries.iter().map(Summary::from).collect(),
            next: found.next.map(|next| next.to_string()),
            looked_at: found.looked_at,
            partial: found.is_partial,
        }
    }
}

impl From<&Resolved> for Resolution {
    fn from(resolved: &Resolved) -> Self {
        Self {
            by: resolved.by.to_string(),
            reason: resolved.reason.to_string(),
            at: time(resolved.at),
            fence: resolved.fence.0,
            before: resolved.before.as_str().to_owned(),
            after: resolved.after.as_str().to_owned(),
        }
    }
}

impl Answer {
    /// All but the values.
    pub fn redacted(outcome: &Outcome) -> Self {
        let kind = match outcome.kind() {
            OutcomeKind::Success => "success",
            OutcomeKind::Failure => "failure",
            _ => "omitted",
        };
        let headers = outcome.fields().map(|(name, _)| Field {
            name: name.to_owned(),
            value: None,
        });
        Self {
            kind: kind.to_owned(),
            status: outcome.code(),
            headers: headers.collect(),
            body_bytes: outcome.body().map(|body| body.len()),
            body: None,
            body_base64: None,
            redacted: true,
            unreadable: outcome.readable().err().map(|why| why.to_string()),
        }
    }

    /// The whole of it.
    pub fn revealed(outcome: &Outcome) -> Self {
        let headers = outcome.fields().map(|(name, value)| Field {
            name: name.to_owned(),
            value: Some(String::from_utf8_lossy(value).into_owned()),
        });
        let (body, body_base64) = match outcome.body() {
            None => (None, None),
            Some(bytes) => match String::from_utf8(bytes.to_vec()) {
                Ok(text) => (Some(text), None),
                Err(_) => (None, Some(STANDARD.encode(&bytes))),
            },
        };
        Self {
            headers: headers.collect(),
            body,
            body_base64,
            redacted: false,
            ..Self::redacted(outcome)
        }
    }
}

/// An instant in RFC 3339; none for "never".
pub fn time(at: Timestamp) -> Option<String> {
    // The end of the year 9999: RFC 3339 has no more digits.
    const LAST: u64 = 253_402_300_799_000_000;
    let micros = at.as_micros();
    (micros <= LAST).then(|| {
        let at = UNIX_EPOCH + Duration::from_micros(micros);
        humantime::format_rfc3339_micros(at).to_string()
    })
}

/// How old something is, in its largest unit: 14m, 3h, 12d.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// What the record says happened, and what was seen of the rest, in the order of time.
fn events(record: &Record, lately: &[Kept]) -> Vec<Event> {
    let said = |signal: Signal, at, attempt, fence| {
        let event = Event {
            event: signal.as_str().to_owned(),
            at: time(at),
            times: 1,
            last_at: time(at),
            attempt,
            fence,
            seen_by: "store".to_owned(),
            observed: false,
        };
        (at, event)
    };
    let resolved = record.resolved.as_deref();
    let ended_by = resolved.filter(|resolved| record.settled_at == Some(resolved.at));
    // A resolution takes a fence of its own.
    let fence = ended_by.map_or(record.token.fence, |resolved| resolved.fence);
    let of_attempt = Some(fence.0);
    let mut all = Vec::new();
    if record.attempt > 1 {
        all.push(said(Signal::New, record.created_at, Some(1), None));
        all.push(said(
            Signal::Again,
            record.claimed_at,
            Some(record.attempt),
            of_attempt,
        ));
    } else {
        all.push(said(Signal::New, record.claimed_at, Some(1), of_attempt));
    }
    let settled = record.settled_at.and_then(|at| match record.state.kind() {
        _ if ended_by.is_some() => None,
        StateKind::Completed => Some((at, Signal::Completed)),
        StateKind::Released => Some((at, Signal::Released)),
        StateKind::Unknown => Some((at, Signal::MarkedUnknown)),
        StateKind::InFlight => None,
    });
    all.extend(settled.map(|(at, signal)| said(signal, at, Some(record.attempt), of_attempt)));
    all.extend(resolved.map(|by| said(Signal::Resolved, by.at, None, Some(by.fence.0))));
    let is_said = |kept: &&Kept| {
        let mut said = all.iter().map(|(_, said)| said);
        said.any(|said| said.event == kept.signal.as_str() && said.fence == kept.fence)
    };
    let seen: Vec<_> = lately.iter().filter(|kept| !is_said(kept)).collect();
    all.extend(seen.into_iter().map(|kept| {
        let event = Event {
            event: kept.signal.as_str().to_owned(),
            at: time(kept.first),
            times: kept.times,
            last_at: time(kept.last),
            attempt: kept.attempt,
            fence: kept.fence,
            seen_by: "gateway".to_owned(),
            observed: kept.observed,
        };
        (kept.first, event)
    }));
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, event)| event).collect()
}

/// What can be done from this state, in words.
fn choices(record: &Record) -> Vec<Choice> {
    let choice = |action: &str, effect: &str, risk: &str| Choice {
        action: action.to_owned(),
        effect: effect.to_owned(),
        risk: risk.to_owned(),
    };
    let runs_again = "Where the effect did happen, or is still to come, it happens twice. Ask the system \
                      that has the effect, by this id.";
    let mut choices = match record.state.kind() {
        StateKind::Unknown | StateKind::InFlight => vec![
            choice(
                "resolve --happened",
                "Retries get the answer that you give, and nothing runs again.",
                "Where nothing happened, nothing ever will under this key, and clients believe it did.",
            ),
            choice(
                "resolve --did-not-happen",
                "The next request with this key runs the operation again.",
                runs_again,
            ),
        ],
        StateKind::Completed if is_erased(record) => Vec::new(),
        StateKind::Completed => vec![
            choice(
                "extend",
                "The answer is replayed for as long as you say, from now on.",
                "Nothing. The store keeps it longer.",
            ),
            choice(
                "reveal",
                "Shows the whole answer that is replayed.",
                "Personal data may be in it. It is entered in the audit log that you looked.",
            ),
            choice(
                "erase",
                "Removes the answer, and keeps that there was one: retries get `expired`.",
                "It cannot be taken back, and a client that missed the answer never gets it.",
            ),
        ],
        StateKind::Released => Vec::new(),
    };
    if let State::Completed(outcome) = &record.state
        && outcome.readable().is_err()
    {
        choices.retain(|choice| choice.action != "reveal");
    }
    choices
}

const fn is_none(number: &usize) -> bool {
    *number == 0
}
