//! `--mode observe`: nothing is changed, and what would have been is counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::support::{Gateway, eventually, get, read_whole, request, send};

/// A service that says what it got, and how often it ran; `/held` answers once it may.
#[derive(Default)]
struct Service {
    ran: AtomicUsize,
    held: Option<Semaphore>,
}

async fn serve(service: Arc<Service>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/{*path}", post(run).put(run))
        .with_state(service);
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    address
}

async fn run(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: String,
) -> impl IntoResponse {
    let ran = service.ran.fetch_add(1, Ordering::SeqCst) + 1;
    if let Some(held) = &service.held {
        held.acquire().await.unwrap().forget();
    }
    let status = match body.contains("fails") {
        true => StatusCode::INTERNAL_SERVER_ERROR,
        false => StatusCode::CREATED,
    };
    let names: Vec<_> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("idempotency"))
        .map(ToString::to_string)
        .collect();
    let answer = json!({ "ran": ran, "body": body, "fields": names });
    let fields = [
        ("idempotency-replayed", "the service's own"),
        ("etag", "\"1\""),
    ];
    (status, fields, answer.to_string())
}

/// Method, key and body of a request.
type Sent = (Method, Option<String>, String);

fn sent(key: &str, body: &str) -> Sent {
    (Method::POST, Some(format!("\"{key}\"")), body.to_owned())
}

/// 200 requests that are all new to the gateway, as far as it can tell: 170 keys, of which 10 fail, 27 times none, and three that are
/// no keys.
fn first() -> Vec<Sent> {
    let keys = (0..170).map(|n| match n % 17 {
        0 => sent(&format!("key-{n}"), "fails"),
        _ => sent(&format!("key-{n}"), "a body"),
    });
    let none = (0..27).map(|n| (Method::POST, None, format!("no key {n}")));
    let wrong = ["a b", "\"open", ""].map(|key| (Method::POST, Some(key.to_owned()), "x".into()));
    keys.chain(none).chain(wrong).collect()
}

/// 20 of them again: 10 that were answered, 4 with another body, 6 that failed; one is a PUT without a key.
fn again() -> Vec<Sent> {
    let answered = (1..11).map(|n| sent(&format!("key-{n}"), "a body"));
    let others = (11..15).map(|n| sent(&format!("key-{n}"), "another body"));
    let failed = (0..6).map(|n| sent(&format!("key-{}", n * 17), "fails"));
    let put = (Method::PUT, None, "no key".to_owned());
    answered.chain(others).chain(failed).chain([put]).collect()
}

/// Everything that a client gets, but for the time.
async fn answers(address: SocketAddr, all: &[Sent]) -> Vec<(StatusCode, HeaderMap, Vec<u8>)> {
    let mut answers = Vec::new();
    for (method, key, body) in all {
        let key: Vec<_> = key
            .iter()
            .map(|key| ("idempotency-key", key.as_str()))
            .collect();
        let request = request(method.clone(), address, "/orders", &key, body);
        let mut answer = send(request).await.unwrap();
        answer.headers.remove("date");
        answers.push((answer.status, answer.headers, answer.body.to_vec()));
    }
    answers
}

async fn count(gateway: &Gateway, event: &str) -> u64 {
    count_on(gateway, "default", event).await
}

async fn count_on(gateway: &Gateway, route: &str, event: &str) -> u64 {
    let metrics = get(gateway.admin, "/metrics").await;
    let name = format!("semel_observed_total{{route=\"{route}\",event=\"{event}\"}} ");
    let line = metrics.text().lines().find(|line| line.starts_with(&name));
    line.unwrap()[name.len()..].parse().unwrap()
}

async fn counted(gateway: &Gateway, event: &str, expected: u64) {
    let what = format!("{expected} times {event}");
    eventually(&what, async || {
        (count(gateway, event).await >= expected).then_some(())
    })
    .await;
    assert_eq!(count(gateway, event).await, expected, "{event}");
}

