//! The question that is sent to the endpoint.

use std::time::{Duration, UNIX_EPOCH};

use semel::Service;
use semel::guard::Case;
use serde_json::{Value, json};

/// The body of the question. It holds the whole key where a client brought it: the endpoint is the
/// operator's own, and the service behind the gateway gets the key as well. It is in no URL, field
/// or log line (protocol rule R12).
pub(super) fn of(case: &Case<'_>) -> String {
    let claimed_at = UNIX_EPOCH + Duration::from_micros(case.claimed_at.as_micros());
    let (operation, service) = Service::split(case.operation);
    let mut question = json!({
        "identity": case.id.to_string(),
        "service": service,
        "operation": operation,
        "scope": case.scope.segments().collect::<Vec<_>>(),
        "key_hint": case.key_hint,
        "fence": case.fence.0,
        "attempt": case.attempt,
        "claimed_at": humantime::format_rfc3339_micros(claimed_at).to_string(),
        "question": case.asked,
    });
    if let Some(key) = case.key {
        question["key"] = Value::from(key.as_str());
    }
    if let Some((method, path)) = case.about.and_then(|about| about.split_once(' ')) {
        question["method"] = Value::from(method);
        question["path"] = Value::from(path);
    }
    if !case.note.is_empty() {
        question["note"] = case.note.iter().collect();
    }
    question.to_string()
}
