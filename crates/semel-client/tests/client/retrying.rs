//! When it asks again, with which key, and when it stops.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use semel::KeyRule;
use semel_client::decide::{Effect, Reason};
use semel_client::{AnswerInfo, ErrorKind, Retry};
use serde_json::Value;
use tokio::time::Instant;
use tower::ServiceExt as _;

use crate::cases::TABLE;
use crate::support::{Does, Service, order, problem, request, status};

const IN_FLIGHT: &str = r#"{"code": "in-flight"}"#;

#[tokio::test(start_paused = true)]
async fn every_try_has_the_same_key_and_the_same_bytes() {
    let service = Service::new([
        Does::Reset,
        problem(409, IN_FLIGHT),
        status(503),
        Does::Hang,
        Does::Answer(201, vec![("idempotency-replayed", "true")], "{\"id\":1}"),
    ]);
    let client = service.behind(&Retry::new());
    let answer = client.oneshot(order()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    assert_eq!(answer.body(), "{\"id\":1}");
    let info = answer.extensions().get::<AnswerInfo>().unwrap();
    assert_eq!((info.tries, info.replayed, info.protected), (5, true, true));
    let seen = service.seen();
    assert_eq!(seen.len(), 5);
    KeyRule::UUID_V7.parse(seen[0].key()).unwrap();
    KeyRule::STRICT.parse(seen[0].key()).unwrap();
    for try_ in &seen {
        assert_eq!(
            (&try_.headers, &try_.body),
            (&seen[0].headers, &seen[0].body)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_changes_something_gets_a_key_and_keeps_its_own() {
    let service = Service::new([status(200)]);
    let client = service.behind(&Retry::new());
    let table: Value = serde_json::from_str(TABLE).unwrap();
    let methods = table["gets_key"].as_object().unwrap();
    for method in methods.keys() {
        let method = method.parse().unwrap();
        client.clone().oneshot(request(method)).await.unwrap();
    }
    let mut own = order();
    own.headers_mut()
        .insert("idempotency-key", "\"invoice-4711\"".parse().unwrap());
    client.oneshot(own).await.unwrap();
    let seen = service.seen();
    let (own, others) = seen.split_last().unwrap();
    let mut keys = HashSet::new();
    for ((method, gets_key), seen) in methods.iter().zip(others) {
        let key = seen.headers.get("idempotency-key");
        assert_eq!(Value::from(key.is_some()), *gets_key, "{method}");
        if let Some(key) = key {
            assert!(keys.insert(key.as_bytes()), "{method}");
        }
    }
    assert_eq!(own.key(), "\"invoice-4711\"");
}

#[tokio::test(start_paused = true)]
async fn the_key_is_where_the_service_wants_it() {
    let service = Service::new([status(200)]);
    let header = HeaderName::from_static("x-request-key");
    let retry = Retry::new().with_key_header(header).with_quoted_keys();
    service.behind(&retry).oneshot(order()).await.unwrap();
    let seen = service.seen();
    let key = seen[0].headers["x-request-key"].to_str().unwrap();
    KeyRule::UUID_V7.parse(key.trim_matches('"')).unwrap();
    assert_eq!(key.len(), 38);
    assert!(!seen[0].headers.contains_key("idempotency-key"));
}

#[tokio::test(start_paused = true)]
async fn a_mismatch_is_sent_once_and_reported() {
    for code in [
        r#"{"code":"mismatch"}"#,
        r#"{"error":{"code":"IDEMPOTENCY_CONFLICT"}}"#,
    ] {
        let service = Service::new([problem(422, code)]);
        let error = service
            .behind(&Retry::new())
            .oneshot(order())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Mismatch));
        assert_eq!(error.effect(), Effect::Possible);
        assert_eq!(service.seen().len(), 1);
        let answer = error.answer().unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.body()[..]),
            (422, code.as_bytes())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_is_an_error_of_its_own() {
    let unknown = problem(409, r#"{"code": "outcome-unknown"}"#);
    let service = Service::new([Does::Reset, unknown]);
    let error = service
        .behind(&Retry::new())
        .oneshot(order())
        .await
        .unwrap_err();
    assert!(error.is_unknown());
    assert_eq!((error.effect(), error.tries()), (Effect::Possible, 2));
    let text =
        "the outcome is unknown (status 409) after 2 tries; the operation may have had its effect";
    assert_eq!(error.to_string(), text);
}

#[tokio::test(start_paused = true)]
async fn a_lost_try_stays_lost() {
    let service = Service::new([Does::Reset, status(401)]);
    let error = service
        .behind(&Retry::new())
        .oneshot(order())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Unauthorized));
    assert_eq!(error.effect(), Effect::Possible);
    let service = Service::new([Does::Refuse, status(401)]);
    let error = service
        .behind(&Retry::new())
        .oneshot(order())
        .await
        .unwrap_err();
    assert_eq!((error.effect(), error.tries()), (Effect::None, 2));
    let refused = problem(400, r#"{"code": "invalid-key"}"#);
    let service = Service::new([Does::Refuse, refused.clone()]);
    let error = service
        .behind(&Retry::new())
        .oneshot(order())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NewKeyAllowed(Reason::InvalidKey));
    let service = Service::new([Does::Hang, refused]);
    let error = service
        .behind(&Retry::new())
        .oneshot(order())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::InvalidKey));
}

