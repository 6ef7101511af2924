//! What AdCP says of payloads and envelopes. Its tasks are JSON objects, over REST the bodies of
//! requests and answers.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::members::Members;
use crate::json::{self, Digits};
use crate::policy::Disposition;

/// The members that are no part of a payload: a closed list, in which `ext` is not.
const EXCLUDED: [&str; 3] = ["idempotency_key", "context", "governance_context"];

/// The hash by which AdCP compares payloads: SHA-256 of the canonical form (RFC 8785) of the object
/// without `idempotency_key`, `context`, `governance_context` and
/// `push_notification_config.authentication.credentials`. `None` where the text is no JSON object, or has
/// two members of one name. Integers beyond 2^53 are rounded, as the canonical form has it.
///
/// ```
/// use semel_tower::adcp_payload_hash as hash;
///
/// let first = hash(br#"{"idempotency_key":"0123456789abcdef","budget":1e3,"context":{"trace":1}}"#);
/// let retry = hash(br#"{"budget":1000,"idempotency_key":"0123456789abcdef","context":{"trace":2}}"#);
/// assert!(first.is_some());
/// assert_eq!(first, retry);
/// assert_ne!(first, hash(br#"{"budget":1000,"ext":{"trace":2}}"#));
/// ```
pub fn adcp_payload_hash(body: &[u8]) -> Option<[u8; 32]> {
    // Duplicate names are refused in the excluded members too.
    json::with_canonical(body, Digits::Rounded, |form| form.map(drop))?;
    let mut payload = Members::of(body)?;
    for name in EXCLUDED {
        payload.set(name, None);
    }
    let config = payload.get("push_notification_config");
    let config = config.and_then(without_credentials);
    if let Some(config) = &config {
        payload.set("push_notification_config", Some(config));
    }
    canonical_digest(&payload.write())
}

fn without_credentials(config: &RawValue) -> Option<Box<RawValue>> {
    let mut config = Members::of(config.get().as_bytes())?;
    let mut authentication = Members::of(config.get("authentication")?.get().as_bytes())?;
    authentication.set("credentials", None);
    let authentication = authentication.to_raw()?;
    config.set("authentication", Some(&authentication));
    config.to_raw()
}

fn canonical_digest(text: &[u8]) -> Option<[u8; 32]> {
    json::with_canonical(text, Digits::Rounded, |form| {
        form.map(|form| Sha256::digest(form).into())
    })
}

/// What of a payload belongs to the scope: the account, and the session of a conversation.
pub(crate) fn scope(payload: &Members<'_>) -> Vec<String> {
    let text = |value: &RawValue| serde_json::from_str::<String>(value.get()).ok();
    let account = payload.get("account").map(|account| {
        let members = Members::of(account.get().as_bytes());
        let id = members.and_then(|members| text(members.get("account_id")?));
        // An account that is named by what everybody knows of it is not shown by that.
        id.unwrap_or_else(|| digest_of(account))
    });
    let account = account.or_else(|| text(payload.get("account_id")?));
    let session = payload.get("session_id").and_then(text);
    let named = [("account", account), ("session", session)];
    let segments = named
        .into_iter()
        .filter_map(|(name, value)| Some([name.to_owned(), value?]));
    segments.flatten().collect()
}

fn digest_of(value: &RawValue) -> String {
    let text = value.get().as_bytes();
    let digest = canonical_digest(text).unwrap_or_else(|| Sha256::digest(text).into());
    semel::IdentityDigest::from_bytes(digest).to_string()
}

/// What an answer of the operation means whose status is a success: the task's own status and errors
/// say whether it was one.
pub(crate) fn disposition(body: &[u8]) -> Option<Disposition> {
    let members = Members::of(body)?;
    let status = members.get("status").map_or("", RawValue::get);
    let has_failed = matches!(
        status,
        r#""failed""#
            | r#""rejected""#
            | r#""canceled""#
            | r#""auth-required""#
            | r#""input-required""#
    );
    let has_error = ["adcp_error", "error"]
        .iter()
        .filter_map(|name| members.get(name))
        .any(|error| error.get() != "null");
    // Beside a result they are warnings.
    let only_errors = members
        .get("errors")
        .is_some_and(|errors| errors.get() != "[]")
        && members.names().all(|name| ENVELOPE.contains(&name));
    (has_failed || has_error || only_errors).then_some(Disposition::Release)
}

/// What stands in an answer without a result.
const ENVELOPE: [&str; 10] = [
    "adcp_version",
    "context",
    "context_id",
    "errors",
    "ext",
    "governance_context",
    "message",
    "replayed",
    "status",
    "timestamp",
];

/// A first answer without a `replayed` that says it is none; `None` where it says nothing like it.
pub(crate) fn first(body: &Bytes) -> Option<Bytes> {
    let mut members = Members::of_any(body)?;
    let is_marked = members.all("replayed").any(|said| said.get() != "false");
    is_marked.then(|| {
        members.set("replayed", None);
        members.write()
    })
}

/// The body of a replay: what was kept, marked, with the present request's context and no other's. `None`
/// where it is no JSON object.
pub(crate) fn replay(body: &[u8], context: Option<&RawValue>) -> Option<Bytes> {
    let yes: &RawValue = serde_json::from_str("true").ok()?;
    let mut members = Members::of_any(body)?;
    members.set("replayed", Some(yes));
    members.set("context", context);
    Some(members.write())
}

/// Whether the `context` that a JSON text has, if any, can be taken from it.
pub(crate) fn is_readable(body: &[u8]) -> bool {
    let is_object = |text: &RawValue| text.get().starts_with('{');
    body.is_empty()
        || serde_json::from_slice::<&RawValue>(body)
            .is_ok_and(|text| !is_object(text) || Members::of_any(body).is_some())
}

/// Removes what was said of a body that is another one now. An `ETag` is the created resource's.
pub(crate) fn forget_body(headers: &mut HeaderMap) {
    headers.remove(CONTENT_LENGTH);
    for name in ["content-digest", "content-md5", "digest", "repr-digest"] {
        headers.remove(name);
    }
}
