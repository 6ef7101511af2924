//! A 409 of a service that dedupes itself: it says that the operation runs elsewhere, not how it
//! ended.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::response::Parts;
use serde_json::Value;

use crate::policy::Disposition;

/// No problem is longer, and a longer body is not looked into.
const LONGEST: usize = 16 << 10;

/// What a 409 means that is not the operation's own answer: its `code` says so, or there is a time to
/// ask again.
pub(crate) fn disposition(head: &Parts, body: Option<&Bytes>) -> Option<Disposition> {
    let code = body.filter(|_| is_json(head)).and_then(code_of);
    match code.as_deref() {
        Some("outcome-unknown" | "idempotency-outcome-unknown") => Some(Disposition::Unknown),
        Some(
            "in-flight"
            | "in-progress"
            | "idempotency-in-flight"
            | "idempotency-in-progress"
            | "idempotency-key-in-use"
            | "request-in-progress"
            | "operation-in-progress"
            | "previous-request-in-progress"
            | "concurrent-request",
        ) => Some(Disposition::Release),
        _ => head
            .headers
            .contains_key(RETRY_AFTER)
            .then_some(Disposition::Release),
    }
}

/// Whether the body of this answer may say more than its head.
pub(crate) fn is_open(head: &Parts) -> bool {
    let length = head.headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    head.status == StatusCode::CONFLICT
        && is_json(head)
        && length.is_none_or(|length| length <= LONGEST)
}

fn is_json(head: &Parts) -> bool {
    let media_type = head.headers.get(CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok()?.split(';').next());
    media_type.is_some_and(|media_type| {
        let media_type = media_type.trim_ascii().to_ascii_lowercase();
        media_type == "application/json" || media_type.ends_with("+json")
    })
}

/// The code of a problem, where services have it: at the top (RFC 9457's extension), in `error`, or
/// in the first of `errors`. In lower case, its words joined by `-`.
fn code_of(body: &Bytes) -> Option<String> {
    if body.len() > LONGEST {
        return None;
    }
    let answer: Value = serde_json::from_slice(body).ok()?;
    let code = ["/code", "/error/code", "/error", "/errors/0/code"]
        .iter()
        .find_map(|place| answer.pointer(place)?.as_str())?;
    Some(code.to_ascii_lowercase().replace(['_', '.', ' '], "-"))
}
