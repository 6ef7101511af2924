//! What goes over the wire: `docs/claims.md` describes it.
//!
//! The types serve both sides: the gateway reads requests and writes answers, `semel run` the other way
//! around. None has `Debug`: they hold keys and tokens.

use std::borrow::Cow;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// `POST /v1/claims`. At most one of `payload`, `payload_base64` and `fingerprint`.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimRequest {
    /// What is done: at most 255 bytes, without control characters.
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$"
    )]
    pub(crate) operation: String,
    /// Which one of them: at most 255 bytes, without control characters.
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$"
    )]
    pub(crate) key: String,
    /// Keeps the records of services apart that share a store. `default` unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", example = "default")]
    pub(crate) service: Option<String>,
    /// Whose key it is, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 16)]
    pub(crate) scope: Vec<String>,
    /// What is asked for, as any JSON value.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) payload: Option<Box<RawValue>>,
    /// The same as bytes, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        content_encoding = "base64",
        pattern = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
    )]
    pub(crate) payload_base64: Option<String>,
    /// The same as a digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9A-Fa-f]{64}$")]
    pub(crate) fingerprint: Option<String>,
    /// 128 random bits, new for each attempt: makes the claim safe to send again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9A-Fa-f]{32}$")]
    pub(crate) nonce: Option<String>,
    /// How long the claim is held without being renewed. `30s` unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "30s", pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
    pub(crate) lease: Option<String>,
    /// How long to wait for an attempt in flight. Not at all unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "30s", pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
    pub(crate) wait: Option<String>,
    /// What becomes of a lost attempt. `hold` unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) on_lost: Option<OnLost>,
    /// How long the outcome is replayed, from completion: a duration or a preset's name. `24h` unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        example = "24h",
        pattern = "^([0-9]{1,9}(ms|s|m|h|d)|payment|order|email|api|webhook)$"
    )]
    pub(crate) ttl: Option<String>,
    /// How much longer claims are refused as expired. Not at all unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "0s", pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
    pub(crate) tombstone: Option<String>,
}

/// What becomes of an attempt that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnLost {
    /// Nobody runs it again until it is resolved.
    Hold,
    /// The next claim runs it again.
    Retry,
}

/// The claim is the caller's.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Acquired {
    /// The name of the record.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub(crate) id: String,
    /// Proves that the claim is the caller's.
    pub(crate) token: String,
    /// Grows with every claim on the record.
    pub(crate) fence: u64,
    /// Which attempt this is, from 1.
    #[schema(minimum = 1)]
    pub(crate) attempt: u32,
    /// When this life of the record began, in microseconds since 1970.
    pub(crate) since: u64,
    /// How long the claim is held from now on.
    pub(crate) lease_ms: u64,
    /// What earlier attempts finished, in order.
    pub(crate) steps: Vec<Step>,
}

/// The work ran before.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Replayed {
    /// The name of the record.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub(crate) id: String,
    /// What was kept of it.
    pub(crate) outcome: Outcome,
    /// How much longer it is replayed.
    pub(crate) remaining_ms: u64,
}

/// A finished step.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Step {
    /// Its name.
    pub(crate) name: String,
    /// What it came to.
    pub(crate) result: Outcome,
}

/// What is kept of something that ran. At most one of `json`, `text` and `base64`: its body.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outcome {
    /// Whether it succeeded.
    #[serde(default)]
    pub(crate) kind: Kind,
    /// A number of the application's own.
    #[serde(default)]
    pub(crate) code: u16,
    /// What the body is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        max_length = 255,
        pattern = "^[\\x21-\\x7E]([\\x20-\\x7E]*[\\x21-\\x7E])?$"
    )]
    pub(crate) content_type: Option<Cow<'static, str>>,
    /// The body, as JSON.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) json: Option<Box<RawValue>>,
    /// The body, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// The body, as bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        content_encoding = "base64",
        pattern = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
    )]
    pub(crate) base64: Option<String>,
}

/// What kind of outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// It succeeded.
    #[default]
    Success,
    /// It failed for good.
    Failure,
    /// It is done, and its body was not kept.
    Omitted,
}

