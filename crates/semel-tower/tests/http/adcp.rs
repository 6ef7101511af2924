//! AdCP: its published vectors, and the life of a key (rows 18, 29, 30, 34, 67).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use semel::guard::Policy;
use semel::memory::MemoryStore;
use semel::store::Retention;
use semel::{ManualClock, StateKind, Store as _};
use semel_tower::{Dialect, IdempotencyLayer, Preset, adcp_payload_hash};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::{Answer, App, Call, Memory, clocked};

const K: &str = "0192f5a0-7c1e-4abc-8def-0123456789ab";

/// Each of them as it would be sent: with the members that do not count, which differ.
#[test]
fn row_34_the_published_vectors() {
    let vectors: Value = serde_json::from_str(include_str!("../vectors/adcp_hash.json")).unwrap();
    let vectors = vectors.as_object().unwrap();
    assert_eq!(vectors.len(), 5);
    for (nth, (name, vector)) in vectors.iter().enumerate() {
        let canonical = vector["canonical"].as_str().unwrap();
        let expected = vector["sha256"].as_str().unwrap();
        let hash =
            |body: &Value| hex::encode(adcp_payload_hash(body.to_string().as_bytes()).unwrap());
        let mut body: Value = serde_json::from_str(canonical).unwrap();
        assert_eq!(hash(&body), expected, "{name}");
        body["idempotency_key"] = json!(format!("{K}-{nth}"));
        body["context"] = json!({"trace": nth});
        body["governance_context"] = json!(format!("token {nth}"));
        body["push_notification_config"]["authentication"]["credentials"] = json!(nth);
        assert_eq!(hash(&body), expected, "{name}");
        // The list is closed: these count wherever else they stand.
        for pointer in ["/brand", "/ext", "/push_notification_config", ""] {
            let mut other = body.clone();
            let at = other.pointer_mut(pointer).unwrap();
            at["credentials"] = json!("1");
            assert_ne!(hash(&other), expected, "{name}: {pointer}");
        }
    }
}

