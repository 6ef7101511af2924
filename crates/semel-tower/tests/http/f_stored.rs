//! F. What is stored; errors (rows 59 to 66; 67 is AdCP's, 68 is in `socket`).

use std::collections::HashSet;

use axum::response::{IntoResponse as _, Response};
use http::{HeaderName, StatusCode};
use semel::memory::{Limits, MemoryStore};
use semel::store::Store as _;
use semel_tower::{
    Dialect, Disposition, IdempotencyLayer, Preset, Problem, ProblemCode, Rate, ScopeLimits,
};
use serde_json::Value;

use crate::support::{Answer, App, Call, K, Memory, clocked, layer, layer_over, policy};

/// Answers `first`, then 201.
fn first(status: u16) -> App {
    App::answering(layer(), move |n| {
        let status = if n == 1 { status } else { 201 };
        (
            StatusCode::from_u16(status).unwrap(),
            [("retry-after", "7")],
            format!("answer {n}"),
        )
            .into_response()
    })
}

#[tokio::test]
async fn row_59_rejections_are_not_recorded_and_the_key_takes_another_body() {
    for status in [
        400, 401, 403, 405, 406, 411, 413, 414, 415, 417, 421, 426, 428, 431, 503,
    ] {
        let app = first(status);
        app.send(Call::order().body("invalid"))
            .await
            .assert_first(status);
        app.send(Call::order().body("corrected"))
            .await
            .assert_first(201);
        assert!(app.send(Call::order().body("corrected")).await.is_replay());
    }
}

#[derive(serde::Deserialize)]
struct Order {
    item: String,
    count: u32,
}

/// Sends what axum refuses, and then the same order corrected.
async fn corrected(app: &App, refused: Call, text: &str, corrected: Call) {
    let answer = app.send(refused).await;
    answer.assert_first(422);
    assert!(answer.text().starts_with(text), "{}", answer.text());
    assert_eq!(app.execs(), 0);
    let first = app.send(corrected.clone()).await;
    first.assert_first(201);
    assert_eq!(first.text(), "3 apples");
    app.send(corrected).await.assert_replay_of(&first);
    assert_eq!(app.execs(), 1);
}

/// With axum's own extractors: another text of theirs must show here.
#[tokio::test]
async fn row_59_a_body_that_axum_refuses_takes_another_body() {
    use axum::{Form, Json, Router, routing::post};
    let app = || {
        App::routing(|execs| {
            let place = {
                let execs = execs.clone();
                move |order: Order| {
                    execs.add();
                    let placed = format!("{} {}", order.count, order.item);
                    (StatusCode::CREATED, placed)
                }
            };
            let json = {
                let place = place.clone();
                async move |Json(order): Json<Order>| place(order)
            };
            let form = async move |Form(order): Form<Order>| place(order);
            Router::new()
                .route("/json", post(json))
                .route("/form", post(form))
                .layer(layer())
        })
    };
    let json = |body: &'static str| Call::post("/json").key(K).body(body);
    for refused in [r#"{"item":"apples"}"#, r#"{"item":"apples","count":"3"}"#] {
        corrected(
            &app(),
            json(refused),
            "Failed to deserialize the JSON body into the target type",
            json(r#"{"item":"apples","count":3}"#),
        )
        .await;
    }
    let form = |body: &'static str| {
        let call = Call::post("/form").key(K).body(body);
        call.content_type("application/x-www-form-urlencoded")
    };
    for refused in ["item=apples", "item=apples&count=three"] {
        corrected(
            &app(),
            form(refused),
            "Failed to deserialize form body",
            form("item=apples&count=3"),
        )
        .await;
    }
}

#[tokio::test]
async fn row_60_a_failure_of_the_server_runs_again() {
    for status in [500, 501, 503] {
        let app = first(status);
        app.send(Call::order()).await.assert_first(status);
        app.send(Call::order()).await.assert_first(201);
        assert_eq!(app.execs(), 2);
    }
}

#[tokio::test]
async fn row_60_62_who_gave_up_waiting_does_not_know() {
    for status in [408, 502, 504] {
        let app = first(status);
        app.send(Call::order()).await.assert_first(status);
        for _ in 0..2 {
            let second = app.send(Call::order()).await;
            second.assert_problem(409, "outcome-unknown");
        }
        assert_eq!(app.execs(), 1);
    }
}

#[tokio::test]
async fn row_60_61_or_as_the_application_decides() {
    let keep_all = layer().with_classifier(|_| Disposition::KeepFailure);
    let app = App::answering(keep_all, |_| {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    });
    let first = app.send(Call::order()).await;
    app.send(Call::order()).await.assert_replay_of(&first);
    // What a handler states counts, whatever the classifier says.
    let keep_all = layer().with_classifier(|_| Disposition::KeepSuccess);
    let app = App::answering(keep_all, |_| {
        (StatusCode::OK, axum::Extension(Disposition::Release)).into_response()
    });
    app.send(Call::order()).await.assert_first(200);
    app.send(Call::order()).await.assert_first(200);
    assert_eq!(app.execs(), 2);
}