/// `POST /v1/claims/{id}/renew`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewRequest {
    /// From the claim.
    pub(crate) token: String,
    /// How long the lease lasts from now on. The claim's unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "30s", pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
    pub(crate) lease: Option<String>,
}

/// The lease was prolonged.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Renewed {
    /// How long the claim is held from now on.
    pub(crate) lease_ms: u64,
}

/// `POST /v1/claims/{id}/complete`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompleteRequest {
    /// From the claim.
    pub(crate) token: String,
    /// What is kept. A success without a body unless set.
    #[serde(default)]
    pub(crate) outcome: Outcome,
    /// How long it is replayed: a duration or a preset's name. As the claim says unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        example = "24h",
        pattern = "^([0-9]{1,9}(ms|s|m|h|d)|payment|order|email|api|webhook)$"
    )]
    pub(crate) ttl: Option<String>,
    /// How much longer claims are refused as expired. As the claim says unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "0s", pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
    pub(crate) tombstone: Option<String>,
}

/// The outcome was recorded.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Completed {
    /// What the record is now.
    pub(crate) state: State,
    /// Whether the body was too large for the store, and was not kept.
    pub(crate) omitted: bool,
}

/// `POST /v1/claims/{id}/abandon`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AbandonRequest {
    /// From the claim.
    pub(crate) token: String,
    /// Whether step keys were passed on: the next attempt then has the same ones for seven days.
    #[serde(default)]
    pub(crate) keys_given: bool,
}

/// `POST /v1/claims/{id}/unknown`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnknownRequest {
    /// From the claim.
    pub(crate) token: String,
}

/// The attempt is over.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Ended {
    /// What the record is now.
    pub(crate) state: State,
}

/// `POST /v1/claims/{id}/steps`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepRequest {
    /// From the claim.
    pub(crate) token: String,
    /// The step's name, once in a record: at most 255 bytes, without control characters.
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$"
    )]
    pub(crate) name: String,
    /// What it came to. A success without a body unless set.
    #[serde(default)]
    pub(crate) result: Outcome,
}

/// The step was kept.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Kept {
    /// How many are kept now.
    pub(crate) steps: usize,
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// An attempt holds the lease, or held it until it lapsed.
    InFlight,
    /// An attempt was lost.
    Unknown,
    /// The outcome is replayed.
    Completed,
    /// The next claim runs.
    Released,
}

/// A record.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Shown {
    /// Its name.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub(crate) id: String,
    /// The service that it belongs to.
    pub(crate) service: String,
    /// What is done.
    pub(crate) operation: String,
    /// Whose key it is.
    pub(crate) scope: Vec<String>,
    /// The start of the key.
    pub(crate) key_hint: String,
    /// What it is.
    pub(crate) state: State,
    /// The latest attempt's fence.
    pub(crate) fence: u64,
    /// Which attempt that is, from 1.
    #[schema(minimum = 1)]
    pub(crate) attempt: u32,
    /// When this life of the record began.
    #[schema(format = "date-time")]
    pub(crate) created_at: String,
    /// When the latest attempt began.
    #[schema(format = "date-time")]
    pub(crate) claimed_at: String,
    /// When its lease lapses, or lapsed.
    #[schema(format = "date-time")]
    pub(crate) lease_until: String,
    /// When it was completed, released or found unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub(crate) settled_at: Option<String>,
    /// When replays end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub(crate) expires_at: Option<String>,
    /// What is finished, until it is completed.
    pub(crate) steps: Vec<Step>,
    /// What was kept of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<Outcome>,
}

/// Why something was not done, as problem details (RFC 9457).
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Problem {
    /// Where it is described.
    #[serde(rename = "type")]
    #[schema(format = "uri")]
    pub(crate) kind: String,
    /// What the code means.
    pub(crate) title: String,
    /// The status of the answer.
    pub(crate) status: u16,
    /// What happened this time.
    pub(crate) detail: String,
    /// The kind of problem, for programs.
    pub(crate) code: String,
    /// Of the answer to a claim: the name of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// Of an attempt that is in flight or was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
    /// Why a token is stale: `superseded`, `completed`, `released`, `unknown` or `missing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// A member that is there, `null` too.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    let value = Box::<RawValue>::deserialize(deserializer);
    value.map(Some).map_err(D::Error::custom)
}