#[tokio::test]
async fn answers_are_those_of_the_service_alone_and_the_counts_are_right() {
    let alone = serve(Arc::default()).await;
    let behind = serve(Arc::default()).await;
    let flags = ["--mode", "observe", "--require-key", "--wait", "30s"];
    let gateway = Gateway::start(behind, &flags);
    let expected = answers(alone, &first()).await;
    assert_eq!(answers(gateway.address, &first()).await, expected);
    counted(&gateway, "new", 170).await;
    counted(&gateway, "completed", 160).await;
    counted(&gateway, "released", 10).await;
    counted(&gateway, "missing_key", 27).await;
    counted(&gateway, "invalid_key", 3).await;
    counted(&gateway, "replayed", 0).await;

    let expected = answers(alone, &again()).await;
    assert_eq!(answers(gateway.address, &again()).await, expected);
    counted(&gateway, "replayed", 10).await;
    counted(&gateway, "mismatch", 4).await;
    counted(&gateway, "again", 6).await;
    counted(&gateway, "missing_key", 27).await;
    counted(&gateway, "unkeyed", 1).await;
    let lines = gateway.log();
    let told = |would| lines.lines().filter(|line| line.contains(would)).count();
    assert_eq!(told("it would replay the answer"), 10, "{lines}");
    assert_eq!(told("it would answer 422"), 4);
    assert!(!lines.contains("key-11"), "{lines}");
    // Not among what happened.
    let metrics = get(gateway.admin, "/metrics").await;
    assert!(
        metrics
            .text()
            .contains("semel_events_total{event=\"replayed\"} 0")
    );
}

#[tokio::test]
async fn a_duplicate_in_flight_goes_to_the_service_as_well() {
    let service = Arc::new(Service {
        held: Some(Semaphore::new(0)),
        ..Service::default()
    });
    let gateway = Gateway::start(serve(service.clone()).await, &["--mode", "observe"]);
    let ask = || {
        let all = [sent("key", "a body")];
        let address = gateway.address;
        tokio::spawn(async move { answers(address, &all).await })
    };
    let ran = async |times| {
        let runs =
            || std::future::ready((service.ran.load(Ordering::SeqCst) == times).then_some(()));
        eventually("it runs", runs).await;
    };
    let one = ask();
    ran(1).await;
    counted(&gateway, "new", 1).await;
    let two = ask();
    ran(2).await;
    counted(&gateway, "in_flight", 1).await;
    service.held.as_ref().unwrap().add_permits(2);
    for answered in [one, two] {
        assert_eq!(answered.await.unwrap()[0].0, StatusCode::CREATED);
    }
}

#[tokio::test]
async fn what_was_observed_means_nothing_to_a_gateway_that_enforces() {
    let upstream = serve(Arc::default()).await;
    let mut observing = Gateway::start(upstream, &["--mode", "observe"]);
    let all = [sent("key", "a body"), sent("key", "a body")];
    let ran = |answer: &(StatusCode, HeaderMap, Vec<u8>)| {
        serde_json::from_slice::<serde_json::Value>(&answer.2).unwrap()["ran"].clone()
    };
    let answered = answers(observing.address, &all).await;
    assert_eq!([ran(&answered[0]), ran(&answered[1])], [1, 2]);
    observing.terminate();
    assert!(observing.ended().await.success());
    let enforcing = Gateway::start_in(&observing.directory(), upstream, &[]);
    let answered = answers(enforcing.address, &all).await;
    assert_eq!([ran(&answered[0]), ran(&answered[1])], [3, 3]);
}

#[tokio::test]
async fn nobody_is_refused_who_cannot_be_verified() {
    let upstream = serve(Arc::default()).await;
    let auth = [
        "--auth-url",
        "http://127.0.0.1:1/",
        "--auth-principal-header",
        "x-user",
    ];
    let flags = [&["--mode", "observe", "--principal", "auth"], &auth[..]].concat();
    let gateway = Gateway::start(upstream, &flags);
    let all = [sent("key", "a body"), sent("key", "a body")];
    for (status, ..) in answers(gateway.address, &all).await {
        assert_eq!(status, StatusCode::CREATED);
    }
    counted(&gateway, "missing_principal", 2).await;
}