#[tokio::test(start_paused = true)]
async fn a_recorded_refusal_says_what_became_of_lost_tries() {
    let fields = [
        ("content-type", "application/problem+json"),
        ("idempotency-replayed", "true"),
    ];
    let refused = r#"{"code": "precondition-failed"}"#;
    let service = Service::new([Does::Reset, Does::Answer(412, fields.into(), refused)]);
    let error = service
        .behind(&Retry::new())
        .oneshot(order())
        .await
        .unwrap_err();
    let kind = ErrorKind::NewKeyAllowed(Reason::Precondition);
    assert_eq!((error.kind(), error.effect()), (kind, Effect::None));
}

#[tokio::test(start_paused = true)]
async fn without_a_key_only_what_is_idempotent_is_sent_again() {
    let retry = Retry::new().without_keys();
    let service = Service::new([status(503), status(200)]);
    let answer = service.behind(&retry).oneshot(order()).await.unwrap();
    // There is no intent that could be taken for done, so that callers read the status.
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(service.seen().len(), 1);
    let service = Service::new([Does::Reset, status(200)]);
    let error = service.behind(&retry).oneshot(order()).await.unwrap_err();
    assert!(error.is_unknown());
    assert_eq!(service.seen().len(), 1);
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let service = Service::new([Does::Reset, status(503), status(200)]);
        let answer = service
            .behind(&retry)
            .oneshot(request(method))
            .await
            .unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(service.seen().len(), 3);
    }
    let service = Service::new([Does::Refuse, status(200)]);
    let answer = service.behind(&retry).oneshot(order()).await.unwrap();
    assert_eq!(answer.extensions().get::<AnswerInfo>().unwrap().tries, 2);
}

#[tokio::test(start_paused = true)]
async fn pauses_are_drawn_from_bounds_that_double() {
    let retry = Retry::new()
        .with_deadline(Duration::from_hours(1))
        .with_pauses(Duration::from_secs(1), Duration::from_secs(8))
        .with_budget(1000, 1000);
    let bounds = [1, 2, 4, 8, 8, 8].map(Duration::from_secs);
    let mut shares = Vec::new();
    for _ in 0..100 {
        let mut script = vec![status(503); bounds.len()];
        script.push(status(200));
        let service = Service::new(script);
        service.behind(&retry).oneshot(order()).await.unwrap();
        let seen = service.seen();
        for (pair, bound) in seen.windows(2).zip(bounds) {
            let pause = pair[1].at - pair[0].at;
            // Timers go by whole milliseconds.
            assert!(
                pause <= bound + Duration::from_millis(2),
                "{pause:?} of {bound:?}"
            );
            shares.push(pause.as_secs_f64() / bound.as_secs_f64());
        }
    }
    // Full jitter: anywhere between nothing and the bound.
    let below = |part: f64| shares.iter().filter(|share| **share < part).count();
    assert_eq!(shares.len(), 600);
    assert!((60..240).contains(&below(0.25)), "{}", below(0.25));
    assert!((360..540).contains(&below(0.75)), "{}", below(0.75));
}

#[tokio::test(start_paused = true)]
async fn it_asks_no_earlier_than_told() {
    let busy = |after| Does::Answer(503, vec![("retry-after", after)], "");
    let service = Service::new([busy("7"), busy("3"), status(200)]);
    service
        .behind(&Retry::new())
        .oneshot(order())
        .await
        .unwrap();
    let seen = service.seen();
    assert!(seen[1].at - seen[0].at >= Duration::from_secs(7));
    assert!(seen[2].at - seen[1].at >= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn it_does_not_wait_for_what_comes_after_its_deadline() {
    let service = Service::new([Does::Answer(429, vec![("retry-after", "3600")], "")]);
    let began = Instant::now();
    let error = service
        .behind(&Retry::new())
        .oneshot(order())
        .await
        .unwrap_err();
    let retry_after = Duration::from_hours(1);
    assert_eq!(error.kind(), ErrorKind::GaveUp { retry_after });
    assert_eq!((error.effect(), error.tries()), (Effect::None, 1));
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(
        error.answer().unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

#[tokio::test(start_paused = true)]
async fn it_ends_at_its_deadline() {
    let deadline = Duration::from_secs(60);
    for does in [status(503), Does::Reset, Does::Hang, Does::Refuse] {
        let service = Service::new([does.clone()]);
        let began = Instant::now();
        let client = service.behind(&Retry::new().with_deadline(deadline));
        let error = client.oneshot(order()).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::GaveUp { .. }), "{error}");
        assert!(
            began.elapsed() <= deadline + Duration::from_millis(2),
            "{does:?}"
        );
        assert!(error.tries() >= 2, "{error}");
        let nothing_sent = matches!(does, Does::Refuse);
        assert_eq!(error.effect() == Effect::None, nothing_sent, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_that_hangs_is_given_up() {
    let service = Service::new([Does::Hang, status(201)]);
    let began = Instant::now();
    let client = service.behind(&Retry::new().with_try_timeout(Duration::from_secs(5)));
    client.oneshot(order()).await.unwrap();
    assert!((5..6).contains(&began.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_held_is_not_sent() {
    let service = Service::new([status(201)]);
    let client = service.behind(&Retry::new().with_max_body(8));
    let long = Request::post("http://shop.example/").body(Full::from(Bytes::from_static(&[0; 9])));
    let error = client.oneshot(long.unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Invalid));
    assert_eq!((error.effect(), error.tries()), (Effect::None, 0));
    assert!(service.seen().is_empty());
}
