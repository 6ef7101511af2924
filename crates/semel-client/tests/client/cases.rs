//! `clients/retry-cases.json`: the table that the clients for all languages share.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, Method, StatusCode};
use semel_client::decide::{Came, Effect, Failure, FailureKind, Next, Sent, decide};
use serde_json::{Map, Value, json};

pub(crate) const TABLE: &str = include_str!("../../../../clients/retry-cases.json");

#[test]
fn every_case_of_the_table_is_decided_so() {
    let table: Value = serde_json::from_str(TABLE).unwrap();
    assert_eq!(table["now"], "2026-11-22T20:00:00Z");
    let now = httpdate::parse_http_date("Sun, 22 Nov 2026 20:00:00 GMT").unwrap();
    let cases = table["cases"].as_array().unwrap();
    let wrong: Vec<String> = cases.iter().filter_map(|case| check(case, now)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.len() >= 200, "{}", cases.len());
}

fn check(case: &Value, now: SystemTime) -> Option<String> {
    let request = &case["request"];
    let method: Method = request["method"]
        .as_str()
        .unwrap_or("POST")
        .parse()
        .unwrap();
    let sent = Sent {
        method: &method,
        key: request["key"].as_bool().unwrap_or(true),
        lost: request["lost"].as_bool().unwrap_or(false),
    };
    let (status, headers, body) = answer(&case["answer"]);
    let came = match failure(&case["error"]) {
        Some(failure) => Came::Failed(failure),
        None => Came::Answer {
            status: status.unwrap(),
            headers: &headers,
            body: &body,
        },
    };
    let decision = decide(sent, came, now);
    let mut decided = Map::new();
    let mut says = |name: &str, value: Value| decided.insert(name.into(), value);
    match decision.next {
        Next::Done => says("decision", json!("done")),
        Next::RetrySameKey(after) => {
            says("after_ms", json!(after.as_millis()));
            says("decision", json!("retry-same-key"))
        }
        Next::NewKeyAllowed(reason) => {
            says("reason", json!(reason.as_str()));
            says("decision", json!("new-key-allowed"))
        }
        Next::Stop(reason) => {
            says("reason", json!(reason.as_str()));
            says("decision", json!("stop"))
        }
    };
    if decision.next != Next::Done {
        let effect = match decision.effect {
            Effect::None => "none",
            Effect::Possible => "possible",
            Effect::Happened => "happened",
        };
        says("effect", json!(effect));
    }
    if decision.replayed {
        says("replayed", json!(true));
    }
    let decided = Value::Object(decided);
    (decided != case["expect"]).then(|| {
        let (name, expect) = (&case["name"], &case["expect"]);
        format!("{name}: {decided} and not {expect}")
    })
}

fn answer(answer: &Value) -> (Option<StatusCode>, HeaderMap, Vec<u8>) {
    let status = answer["status"].as_u64();
    let status = status.map(|status| StatusCode::from_u16(status.try_into().unwrap()).unwrap());
    let fields = answer["headers"].as_object().into_iter().flatten();
    let headers = fields.map(|(name, value)| {
        let name: HeaderName = name.parse().unwrap();
        (name, value.as_str().unwrap().parse().unwrap())
    });
    let mut body = match (&answer["body"], &answer["text"]) {
        (Value::Null, Value::Null) => String::new(),
        (Value::Null, text) => text.as_str().unwrap().to_owned(),
        (body, _) => body.to_string(),
    };
    let pad = answer["pad"].as_u64().unwrap_or(0);
    body.push_str(&" ".repeat(pad.try_into().unwrap()));
    (status, headers.collect(), body.into_bytes())
}

fn failure(error: &Value) -> Option<Failure> {
    let status = || StatusCode::from_u16(error["status"].as_u64().unwrap().try_into().unwrap());
    let kind = match error["kind"].as_str()? {
        "refused" => FailureKind::Refused,
        "reset" => FailureKind::Reset,
        "timeout" => FailureKind::Timeout,
        "broken-answer" => FailureKind::BrokenAnswer(status().unwrap()),
        "invalid-request" => FailureKind::InvalidRequest,
        kind => panic!("{kind} is no kind of failure"),
    };
    let sent = error["sent"].as_bool().unwrap();
    Some(Failure { kind, sent })
}

#[test]
fn no_answer_that_says_mismatch_is_ever_retried() {
    // Whatever else it says: its status, when to come again, how often it was tried.
    let methods = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    for status in (400..500).map(|status| StatusCode::from_u16(status).unwrap()) {
        for method in &methods {
            for lost in [false, true] {
                for retry in [None, Some("retry-after"), Some("stripe-should-retry")] {
                    let mut headers = HeaderMap::new();
                    headers.insert("content-type", "application/json".parse().unwrap());
                    if let Some(name) = retry {
                        let value = if name == "retry-after" { "1" } else { "true" };
                        headers.insert(name, value.parse().unwrap());
                    }
                    let came = Came::Answer {
                        status,
                        headers: &headers,
                        body: br#"{"code": "mismatch"}"#,
                    };
                    let key = true;
                    let sent = Sent { method, key, lost };
                    let decision = decide(sent, came, SystemTime::UNIX_EPOCH);
                    let retried = matches!(decision.next, Next::RetrySameKey(_));
                    assert!(!retried, "{method} {status} {headers:?}");
                    assert!(!matches!(decision.next, Next::NewKeyAllowed(_)));
                    assert_eq!(decision.effect, Effect::Possible);
                }
            }
        }
    }
}

#[test]
fn what_is_not_repeatable_is_only_sent_again_if_it_was_never_sent() {
    for method in [Method::POST, Method::PATCH] {
        let key = false;
        let lost = false;
        let sent = Sent {
            method: &method,
            key,
            lost,
        };
        for status in (100..600).map(|status| StatusCode::from_u16(status).unwrap()) {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", "1".parse().unwrap());
            headers.insert("stripe-should-retry", "true".parse().unwrap());
            let body = b"";
            let came = Came::Answer {
                status,
                headers: &headers,
                body,
            };
            let decision = decide(sent, came, SystemTime::UNIX_EPOCH);
            assert!(
                !matches!(decision.next, Next::RetrySameKey(_)),
                "{method} {status}"
            );
        }
        use FailureKind::{BrokenAnswer, InvalidRequest, Refused, Reset, Timeout};
        let kinds = [
            Refused,
            Reset,
            Timeout,
            BrokenAnswer(StatusCode::OK),
            InvalidRequest,
        ];
        for kind in kinds {
            let came = Came::Failed(Failure { kind, sent: true });
            let decision = decide(sent, came, SystemTime::UNIX_EPOCH);
            assert!(!matches!(decision.next, Next::RetrySameKey(_)), "{kind:?}");
        }
        let kind = Reset;
        let came = Came::Failed(Failure { kind, sent: false });
        let again = Next::RetrySameKey(Duration::ZERO);
        assert_eq!(decide(sent, came, SystemTime::UNIX_EPOCH).next, again);
    }
}
