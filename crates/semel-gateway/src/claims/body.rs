//! Outcomes on the wire and in the store.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use semel::{Outcome, OutcomeKind, Progress, StoreError, StoreErrorKind};
use serde_json::value::RawValue;

use super::wire;
use crate::operations::of_store;
use crate::refused::Refused;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const BYTES: &str = "application/octet-stream";
/// The longest content type.
const LONGEST: usize = 255;

/// What the store keeps of an outcome. `place` is where it stands in the request.
pub(crate) fn stored(outcome: &wire::Outcome, place: &str) -> Result<Outcome, Refused> {
    let kind = match outcome.kind {
        wire::Kind::Success => OutcomeKind::Success,
        wire::Kind::Failure => OutcomeKind::Failure,
        wire::Kind::Omitted => OutcomeKind::Omitted,
    };
    let (body, usual) = match (&outcome.json, &outcome.text, &outcome.base64) {
        (None, None, None) => (None, None),
        (Some(json), None, None) => (Some(Cow::Borrowed(json.get().as_bytes())), Some(JSON)),
        (None, Some(text), None) => (Some(Cow::Borrowed(text.as_bytes())), Some(TEXT)),
        (None, None, Some(text)) => (Some(Cow::Owned(bytes(text, place)?)), Some(BYTES)),
        _ => {
            return Err(Refused::invalid(format!(
                "{place}: at most one of `json`, `text` and `base64`"
            )));
        }
    };
    if kind == OutcomeKind::Omitted && body.is_some() {
        return Err(Refused::invalid(format!(
            "{place}: what is `omitted` has no body"
        )));
    }
    let content_type = outcome.content_type.as_deref();
    if let Some(named) = content_type {
        let is_value = HeaderValue::from_str(named).is_ok() && named.trim() == named;
        if !is_value || !(1..=LONGEST).contains(&named.len()) {
            return Err(Refused::invalid(format!(
                "{place}.content_type: must be 1 to {LONGEST} visible ASCII characters"
            )));
        }
    }
    let mut builder = Outcome::builder(kind).code(outcome.code);
    if let Some(named) = content_type.or(usual) {
        builder = builder.field(CONTENT_TYPE.as_str(), named.as_bytes());
    }
    Ok(match body {
        Some(body) => builder.body(&body),
        None => builder.void(),
    })
}

/// The bytes that base64 stands for.
pub(super) fn bytes(text: &str, place: &str) -> Result<Vec<u8>, Refused> {
    let decoded = BASE64_STANDARD.decode(text);
    decoded
        .map_err(|_| Refused::invalid(format!("{place}: is not base64 (RFC 4648, with padding)")))
}

/// An outcome as it is replayed.
pub(super) fn shown(outcome: &Outcome) -> wire::Outcome {
    let content_type = outcome
        .fields()
        .find(|(name, _)| name.eq_ignore_ascii_case(CONTENT_TYPE.as_str()))
        .and_then(|(_, value)| std::str::from_utf8(value).ok());
    let mut shown = wire::Outcome {
        kind: match outcome.kind() {
            OutcomeKind::Success => wire::Kind::Success,
            OutcomeKind::Failure => wire::Kind::Failure,
            _ => wire::Kind::Omitted,
        },
        code: outcome.code(),
        content_type: content_type.map(|named| named.to_owned().into()),
        ..wire::Outcome::default()
    };
    if let Some(body) = outcome.body() {
        match String::from_utf8(body.to_vec()) {
            Err(error) => shown.base64 = Some(BASE64_STANDARD.encode(error.as_bytes())),
            Ok(text) if content_type.is_some_and(is_json) => match RawValue::from_string(text) {
                // Blanks around it are not part of the value.
                Ok(json) if json.get().len() == body.len() => shown.json = Some(json),
                _ => shown.text = Some(String::from_utf8_lossy(&body).into_owned()),
            },
            Ok(text) => shown.text = Some(text),
        }
    }
    shown
}

fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case(JSON) || kind.to_ascii_lowercase().ends_with("+json")
}

/// Finished steps, in order.
pub(super) fn steps(progress: &Progress) -> Result<Vec<wire::Step>, Refused> {
    let progress = progress.readable().map_err(of_store)?;
    let steps = progress.steps().map(|(name, result)| {
        let result = Outcome::from_bytes(Bytes::copy_from_slice(result)).map_err(|error| {
            let what = "the result of a step cannot be read";
            StoreError::new(StoreErrorKind::Corrupt, what).with_source(error)
        })?;
        Ok(wire::Step {
            name: name.to_owned(),
            result: shown(&result),
        })
    });
    Ok(steps.collect::<Result<_, StoreError>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replayed(sent: &str) -> String {
        let sent: wire::Outcome = serde_json::from_str(sent).unwrap();
        let kept = stored(&sent, "outcome").map_err(|refused| refused.to_string());
        let shown = kept.map(|kept| serde_json::to_string(&shown(&kept)).unwrap());
        shown.unwrap_or_else(|refused| refused)
    }

    #[test]
    fn what_is_replayed_has_the_same_bytes() {
        let json = r#"{"kind":"success","code":0,"content_type":"application/json","json":"#;
        for (sent, expected) in [
            ("{}", r#"{"kind":"success","code":0}"#.to_owned()),
            (r#"{"json":null}"#, format!("{json}null}}")),
            (
                r#"{"json":{"b":1.0, "a": 12345678901234567890123}}"#,
                format!("{json}{}}}", r#"{"b":1.0, "a": 12345678901234567890123}"#),
            ),
            (
                r#"{"text":"","kind":"failure","code":3}"#,
                r#"{"kind":"failure","code":3,"content_type":"text/plain; charset=utf-8","text":""}"#
                    .to_owned(),
            ),
            (
                r#"{"base64":"/wA="}"#,
                r#"{"kind":"success","code":0,"content_type":"application/octet-stream","base64":"/wA="}"#
                    .to_owned(),
            ),
            // The content type says how it is shown.
            (
                r#"{"text":"[1]","content_type":"application/vnd.a+json; v=1"}"#,
                r#"{"kind":"success","code":0,"content_type":"application/vnd.a+json; v=1","json":[1]}"#
                    .to_owned(),
            ),
            // But no blank is lost, and what is no JSON stays what it is.
            (
                r#"{"text":" [1]","content_type":"application/json"}"#,
                r#"{"kind":"success","code":0,"content_type":"application/json","text":" [1]"}"#
                    .to_owned(),
            ),
            (
                r#"{"text":"[","content_type":"application/json"}"#,
                r#"{"kind":"success","code":0,"content_type":"application/json","text":"["}"#
                    .to_owned(),
            ),
            (r#"{"kind":"omitted"}"#, r#"{"kind":"omitted","code":0}"#.to_owned()),
        ] {
            assert_eq!(replayed(sent), expected, "{sent}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for (sent, message) in [
            (r#"{"json":1,"text":"a"}"#, "at most one of"),
            (r#"{"base64":"?"}"#, "is not base64"),
            (r#"{"kind":"omitted","text":"a"}"#, "has no body"),
            (r#"{"content_type":"a\nb"}"#, "content_type: must be"),
            (r#"{"content_type":""}"#, "content_type: must be"),
            (r#"{"content_type":" a"}"#, "content_type: must be"),
        ] {
            assert!(
                replayed(sent).contains(message),
                "{sent}: {}",
                replayed(sent)
            );
        }
    }
}
