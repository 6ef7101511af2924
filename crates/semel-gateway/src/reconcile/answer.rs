//! What the endpoint answers, read strictly: what is not understood is no answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::response::Parts;
use http::{Response, StatusCode};
use semel::Outcome;
use semel::guard::{Answer, Finding};
use semel_tower::outcome_of_response;
use serde_json::{Map, Value};

/// Why an answer is none. Says nothing of what is in it: it may hold what a client was to get.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Nonsense(&'static str);

/// The members that an answer may have.
const MEMBERS: [&str; 6] = [
    "finding",
    "status",
    "headers",
    "body",
    "body_base64",
    "reason",
];

/// Of a body larger than `max_body` it is kept that it was there, as of the upstream's answers.
pub(super) fn read(answer: &[u8], max_body: usize) -> Result<Answer, Nonsense> {
    let answer: Value = serde_json::from_slice(answer).map_err(|_| Nonsense("it is not JSON"))?;
    let answer = answer.as_object().ok_or(Nonsense("it is not an object"))?;
    if answer.keys().any(|name| !MEMBERS.contains(&name.as_str())) {
        return Err(Nonsense(
            "it may have finding, status, headers, body, body_base64 and reason",
        ));
    }
    let finding = match answer.get("finding").and_then(Value::as_str) {
        Some("happened") => happened(answer, max_body)?,
        Some(other) => {
            let of_happened = ["status", "headers", "body", "body_base64"];
            if of_happened.iter().any(|name| answer.contains_key(*name)) {
                return Err(Nonsense("an answer for the client needs `happened`"));
            }
            match other {
                "did-not-happen" => Finding::DidNotHappen,
                "still-unknown" => Finding::StillUnknown,
                _ => return Err(Nonsense(FINDINGS)),
            }
        }
        None => return Err(Nonsense(FINDINGS)),
    };
    match answer.get("reason") {
        None | Some(Value::Null) => Ok(finding.into()),
        Some(Value::String(reason)) => Ok(finding.because(reason.as_str())),
        Some(_) => Err(Nonsense("`reason` is text")),
    }
}

const FINDINGS: &str = "`finding` is happened, did-not-happen or still-unknown";

fn happened(answer: &Map<String, Value>, max_body: usize) -> Result<Finding, Nonsense> {
    let (head, body) = response(answer)?;
    let kept = Some(&body).filter(|body| body.len() <= max_body);
    Ok(Finding::Happened(outcome_of_response(&head, kept)))
}

/// The answer that an operator says was given.
pub(crate) fn outcome(answer: &Map<String, Value>) -> Result<Outcome, Nonsense> {
    let of_answers = ["status", "headers", "body", "body_base64"];
    if answer
        .keys()
        .any(|name| !of_answers.contains(&name.as_str()))
    {
        return Err(Nonsense(
            "it may have status, headers, body and body_base64",
        ));
    }
    let (head, body) = response(answer)?;
    Ok(outcome_of_response(&head, Some(&body)))
}

fn response(answer: &Map<String, Value>) -> Result<(Parts, Bytes), Nonsense> {
    let status = Nonsense("`status` is a number from 200 to 599");
    let status = answer
        .get("status")
        .and_then(Value::as_u64)
        .filter(|status| (200..600).contains(status))
        .and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok())
        .ok_or(status)?;
    let mut response = Response::new(());
    *response.status_mut() = status;
    let fields = match answer.get("headers") {
        None | Some(Value::Null) => &Map::new(),
        Some(fields) => fields
            .as_object()
            .ok_or(Nonsense("`headers` is an object"))?,
    };
    for (name, values) in fields {
        let values = match values {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Nonsense("a name in `headers` cannot be that of a field"))?;
        for value in values {
            let value = value.as_str().map(HeaderValue::from_str);
            let Some(Ok(value)) = value else {
                return Err(Nonsense("a value in `headers` is text, or a list of texts"));
            };
            response.headers_mut().append(name.clone(), value);
        }
    }
    let body = match (answer.get("body"), answer.get("body_base64")) {
        (None | Some(Value::Null), None | Some(Value::Null)) => Bytes::new(),
        (Some(Value::String(text)), None) => Bytes::from(text.clone()),
        (None, Some(Value::String(coded))) => STANDARD
            .decode(coded)
            .map_err(|_| Nonsense("`body_base64` is not Base64"))?
            .into(),
        (Some(_), Some(_)) => return Err(Nonsense("of `body` and `body_base64` there is one")),
        _ => return Err(Nonsense("`body` and `body_base64` are text")),
    };
    let (head, ()) = response.into_parts();
    Ok((head, body))
}

