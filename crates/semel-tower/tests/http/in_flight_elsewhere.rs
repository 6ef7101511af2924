//! A service behind the layer that dedupes itself: its 409 says that the same operation is running,
//! not how it ended.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;

use crate::support::{App, Call, layer};

fn conflict(media_type: &'static str, body: &str) -> Response {
    let fields = [("content-type", media_type)];
    (StatusCode::CONFLICT, fields, body.to_owned()).into_response()
}

/// Answers with this conflict, then 201.
fn first(answer: impl Fn() -> Response + Clone + Send + Sync + 'static) -> App {
    App::answering(layer(), move |n| match n {
        1 => answer(),
        _ => (StatusCode::CREATED, "placed").into_response(),
    })
}

async fn releases(app: App) {
    let answer = app.send(Call::order()).await;
    answer.assert_first(409);
    assert!(!answer.body.is_empty());
    let placed = app.send(Call::order()).await;
    placed.assert_first(201);
    app.send(Call::order()).await.assert_replay_of(&placed);
    assert_eq!(app.execs(), 2);
}

async fn is_kept(app: App) {
    let answer = app.send(Call::order()).await;
    answer.assert_first(409);
    app.send(Call::order()).await.assert_replay_of(&answer);
    assert_eq!(app.execs(), 1);
}

const PROBLEM: &str = "application/problem+json";

#[tokio::test]
async fn a_409_with_retry_after_releases() {
    for body in ["wait", ""] {
        let app = first(move || {
            let fields = [("retry-after", "1")];
            (StatusCode::CONFLICT, fields, format!("{body}.")).into_response()
        });
        releases(app).await;
    }
}

#[tokio::test]
async fn a_409_whose_code_says_in_flight_releases() {
    for (media_type, body) in [
        (PROBLEM, r#"{"status":409,"code":"in-flight"}"#),
        ("application/json", r#"{"code":"IN_FLIGHT"}"#),
        (
            "application/json; charset=utf-8",
            r#"{"error":{"type":"idempotency_error","code":"idempotency_key_in_use"}}"#,
        ),
        (
            "application/json",
            r#"{"errors":[{"code":"IDEMPOTENCY_IN_FLIGHT"}]}"#,
        ),
        ("application/json", r#"{"code":"idempotency.in-progress"}"#),
        ("application/json", r#"{"code":"request_in_progress"}"#),
    ] {
        releases(first(move || conflict(media_type, body))).await;
    }
}

#[tokio::test]
async fn a_409_whose_code_says_unknown_is_unknown() {
    for retry_after in [None, Some("1")] {
        let app = first(move || {
            let body = r#"{"status":409,"code":"outcome-unknown"}"#;
            let mut answer = conflict(PROBLEM, body);
            if let Some(after) = retry_after {
                let after = after.parse().unwrap();
                answer.headers_mut().insert("retry-after", after);
            }
            answer
        });
        app.send(Call::order()).await.assert_first(409);
        app.send(Call::order())
            .await
            .assert_problem(409, "outcome-unknown");
        assert_eq!(app.execs(), 1);
    }
}

#[tokio::test]
async fn every_other_409_is_kept() {
    let long = format!(r#"{{"code":"in-flight","pad":"{}"}}"#, "x".repeat(20_000));
    for (media_type, body) in [
        (PROBLEM, r#"{"status":409,"code":"sold-out"}"#),
        ("application/json", r#"{"detail":"in-flight"}"#),
        ("application/json", r#"{"code":7}"#),
        ("application/json", "in-flight"),
        ("application/json", ""),
        ("text/plain", r#"{"code":"in-flight"}"#),
        // No problem is that long: it is not looked into.
        (PROBLEM, long.leak()),
    ] {
        is_kept(first(move || conflict(media_type, body))).await;
    }
    // Only 409 says it.
    let app = first(|| {
        let body = r#"{"code":"in-flight"}"#;
        (StatusCode::GONE, [("content-type", PROBLEM)], body).into_response()
    });
    let answer = app.send(Call::order()).await;
    answer.assert_first(410);
    app.send(Call::order()).await.assert_replay_of(&answer);
}