#[tokio::test]
async fn row_60_61_or_as_is_set_for_a_status() {
    let layer = layer()
        .with_classifier(|_| Disposition::KeepFailure)
        .with_disposition(StatusCode::BAD_GATEWAY, Disposition::Release)
        .with_disposition(StatusCode::INTERNAL_SERVER_ERROR, Disposition::Unknown);
    let app = App::answering(layer, |n| {
        let statuses = [502, 500, 503];
        StatusCode::from_u16(statuses[n - 1])
            .unwrap()
            .into_response()
    });
    app.send(Call::order()).await.assert_first(502);
    app.send(Call::order()).await.assert_first(500);
    app.send(Call::order())
        .await
        .assert_problem(409, "outcome-unknown");
    // Of other statuses the classifier says it.
    let other = || Call::post("/orders").key("\"other\"");
    let kept = app.send(other()).await;
    kept.assert_first(503);
    app.send(other()).await.assert_replay_of(&kept);
    assert_eq!(app.execs(), 3);
}

#[tokio::test]
async fn row_61_lasting_failures_are_replayed() {
    for status in [402, 404, 409, 410, 412, 422] {
        let app = App::answering(layer(), move |n| {
            let status = StatusCode::from_u16(status).unwrap();
            (status, format!("answer {n}")).into_response()
        });
        let answer = app.send(Call::order()).await;
        answer.assert_first(status);
        app.send(Call::order()).await.assert_replay_of(&answer);
        assert_eq!(app.execs(), 1);
    }
}

#[tokio::test]
async fn row_62_425_and_429_are_never_recorded() {
    for status in [425, 429] {
        let app = first(status);
        let answer = app.send(Call::order()).await;
        answer.assert_first(status);
        assert_eq!(answer.header("retry-after"), Some("7"));
        app.send(Call::order()).await.assert_first(201);
    }
}