#[test]
fn rows_29_30_what_is_no_i_json() {
    let hash = |body: &str| adcp_payload_hash(body.as_bytes());
    // By its formula, digits that a double does not keep do not count.
    assert_eq!(
        hash(r#"{"a":9007199254740993}"#),
        hash(r#"{"a":9007199254740992}"#)
    );
    assert_ne!(hash(r#"{"a":null}"#), hash("{}"));
    for bad in [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1e400}"#,
        "[]",
        "1",
        "",
        r#"{"a":"\ud800"}"#,
    ] {
        assert_eq!(hash(bad), None, "{bad}");
    }
}

/// A seller: what it sells is named by how often it sold.
#[derive(Clone)]
struct Seller {
    router: Router,
    sold: Arc<Mutex<Vec<Value>>>,
    gate: Arc<Semaphore>,
}

impl Seller {
    fn new<S: semel::Store>(layer: IdempotencyLayer<S>) -> Self {
        let sold = Arc::default();
        let gate = Arc::new(Semaphore::new(0));
        let state = (Arc::clone(&sold), Arc::clone(&gate));
        let router = Router::new()
            .route("/create_media_buy", post(sell))
            .with_state(state)
            .layer(layer);
        Self { router, sold, gate }
    }

    fn sold(&self) -> usize {
        self.sold.lock().unwrap().len()
    }

    async fn buy(&self, body: &Value) -> Answer {
        let app = App {
            router: self.router.clone(),
            execs: Default::default(),
        };
        app.send(Call::post("/create_media_buy").body(body.to_string()))
            .await
    }
}

type Shelf = (Arc<Mutex<Vec<Value>>>, Arc<Semaphore>);

async fn sell(State((sold, gate)): State<Shelf>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let n = {
        let mut sold = sold.lock().unwrap();
        sold.push(body.clone());
        sold.len()
    };
    if body["slow"] == true {
        gate.acquire().await.unwrap().forget();
    }
    let status = body["answers"].as_u64().unwrap_or(201);
    let status = StatusCode::from_u16(u16::try_from(status).unwrap()).unwrap();
    let mut answer = json!({
        "status": "completed",
        "media_buy_id": format!("mb_{n}"),
        "budget": body["budget"],
        "context": body["context"],
        // It must not say so of a fresh one.
        "replayed": true,
    });
    if let Some(task) = body.get("task") {
        answer = task.clone();
    }
    (status, axum::Json(answer)).into_response()
}

fn buy(trace: u32) -> Value {
    json!({
        "idempotency_key": K,
        "account": {"account_id": "acct_1"},
        "budget": 1000,
        "context": {"correlation_id": format!("trace {trace}")},
    })
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

#[track_caller]
fn says(answer: &Answer, status: u16, code: &str, context: &Value) {
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    let shown = (answer.status, body["error"]["code"].as_str());
    assert_eq!(shown, (status, Some(code)), "{answer:?}");
    // Clients find it where AdCP has it.
    assert_eq!(body["adcp_error"], body["error"]);
    assert_eq!(body["errors"], json!([body["error"]]));
    assert_eq!(&body["context"], context);
    assert_eq!(body.get("replayed"), None);
    assert!(!answer.text().contains(K) && !answer.text().contains("mb_"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
}

fn json_of(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

type Store = Arc<MemoryStore<Arc<ManualClock>>>;

fn seller() -> (Seller, Store, Arc<ManualClock>) {
    let (store, clock) = clocked();
    let layer = IdempotencyLayer::preset(Preset::Adcp, Arc::clone(&store));
    let layer = layer.checked().unwrap();
    let declared = layer.declaration().unwrap().unwrap();
    assert_eq!(
        declared,
        json!({"supported": true, "replay_ttl_seconds": 86400})
    );
    (Seller::new(layer), store, clock)
}

#[tokio::test]
async fn row_67_the_life_of_a_key() {
    let (seller, store, clock) = seller();
    // No key, and one that is none: the request's own context comes back.
    let mut without = buy(0);
    without.as_object_mut().unwrap().remove("idempotency_key");
    says(
        &seller.buy(&without).await,
        400,
        "INVALID_REQUEST",
        &without["context"],
    );
    let bad = with(buy(0), "idempotency_key", json!("too short"));
    says(
        &seller.buy(&bad).await,
        400,
        "INVALID_REQUEST",
        &bad["context"],
    );
    assert_eq!(seller.sold(), 0);

    // In flight: asked again with another payload it is a conflict at once.
    let slow = with(buy(1), "slow", json!(true));
    let first = tokio::spawn({
        let (seller, slow) = (seller.clone(), slow.clone());
        async move { seller.buy(&slow).await }
    });
    while seller.sold() == 0 {
        tokio::task::yield_now().await;
    }
    let retry = with(slow.clone(), "context", json!({"correlation_id": "retry"}));
    let in_flight = seller.buy(&retry).await;
    says(&in_flight, 409, "IDEMPOTENCY_IN_FLIGHT", &retry["context"]);
    let after = json_of(&in_flight)["error"]["retry_after"]
        .as_u64()
        .unwrap();
    assert!(after > 0 && after <= 86400, "{after}");
    assert_eq!(json_of(&in_flight)["error"]["recovery"], "transient");
    assert_eq!(in_flight.header("retry-after"), Some(&*after.to_string()));
    let other = with(retry.clone(), "budget", json!(2000));
    says(
        &seller.buy(&other).await,
        422,
        "IDEMPOTENCY_CONFLICT",
        &other["context"],
    );

    // Fresh: the handler's `replayed` is not passed on, and the rest of its answer is.
    seller.gate.add_permits(1);
    let first = first.await.unwrap();
    let fresh = json!({
        "status": "completed",
        "media_buy_id": "mb_1",
        "budget": 1000,
        "context": {"correlation_id": "trace 1"},
    });
    assert_eq!((first.status, json_of(&first)), (201, fresh.clone()));
    assert!(!first.is_replay());

    // Replay: marked, and with the retry's own context; none where it has none.
    let replay = seller.buy(&retry).await;
    let mut expected = with(fresh.clone(), "replayed", json!(true));
    expected["context"] = json!({"correlation_id": "retry"});
    assert_eq!((replay.status, json_of(&replay)), (201, expected.clone()));
    let mut bare = retry.clone();
    bare.as_object_mut().unwrap().remove("context");
    expected.as_object_mut().unwrap().remove("context");
    assert_eq!(json_of(&seller.buy(&bare).await), expected);

    // What is kept is never changed: it is the first answer, byte for byte.
    let page = store
        .list(&semel::store::ListQuery::new(StateKind::Completed))
        .await
        .unwrap();
    let [entry] = &page.entries[..] else {
        panic!("{page:?}")
    };
    let semel::State::Completed(outcome) = &entry.record.state else {
        panic!("{entry:?}")
    };
    assert_eq!(outcome.body().unwrap(), first.body);

    // Conflict: it says nothing of the first payload.
    let conflict = seller.buy(&other).await;
    says(&conflict, 422, "IDEMPOTENCY_CONFLICT", &other["context"]);
    let error = &json_of(&conflict)["error"];
    let members: Vec<_> = error.as_object().unwrap().keys().collect();
    assert_eq!(members, ["code", "message", "recovery"]);
    assert!(!conflict.text().contains("1000") && !conflict.text().contains("budget"));

    // Another account, another session, another agent: keys of their own.
    for (name, value) in [
        ("account", json!({"account_id": "acct_2"})),
        (
            "account",
            json!({"brand": {"domain": "acme.example"}, "operator": "o"}),
        ),
        ("session_id", json!("s1")),
    ] {
        let sold = seller.sold();
        assert_eq!(seller.buy(&with(buy(4), name, value)).await.status, 201);
        assert_eq!(seller.sold(), sold + 1, "{name}");
    }

    // Whatever runs from now on ends.
    seller.gate.add_permits(8);
    // Expired, by a tombstone; after that nobody knows.
    clock.advance(Duration::from_hours(24) - Duration::from_micros(1));
    assert_eq!(json_of(&seller.buy(&retry).await)["replayed"], true);
    clock.advance(Duration::from_micros(1));
    let sold = seller.sold();
    says(
        &seller.buy(&retry).await,
        409,
        "IDEMPOTENCY_EXPIRED",
        &retry["context"],
    );
    assert_eq!(seller.sold(), sold);
}

#[tokio::test]
async fn only_what_succeeded_is_kept() {
    let (seller, ..) = seller();
    let tasks = [
        (json!({"answers": 500}), false),
        (json!({"answers": 422}), false),
        (json!({"answers": 404}), false),
        (
            json!({"answers": 200, "task": {"status": "failed", "media_buy_id": "1"}}),
            false,
        ),
        (
            json!({"answers": 200, "task": {"errors": [{"code": "BUDGET_TOO_LOW"}]}}),
            false,
        ),
        (
            json!({"answers": 200, "task": {"adcp_error": {"code": "BUDGET_TOO_LOW"}}}),
            false,
        ),
        // Beside a result they are warnings.
        (
            json!({"answers": 200, "task": {"media_buy_id": "1", "errors": [{"code": "W"}]}}),
            true,
        ),
        (
            json!({"answers": 202, "task": {"status": "submitted", "task_id": "t"}}),
            true,
        ),
    ];
    for (nth, (task, is_kept)) in tasks.into_iter().enumerate() {
        let mut body = with(buy(1), "idempotency_key", json!(format!("{K}-{nth}")));
        body.as_object_mut()
            .unwrap()
            .extend(task.as_object().unwrap().clone());
        let sold = seller.sold();
        let first = seller.buy(&body).await;
        assert_eq!(json_of(&first).get("replayed"), None, "{task}");
        let second = seller.buy(&body).await;
        assert_eq!(
            json_of(&second).get("replayed").is_some(),
            is_kept,
            "{task}"
        );
        assert_eq!(seller.sold(), sold + if is_kept { 1 } else { 2 }, "{task}");
    }
}

/// What of a body is not marked and not looked at keeps its bytes.
#[tokio::test]
async fn members_of_an_answer_are_passed_on_as_they_were_written() {
    const WRITTEN: &str =
        r#"{"id":9007199254740993,"price": 1.10, "replayed" : true,"x":{"b":1,"a":[ ]}}"#;
    let layer = IdempotencyLayer::preset(Preset::Adcp, Memory::default());
    let app = App::answering(layer, |_| {
        ([("content-type", "application/json")], WRITTEN).into_response()
    });
    let call = || {
        Call::post("/t").body(format!(
            r#"{{"idempotency_key":"{K}","context":{{"n":1.50}}}}"#
        ))
    };
    let first = app.send(call()).await;
    assert_eq!(
        first.text(),
        r#"{"id":9007199254740993,"price":1.10,"x":{"b":1,"a":[ ]}}"#
    );
    assert_eq!(
        app.send(call()).await.text(),
        r#"{"id":9007199254740993,"price":1.10,"x":{"b":1,"a":[ ]},"replayed":true,"context":{"n":1.50}}"#
    );
    // No envelope: the field says it.
    let text = IdempotencyLayer::preset(Preset::Adcp, Memory::default());
    let app = App::answering(text, |_| "plain".into_response());
    app.send(call()).await.assert_first(200);
    assert!(app.send(call()).await.is_replay());
}

#[tokio::test]
async fn bodies_without_a_key() {
    let store = Memory::default();
    let layer = IdempotencyLayer::preset(Preset::Adcp, store)
        .with_policy(Policy::default().with_retention(Retention::ORDER))
        .with_max_request_body(100);
    let app = App::orders(layer);
    // None is required here: they run, and are not kept.
    for body in ["", "{}", r#"{"a":1}"#] {
        for _ in 0..2 {
            app.send(Call::post("/t").body(body))
                .await
                .assert_first(201);
        }
    }
    app.send(
        Call::post("/t")
            .content_type("text/plain")
            .body("x".repeat(200)),
    )
    .await
    .assert_first(201);
    assert_eq!(app.execs(), 7);
    // Whether these have one is not known.
    for body in ["[]", "{", r#"{"a":1,"a":2}"#, r#"{"idempotency_key":1}"#] {
        let answer = app.send(Call::post("/t").body(body)).await;
        says(&answer, 400, "INVALID_REQUEST", &Value::Null);
    }
    let answer = app.send(Call::post("/t").body(" ".repeat(200))).await;
    says(&answer, 413, "INVALID_REQUEST", &Value::Null);
    assert_eq!(app.execs(), 7);
}

/// A seller whose answers are these, and the answers to a first request and a retry with another context.
async fn twice(kind: &'static str, text: &'static str, most: usize) -> [Answer; 2] {
    let layer = IdempotencyLayer::preset(Preset::Adcp, Memory::default());
    let layer = layer.with_max_response_body(most);
    let app = App::answering(layer, move |_| {
        let fields = [
            ("content-type", kind),
            ("content-length", &text.len().to_string()),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        let mut answer = (fields, text).into_response();
        if kind.is_empty() {
            answer.headers_mut().remove("content-type");
        }
        answer
    });
    let ask = |trace: u32| {
        let body = json!({"idempotency_key": K, "context": {"trace": trace}});
        app.send(Call::post("/buy").body(body.to_string()))
    };
    let answers = [ask(1).await, ask(2).await];
    assert_eq!(app.execs(), 1);
    answers
}

/// Of an object that names a member twice, too; what cannot be read is not kept.
#[tokio::test]
async fn no_replay_has_the_first_request_s_context() {
    const JSON: &str = "application/json";
    for (text, replayed) in [
        (
            r#"{"id":1,"id":2,"context":{"trace":1}}"#,
            r#"{"id":1,"id":2,"context":{"trace":2},"replayed":true}"#,
        ),
        (
            r#"{"context":{"trace":1},"context":{"trace":1}}"#,
            r#"{"context":{"trace":2},"replayed":true}"#,
        ),
        ("[1]", "[1]"),
        ("\u{feff}{\"context\":{\"trace\":1}}", ""),
        (r#"{"\ud800":1,"context":{"trace":1}}"#, ""),
        (r#"{"context":{"trace":1}"#, ""),
    ] {
        let [first, replay] = twice(JSON, text, 1 << 10).await;
        assert_eq!((first.text(), replay.text()), (text, replayed));
        let is_omitted = replay.header("idempotency-body-omitted").is_some();
        assert_eq!(is_omitted, replayed.is_empty(), "{text}");
    }
}

/// An object is an envelope unless its media type says that it is something else.
#[tokio::test]
async fn answers_that_do_not_say_what_they_are_are_looked_into() {
    let text = r#"{"id":1,"replayed":true,"context":{"trace":1}}"#;
    for kind in ["", "text/plain", "text/plain; charset=utf-8"] {
        let [first, replay] = twice(kind, text, 1 << 10).await;
        assert_eq!(first.text(), r#"{"id":1,"context":{"trace":1}}"#, "{kind}");
        let replayed = r#"{"id":1,"context":{"trace":2},"replayed":true}"#;
        assert_eq!(replay.text(), replayed, "{kind}");
        let [first, _] = twice(kind, text, 20).await;
        assert!(first.text().contains("\"replayed\":false"), "{kind}");
        // What is no object is a text.
        let other = "{name}: \"replayed\":true";
        let [first, replay] = twice(kind, other, 1 << 10).await;
        assert_eq!((first.text(), replay.text()), (other, other), "{kind}");
    }
    let other = r#"a text {"replayed":true}"#;
    let [first, _] = twice("text/plain", other, 20).await;
    assert_eq!(first.text(), other);
    let [first, replay] = twice("application/xml", text, 1 << 10).await;
    assert_eq!((first.text(), replay.text()), (text, text));
}

/// Whatever words its refusals are in.
#[tokio::test]
async fn replays_are_envelopes_in_another_dialect_too() {
    let layer = IdempotencyLayer::preset(Preset::Adcp, Memory::default());
    let app = App::answering(layer.with_dialect(Dialect::Problem), |n| match n {
        1 => axum::Json(json!({"status": "failed"})).into_response(),
        _ => axum::Json(json!({"context": {"trace": 2}})).into_response(),
    });
    let ask = async |trace: u32| {
        let body = json!({"idempotency_key": K, "context": {"trace": trace}});
        json_of(&app.send(Call::post("/buy").body(body.to_string())).await)
    };
    assert_eq!(ask(1).await, json!({"status": "failed"}));
    assert_eq!(ask(2).await, json!({"context": {"trace": 2}}));
    let replay = json!({"context": {"trace": 3}, "replayed": true});
    assert_eq!(ask(3).await, replay);
}

/// Too long to be kept, it passes as it comes: but for its mark.
#[tokio::test]
async fn a_long_first_answer_is_none_that_was_replayed() {
    let text = r#"{"replayed": true, "items": [{"replayed": true}, "and so on"]}"#;
    let [first, replay] = twice("application/json", text, 20).await;
    let unmarked = r#"{"replayed": false, "items": [{"replayed": true}, "and so on"]}"#;
    assert_eq!(first.text(), unmarked);
    assert_eq!(first.header("content-length"), None);
    assert_eq!(replay.header("idempotency-body-omitted"), Some("true"));
}