#[cfg(test)]
mod tests {
    use semel::OutcomeKind;

    use super::*;

    fn read(answer: &str) -> Result<Answer, Nonsense> {
        super::read(answer.as_bytes(), 8)
    }

    fn fields(outcome: &semel::Outcome) -> Vec<(&str, &[u8])> {
        outcome.fields().collect()
    }

    #[test]
    fn the_three_findings() {
        let text = r#"{"finding":"did-not-happen"}"#;
        assert_eq!(read(text), Ok(Finding::DidNotHappen.into()));
        let text = r#"{"finding":"still-unknown","reason":"the bank is closed"}"#;
        let because = Finding::StillUnknown.because("the bank is closed");
        assert_eq!(read(text), Ok(because));

        let text = r#"{"finding":"happened","status":201,
            "headers":{"Content-Type":"text/plain","x-part":["a","b"],"date":"today"},"body":"é"}"#;
        let parts = Response::builder()
            .status(201)
            .header("content-type", "text/plain")
            .header("x-part", "a")
            .header("x-part", "b");
        let (head, ()) = parts.body(()).unwrap().into_parts();
        let outcome = outcome_of_response(&head, Some(&Bytes::from("é")));
        assert_eq!(outcome.kind(), OutcomeKind::Success);
        assert_eq!(fields(&outcome).len(), 3);
        assert_eq!(read(text), Ok(Finding::Happened(outcome).into()));
    }

    #[test]
    fn bodies() {
        let happened = |body: &str| {
            let text = format!(r#"{{"finding":"happened","status":402{body}}}"#);
            let (head, ()) = Response::builder()
                .status(402)
                .body(())
                .unwrap()
                .into_parts();
            (read(&text), head)
        };
        for (body, bytes) in [
            ("", Some(&b""[..])),
            (r#","body":null"#, Some(b"")),
            (r#","body_base64":"AP8=""#, Some(&[0, 255])),
            (r#","body":"12345678""#, Some(b"12345678")),
            (r#","body":"123456789""#, None),
        ] {
            let (answer, head) = happened(body);
            let bytes = bytes.map(Bytes::copy_from_slice);
            let outcome = outcome_of_response(&head, bytes.as_ref());
            assert_eq!(answer, Ok(Finding::Happened(outcome).into()), "{body}");
        }
    }

    #[test]
    fn everything_else_is_no_answer() {
        for text in [
            "",
            "yes",
            "[]",
            "{}",
            r#"{"finding":"perhaps"}"#,
            r#"{"finding":true}"#,
            r#"{"finding":"happened"}"#,
            r#"{"finding":"happened","status":"201"}"#,
            r#"{"finding":"happened","status":99}"#,
            r#"{"finding":"happened","status":200.5}"#,
            r#"{"finding":"happened","status":200,"body":{"id":7}}"#,
            r#"{"finding":"happened","status":200,"body":"a","body_base64":"AA=="}"#,
            r#"{"finding":"happened","status":200,"body_base64":"?"}"#,
            r#"{"finding":"happened","status":200,"headers":[]}"#,
            r#"{"finding":"happened","status":200,"headers":{"a b":"c"}}"#,
            r#"{"finding":"happened","status":200,"headers":{"a":"b\r\nc: d"}}"#,
            r#"{"finding":"happened","status":200,"headers":{"a":1}}"#,
            r#"{"finding":"did-not-happen","status":404}"#,
            r#"{"finding":"still-unknown","reason":7}"#,
            r#"{"finding":"did-not-happen","because":"x"}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