/// Each route has its own counts and lines; the other one enforces.
#[tokio::test]
async fn a_route_can_be_observed_alone() {
    let upstream = serve(Arc::default()).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "[[routes]]\nname = \"watched\"\npath = \"/watched\"\nmode = \"observe\"\n\
                preset = \"stripe-v1\"\nlimits = { new-keys = \"1/d\" }\n\
                [[routes]]\npath = \"/kept\"\n";
    std::fs::write(file.path(), text).unwrap();
    let flags = ["--config", file.path().to_str().unwrap()];
    let gateway = Gateway::start(upstream, &flags);
    let ask = async |path: &str, key: &str, body: &str| {
        let fields = [("idempotency-key", key)];
        let answer = send(request(Method::POST, gateway.address, path, &fields, body)).await;
        let answer: serde_json::Value = serde_json::from_slice(&answer.unwrap().body).unwrap();
        answer["ran"].as_u64()
    };
    for (event, key, body) in [
        ("completed", "a", "1"),
        ("replayed", "a", "1"),
        ("mismatch", "a", "2"),
        ("limited", "b", "1"),
    ] {
        assert!(ask("/watched", key, body).await.is_some());
        eventually(event, async || {
            (count_on(&gateway, "watched", event).await == 1).then_some(())
        })
        .await;
    }
    assert_eq!(ask("/kept", "a", "1").await, Some(5));
    assert_eq!(ask("/kept", "a", "1").await, Some(5));
    let metrics = gateway.metrics().await;
    assert!(
        !metrics.contains("semel_observed_total{route=\"POST /kept\""),
        "{metrics}"
    );
    let log = gateway.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("observed: it would"));
    let lines: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let told = lines
        .iter()
        .map(|line| (line["route"].as_str(), line["message"].as_str()));
    let would = |what| (Some("watched"), Some(what));
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            would("observed: it would replay the answer"),
            would("observed: it would answer 400"),
            would("observed: it would answer 429"),
        ]
    );
}

/// Over HTTP/2 as well: all answers are the service's, and each duplicate counts.
#[tokio::test]
async fn requests_over_http2_are_observed() {
    let gateway = Gateway::start(serve(Arc::default()).await, &["--mode", "observe"]);
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    for ran in 1..=3 {
        let request = http::Request::post(format!("http://{}/orders", gateway.address))
            .header("idempotency-key", "k")
            .body(Full::new(Bytes::from_static(b"a body")));
        let answer = sender.clone().send_request(request.unwrap()).await.unwrap();
        let answer = read_whole(answer).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(
            (answer.status, &body["ran"]),
            (StatusCode::CREATED, &json!(ran))
        );
        counted(&gateway, "completed", 1).await;
    }
    counted(&gateway, "replayed", 2).await;
}

/// A store that is locked by somebody else holds a bounded number of observations, and no request.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_store_that_is_locked_refuses_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records.db");
    let url = format!("sqlite:{}", path.display());
    let flags = ["--mode", "observe", "--store", &url, "--max-attempts", "4"];
    let gateway = Gateway::start(serve(Arc::default()).await, &flags);
    let locked = rusqlite::Connection::open(&path).unwrap();
    locked.execute_batch("begin immediate").unwrap();
    let all: Vec<_> = (0..50)
        .map(|n| sent(&format!("key-{n}"), "a body"))
        .collect();
    for (status, ..) in answers(gateway.address, &all).await {
        assert_eq!(status, StatusCode::CREATED);
    }
    let overloaded = count(&gateway, "overloaded").await;
    assert!(overloaded > 0, "{overloaded}");
    locked.execute_batch("rollback").unwrap();
}
