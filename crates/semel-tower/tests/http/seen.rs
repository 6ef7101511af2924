//! What an observer is told of requests: refusals too, and never a key.

use std::io;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use bytes::Bytes;
use http_body_util::channel::Channel;
use semel::guard::{Guard, Observer, Seen, Signal};
use semel_tower::{IdempotencyLayer, Rate, ScopeLimits};
use tower::ServiceExt as _;

use crate::support::{Answer, App, Call, K, Memory, order_record, pieces, policy};

#[derive(Default)]
struct Watch(Mutex<Vec<String>>);

impl Observer for Watch {
    fn on_event(&self, seen: &Seen<'_>) {
        let key = K.trim_matches('"');
        assert!(!format!("{seen:?}").contains(key), "{seen:?}");
        let (known, _) = order_record();
        let id = seen.id.map(|id| *id == *known.digest());
        let operation = seen.operation.unwrap_or("?");
        let line = match (id, seen.key_hint) {
            (None, None) => format!("{} {operation}", seen.signal.as_str()),
            (Some(true), Some("8e03978e")) => format!("{} {operation} named", seen.signal.as_str()),
            other => panic!("{other:?}"),
        };
        self.0.lock().unwrap().push(line);
    }
}

fn watched(
    set: impl FnOnce(IdempotencyLayer<Memory>) -> IdempotencyLayer<Memory>,
) -> (App, Arc<Watch>) {
    let watch = Arc::new(Watch::default());
    let guard = Guard::builder(Memory::default())
        .policy(policy())
        .observer(watch.clone());
    let layer = set(IdempotencyLayer::new(guard.build()));
    (App::orders(layer), watch)
}

async fn told(
    set: impl FnOnce(IdempotencyLayer<Memory>) -> IdempotencyLayer<Memory>,
    call: Call,
    status: u16,
) -> Vec<String> {
    let (app, watch) = watched(set);
    assert_eq!(app.send(call).await.status, status);
    watch.0.lock().unwrap().clone()
}

#[tokio::test]
async fn a_refusal_before_the_claim_is_an_event() {
    let plain = Call::post("/orders");
    let long = Call::order().body("four").header("content-length", "4");
    let small = |layer: IdempotencyLayer<_>| layer.with_max_request_body(3);
    let by_path = |layer: IdempotencyLayer<_>| {
        layer.with_operation_by(|parts| parts.uri.path().trim_matches('/').to_owned())
    };
    for (told, expected) in [
        (told(|it| it, plain.clone(), 400).await, "missing_key http"),
        // The caller would choose it.
        (told(by_path, plain.clone(), 400).await, "missing_key ?"),
        (
            told(|it| it, plain.clone().key("\"\""), 400).await,
            "invalid_key http",
        ),
        (
            told(|it| it.with_principal_required(true), Call::order(), 400).await,
            "missing_principal http",
        ),
        (told(small, long, 413).await, "too_large http"),
        (
            told(|it| it.with_max_body_memory(1), Call::order(), 503).await,
            "overloaded http named",
        ),
        (
            told(|it| it.with_max_attempts(0), Call::order(), 503).await,
            "overloaded http named",
        ),
    ] {
        assert_eq!(told, [expected]);
    }
}

/// Of a body whose length nobody announced the key is known before it turns out to be too long, or
/// breaks off.
#[tokio::test]
async fn a_body_that_disappoints_is_an_event() {
    let (sender, broken) = Channel::<Bytes, io::Error>::new(1);
    sender.abort(io::Error::other("the connection broke"));
    for (body, status, expected) in [
        (pieces(&["ab", "cd"]), 413, "too_large http named"),
        (Body::new(broken), 400, "incomplete_body http named"),
    ] {
        let (app, watch) = watched(|layer| layer.with_max_request_body(3));
        let request = Call::order().request_with(body);
        let response = app.router.clone().oneshot(request).await.unwrap();
        assert_eq!(Answer::of(response).await.status, status);
        assert_eq!(*watch.0.lock().unwrap(), [expected]);
    }
}

#[tokio::test]
async fn each_request_is_told_with_its_operation() {
    let (app, watch) = watched(|layer| {
        layer
            .with_policy(policy().with_key_required(false))
            .with_operation("place_order")
    });
    app.send(Call::post("/orders")).await.assert_first(201);
    assert_eq!(*watch.0.lock().unwrap(), ["unkeyed place_order"]);

    let (app, watch) = watched(|layer| layer);
    let first = app.send(Call::order()).await;
    app.send(Call::order()).await.assert_replay_of(&first);
    let told = watch.0.lock().unwrap().clone();
    let kinds = [Signal::New, Signal::Completed, Signal::Replayed];
    let lines = kinds.map(|signal| format!("{} http named", signal.as_str()));
    assert_eq!(told, lines);
}

#[derive(Default)]
struct Signals(Mutex<Vec<Signal>>);

impl Observer for Signals {
    fn on_event(&self, seen: &Seen<'_>) {
        assert!(seen.id.is_some() && seen.key_hint.is_some());
        self.0.lock().unwrap().push(seen.signal);
    }
}

#[tokio::test(start_paused = true)]
async fn a_scope_beyond_its_limit_is_an_event() {
    let signals = Arc::new(Signals::default());
    let guard = Guard::builder(Memory::default()).observer(signals.clone());
    let limits = ScopeLimits::new().with_new_keys(Rate::per_second(1));
    let app = App::orders(IdempotencyLayer::new(guard.build()).with_scope_limits(limits));
    app.send(Call::post("/orders").key("first"))
        .await
        .assert_first(201);
    app.send(Call::order()).await.assert_problem(429, "limit");
    let told = signals.0.lock().unwrap();
    assert_eq!(told.last(), Some(&Signal::Limited));
}