#[tokio::test]
async fn row_63_a_failure_in_a_200_envelope_is_found_by_a_hook() {
    let layer = layer().with_classifier(|reply| match reply.body {
        Some(body) if body.starts_with(br#"{"errors""#) => Disposition::Release,
        _ => Disposition::of_status(reply.head.status),
    });
    let app = App::answering(layer, |n| {
        if n == 1 {
            r#"{"errors":[]}"#
        } else {
            r#"{"data":{}}"#
        }
        .into_response()
    });
    app.send(Call::order()).await.assert_first(200);
    let second = app.send(Call::order()).await;
    second.assert_first(200);
    app.send(Call::order()).await.assert_replay_of(&second);
    assert_eq!(app.execs(), 2);
}

/// One answer of every kind that the layer gives itself.
async fn every_problem() -> Vec<Answer> {
    use crate::support::pieces;
    use semel::store::Retention;
    use std::time::Duration;
    use tower::ServiceExt as _;

    let mut all = Vec::new();
    let app = App::orders(
        layer()
            .with_max_request_body(100)
            .with_principal_by(|parts| {
                parts
                    .headers
                    .get("x-user")
                    .map(|_| semel::Scope::new(["user"]))
            })
            .with_principal_required(true),
    );
    let user = |call: Call| call.header("x-user", "1");
    all.push(app.send(Call::post("/orders")).await);
    all.push(app.send(Call::post("/orders").key("\"bad")).await);
    all.push(app.send(Call::order()).await);
    let (sender, broken) = http_body_util::channel::Channel::<bytes::Bytes, std::io::Error>::new(1);
    sender.abort(std::io::Error::other("broken"));
    let request = user(Call::order()).request_with(axum::body::Body::new(broken));
    all.push(Answer::of(app.router.clone().oneshot(request).await.unwrap()).await);
    let request = user(Call::order()).request_with(pieces(&["secret-body"; 10]));
    all.push(Answer::of(app.router.clone().oneshot(request).await.unwrap()).await);
    app.send(user(Call::order())).await.assert_first(201);
    all.push(app.send(user(Call::order()).body("secret-body")).await);

    let app = App::answering(layer(), |_| {
        (StatusCode::OK, axum::Extension(Disposition::Unknown)).into_response()
    });
    app.send(Call::order()).await.assert_first(200);
    all.push(app.send(Call::order()).await);

    let app = App::running(layer(), |_| std::future::pending::<Response>());
    let running = tokio::spawn({
        let app = app.clone();
        async move { app.send(Call::order()).await }
    });
    while app.execs() == 0 {
        tokio::task::yield_now().await;
    }
    all.push(app.send(Call::order()).await);
    running.abort();

    let (store, clock) = clocked();
    let retention = Retention::new(Duration::from_secs(1)).with_tombstone(Duration::from_secs(9));
    let app =
        App::orders(IdempotencyLayer::new(store).with_policy(policy().with_retention(retention)));
    app.send(Call::order()).await.assert_first(201);
    clock.advance(Duration::from_secs(2));
    all.push(app.send(Call::order()).await);

    let store = Memory::default();
    store.close().await.unwrap();
    all.push(App::orders(layer_over(&store)).send(Call::order()).await);

    let full = MemoryStore::new(Limits {
        records: 0,
        bytes: 0,
    });
    all.push(
        App::orders(IdempotencyLayer::new(full))
            .send(Call::order())
            .await,
    );

    let app = App::orders(layer().with_max_attempts(0));
    all.push(app.send(Call::order()).await);
    let limits = ScopeLimits::new().with_new_keys(Rate::new(1, Duration::from_hours(1)));
    let app = App::orders(layer().with_scope_limits(limits));
    app.send(Call::post("/orders").key("first"))
        .await
        .assert_first(201);
    all.push(app.send(Call::order()).await);

    let oasis = layer()
        .with_preset(Preset::Oasis)
        .with_dialect(Dialect::Problem);
    let app = App::orders(oasis);
    let repeatable = |method: &str| {
        Call::new(method.parse().unwrap(), "/orders")
            .header("repeatability-request-id", K)
            .header("repeatability-first-sent", "Sun, 06 Nov 1994 08:49:37 GMT")
    };
    all.push(app.send(repeatable("POST")).await);
    all.push(app.send(repeatable("REPORT")).await);
    all
}

#[tokio::test]
async fn row_64_65_problems_are_whole_distinct_and_say_nothing_of_the_content() {
    let answers = every_problem().await;
    let mut types = HashSet::new();
    for (answer, code) in answers.iter().zip([
        "missing-key",
        "invalid-key",
        "missing-principal",
        "incomplete-body",
        "too-large",
        "mismatch",
        "outcome-unknown",
        "in-flight",
        "expired",
        "store-unavailable",
        "capacity",
        "overloaded",
        "limit",
        "outside-window",
        "not-supported",
    ]) {
        assert_eq!(answer.code(), code);
        let problem: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(problem["status"], answer.status);
        let uri = problem["type"].as_str().unwrap().to_owned();
        assert!(uri.starts_with("https://") && uri.ends_with(code), "{uri}");
        assert_eq!(
            answer.header("link"),
            Some(&*format!("<{uri}>; rel=\"describedby\""))
        );
        for member in ["title", "detail"] {
            assert!(!problem[member].as_str().unwrap().is_empty(), "{code}");
        }
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{code}");
        let retry = [
            "in-flight",
            "limit",
            "overloaded",
            "store-unavailable",
            "capacity",
        ]
        .contains(&code);
        assert_eq!(answer.header("retry-after").is_some(), retry, "{code}");
        let whole = format!("{answer:?}");
        for secret in [
            K.trim_matches('"'),
            "secret-body",
            "apple",
            "{\"id\"",
            "bad",
        ] {
            assert!(!whole.contains(secret), "{code}: {whole}");
        }
        types.insert(uri);
    }
    assert_eq!(
        (answers.len(), types.len()),
        (ProblemCode::ALL.len(), ProblemCode::ALL.len())
    );
}

#[tokio::test]
async fn row_64_types_can_be_ones_own() {
    let layer = layer().with_problem_base("https://api.example/problems/");
    let answer = App::orders(layer)
        .send(Call::post("/orders").header("accept", "text/html"))
        .await;
    let problem: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["type"], "https://api.example/problems/missing-key");
    assert_eq!(
        answer.header("link"),
        Some("<https://api.example/problems/missing-key>; rel=\"describedby\"")
    );
}

#[tokio::test]
async fn row_66_the_layers_422_is_told_from_the_applications() {
    let app = first(422);
    let own = app.send(Call::order()).await;
    own.assert_first(422);
    assert_eq!(own.text(), "answer 1");
    app.send(Call::order()).await.assert_replay_of(&own);
    app.send(Call::order().body("other"))
        .await
        .assert_problem(422, "mismatch");
}

#[tokio::test]
async fn a_service_outside_can_write_problems_in_another_form() {
    let mut app = App::orders(layer());
    app.router = app.router.layer(axum::middleware::map_response(
        async |response: Response| match response.extensions().get::<Problem>() {
            Some(problem) if problem.code == ProblemCode::MissingKey => {
                (StatusCode::IM_A_TEAPOT, problem.code.as_str()).into_response()
            }
            _ => response,
        },
    ));
    let answer = app.send(Call::post("/orders")).await;
    assert_eq!((answer.status, answer.text()), (418, "missing-key"));
}

#[tokio::test]
async fn row_78_the_key_is_in_no_debug_output() {
    let name = HeaderName::from_static("x-user");
    let layer = layer().with_principal_header(name);
    let shown = format!("{layer:?}");
    assert!(shown.contains("x-user") && !shown.contains(K.trim_matches('"')));
}

#[tokio::test]
async fn a_full_store_takes_no_new_keys_and_replays_the_old() {
    let limits = Limits {
        records: 1,
        ..Limits::default()
    };
    let app = App::orders(IdempotencyLayer::new(MemoryStore::new(limits)));
    let first = app.send(Call::order()).await;
    let other = Call::post("/orders").key("\"other\"");
    app.send(other).await.assert_problem(503, "capacity");
    app.send(Call::order()).await.assert_replay_of(&first);
    assert_eq!(app.execs(), 1);
}
