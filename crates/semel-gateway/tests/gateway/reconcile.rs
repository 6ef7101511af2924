//! `--on-lost reconcile`: what became of a lost request is asked of an endpoint, by the next request
//! or by the gateway itself.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::tls::Authority;
use crate::support::{Answer, Gateway, Reaction, Script, Served, eventually, get, order};

const KEY: &str = "\"order-4711-and-more\"";
/// The key itself, without the quotes of the field.
const BARE: &str = "order-4711-and-more";
const PLACED: &str = "HTTP/1.1 201 Created\r\ncontent-length: 6\r\n\r\nplaced";

/// What the endpoint does with every question from now on.
#[derive(Clone)]
pub(crate) enum Act {
    Say(Value),
    Status(StatusCode),
    Text(&'static str),
    Silence,
}

/// An operator's endpoint.
pub(crate) struct Endpoint {
    url: String,
    asked: Arc<Mutex<Vec<(http::request::Parts, Value)>>>,
    act: Arc<Mutex<Act>>,
    server: JoinHandle<()>,
}

type Shared = (
    Arc<Mutex<Vec<(http::request::Parts, Value)>>>,
    Arc<Mutex<Act>>,
);

impl Endpoint {
    pub(crate) async fn open(act: Act) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/ask", listener.local_addr().unwrap());
        let asked = Arc::default();
        let act = Arc::new(Mutex::new(act));
        let state: Shared = (Arc::clone(&asked), Arc::clone(&act));
        let router = Router::new().fallback(Self::answer).with_state(state);
        let server = tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            asked,
            act,
            server,
        }
    }

    async fn answer(State((asked, act)): State<Shared>, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let question = serde_json::from_slice(&body).unwrap();
        asked.lock().unwrap().push((head, question));
        let act = act.lock().unwrap().clone();
        match act {
            Act::Say(answer) => answer.to_string().into_response(),
            Act::Status(status) => status.into_response(),
            Act::Text(text) => text.into_response(),
            Act::Silence => std::future::pending().await,
        }
    }

    fn act(&self, act: Act) {
        *self.act.lock().unwrap() = act;
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn questions(&self) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|(_, question)| question.clone()).collect()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A configuration file with this section `reconcile`, and the endpoint's URL.
pub(crate) fn file(endpoint: &Endpoint, more: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "on-lost = \"reconcile\"\n[reconcile]\nurl = \"{}\"\n{more}",
        endpoint.url
    );
    std::fs::write(file.path(), text).unwrap();
    file
}

/// A gateway that asks when a request comes, and at its start only otherwise.
fn in_line(upstream: SocketAddr, endpoint: &Endpoint) -> Gateway {
    in_line_within(upstream, endpoint, "300ms")
}

fn in_line_within(upstream: SocketAddr, endpoint: &Endpoint, timeout: &str) -> Gateway {
    let file = file(
        endpoint,
        &format!("every = \"1h\"\ntimeout = \"{timeout}\"\n"),
    );
    let path = file.path().to_str().unwrap();
    Gateway::start(upstream, &["--config", path, "--log-level", "trace"])
}

fn happened() -> Value {
    json!({
        "finding": "happened",
        "status": 201,
        "headers": {"content-type": "application/json", "location": "/orders/7", "x-part": ["a", "b"]},
        "body": "{\"id\": 7}",
        "reason": "order 7 is in the books",
    })
}

fn assert_is_order_7(answer: &Answer) {
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.text(), "{\"id\": 7}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("location"), Some("/orders/7"));
    assert_eq!(answer.headers.get_all("x-part").iter().count(), 2);
    assert!(answer.is_replay());
}

/// The value of a metric; 0 where it is not there yet.
async fn metric(gateway: &Gateway, name: &str) -> u64 {
    let text = get(gateway.admin, "/metrics").await;
    let line = text.text().lines().find_map(|line| {
        let (metric, value) = line.split_once(' ')?;
        (metric == name).then(|| value.parse().unwrap())
    });
    line.unwrap_or(0)
}

async fn metric_becomes(gateway: &Gateway, name: &str, value: u64) {
    let becomes = async || (metric(gateway, name).await == value).then_some(());
    eventually(name, becomes).await;
}

#[tokio::test]
async fn what_happened_is_replayed() {
    let upstream = Script::start(Reaction::Close).await;
    let endpoint = Endpoint::open(Act::Say(happened())).await;
    let gateway = in_line(upstream.address, &endpoint);
    assert_eq!(
        order(gateway.address, KEY).await.problem(),
        "upstream-failed"
    );
    for _ in 0..2 {
        assert_is_order_7(&order(gateway.address, KEY).await);
    }
    assert_eq!(upstream.requests().len(), 1);

    let question = endpoint.questions().pop().unwrap();
    assert_eq!(endpoint.questions().len(), 1);
    let members = [
        ("service", json!("default")),
        ("operation", json!("http")),
        ("scope", json!(["anonymous"])),
        ("key", json!(BARE)),
        ("key_hint", json!("order-47")),
        ("fence", json!(upstream.fences()[0])),
        ("attempt", json!(1)),
        ("question", json!(1)),
        ("method", json!("POST")),
        ("path", json!("/orders")),
        ("note", json!({"method": "POST", "path": "/orders"})),
    ];
    for (name, value) in members {
        assert_eq!(question[name], value, "{name} of {question}");
    }
    assert_eq!(question["identity"].as_str().unwrap().len(), 64);
    assert!(question["claimed_at"].as_str().unwrap().ends_with('Z'));
    // Those, `identity` and `claimed_at`.
    assert_eq!(question.as_object().unwrap().len(), 13);
    assert_eq!(
        metric(&gateway, "semel_events_total{event=\"resolved\"}").await,
        1
    );
    let name = "semel_reconcile_questions_total{answer=\"happened\"}";
    assert_eq!(metric(&gateway, name).await, 1);
    assert!(
        gateway
            .log()
            .contains(question["identity"].as_str().unwrap())
    );
    assert!(!gateway.log().contains(BARE), "{}", gateway.log());
}

/// Whoever answers finds the request by the name under which the upstream got it.
#[tokio::test]
async fn the_question_is_asked_under_the_name_that_the_upstream_was_given() {
    for every in ["1h", "50ms"] {
        let upstream = Script::start(Reaction::Close).await;
        let endpoint = Endpoint::open(Act::Say(happened())).await;
        let file = file(&endpoint, &format!("every = \"{every}\"\n"));
        let path = file.path().to_str().unwrap();
        let gateway = Gateway::start(upstream.address, &["--config", path]);
        order(gateway.address, KEY).await;
        if every == "1h" {
            assert_is_order_7(&order(gateway.address, KEY).await);
        }
        metric_becomes(&gateway, "semel_events_total{event=\"resolved\"}", 1).await;
        let id = upstream.fields("idempotency-id").remove(0).remove(0);
        let entry = eventually("an entry in the audit log", async || {
            let log = get(gateway.admin, "/api/v1/audit").await;
            let log: Value = serde_json::from_str(log.text()).unwrap();
            let entry = log["entries"].get(0).cloned();
            // It is begun before it is done.
            entry.filter(|entry| entry["result"] == "done")
        })
        .await;
        let members = ["action", "id", "result"].map(|member| entry[member].as_str().unwrap());
        assert_eq!(members, ["reconcile-happened", &*id, "done"]);
        assert_eq!(
            (&entry["before"]["state"], &entry["after"]["state"]),
            (&json!("unknown"), &json!("completed"))
        );
        let asked = endpoint.asked.lock().unwrap();
        for (head, question) in asked.iter() {
            let names: Vec<_> = head.headers.get_all("idempotency-id").iter().collect();
            assert_eq!(names, [id.as_str()]);
            assert_eq!(question["identity"], id.as_str());
        }
        // Whether the path is known says who asked.
        assert_eq!(asked[0].1.get("path").is_some(), every == "1h");
    }
}

#[tokio::test]
async fn any_bytes_can_be_the_answer() {
    let upstream = Script::start(Reaction::Close).await;
    let answer = json!({"finding": "happened", "status": 402, "body_base64": "AP8K"});
    let endpoint = Endpoint::open(Act::Say(answer)).await;
    let gateway = in_line(upstream.address, &endpoint);
    order(gateway.address, KEY).await;
    let answer = order(gateway.address, KEY).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body[..]),
        (402, &[0, 255, 10][..])
    );
    assert!(answer.is_replay());
}

#[tokio::test]
async fn what_did_not_happen_runs_under_a_higher_fence() {
    let upstream = Script::start(Reaction::Close).await;
    let endpoint = Endpoint::open(Act::Say(json!({"finding": "did-not-happen"}))).await;
    let gateway = in_line(upstream.address, &endpoint);
    order(gateway.address, KEY).await;
    upstream.react(Reaction::Send(PLACED));
    let answer = order(gateway.address, KEY).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (201, "placed"));
    assert!(!answer.is_replay());
    assert!(order(gateway.address, KEY).await.is_replay());
    let fences = upstream.fences();
    assert_eq!(fences.len(), 2);
    assert!(fences[1] > fences[0]);
}

#[tokio::test]
async fn everything_else_leaves_it_unknown() {
    let acts = [
        (
            Act::Say(json!({"finding": "still-unknown"})),
            "still_unknown",
        ),
        (Act::Status(StatusCode::INTERNAL_SERVER_ERROR), "failed"),
        (Act::Status(StatusCode::NO_CONTENT), "failed"),
        (Act::Text("it happened"), "failed"),
        (Act::Silence, "timed_out"),
    ];
    let upstream = Script::start(Reaction::Close).await;
    let endpoint = Endpoint::open(Act::Silence).await;
    let gateway = in_line(upstream.address, &endpoint);
    order(gateway.address, KEY).await;
    let mut asked = 0;
    for (act, answer) in acts {
        endpoint.act(act);
        let name = format!("semel_reconcile_questions_total{{answer=\"{answer}\"}}");
        let before = metric(&gateway, &name).await;
        assert_eq!(
            order(gateway.address, KEY).await.problem(),
            "outcome-unknown"
        );
        assert_eq!(metric(&gateway, &name).await, before + 3);
        asked += 3;
        assert_eq!(endpoint.questions().len(), asked);
    }
    assert_eq!(upstream.requests().len(), 1);
    assert!(
        gateway.log().contains("is not understood"),
        "{}",
        gateway.log()
    );
    endpoint.act(Act::Say(happened()));
    assert_is_order_7(&order(gateway.address, KEY).await);
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_leaves_it_unknown() {
    let upstream = Script::start(Reaction::Close).await;
    let mut endpoint = Endpoint::open(Act::Silence).await;
    endpoint.server.abort();
    (&mut endpoint.server).await.unwrap_err();
    // On a busy machine a refusal takes its time.
    let gateway = in_line_within(upstream.address, &endpoint, "10s");
    order(gateway.address, KEY).await;
    assert_eq!(
        order(gateway.address, KEY).await.problem(),
        "outcome-unknown"
    );
    let name = "semel_reconcile_questions_total{answer=\"failed\"}";
    assert_eq!(metric(&gateway, name).await, 3);
    assert!(
        gateway.log().contains("Connection refused"),
        "{}",
        gateway.log()
    );
}

/// A lost order of which the gateway finds out, without a client's retry, that it happened; in vain at
/// first.
async fn resolved_by_itself(settings: &str) -> (Script, Endpoint, Gateway) {
    let upstream = Script::start(Reaction::Close).await;
    let endpoint = Endpoint::open(Act::Status(StatusCode::SERVICE_UNAVAILABLE)).await;
    let settings = format!("every = \"100ms\"\npause = \"50ms\"\n{settings}");
    let file = file(&endpoint, &settings);
    let path = file.path().to_str().unwrap();
    let gateway = Gateway::start(upstream.address, &["--config", path]);
    order(gateway.address, KEY).await;
    let asked_twice = async || (endpoint.questions().len() >= 2).then_some(());
    eventually("questions", asked_twice).await;
    endpoint.act(Act::Say(happened()));
    metric_becomes(&gateway, "semel_events_total{event=\"resolved\"}", 1).await;
    (upstream, endpoint, gateway)
}

#[tokio::test]
async fn unknown_requests_resolve_by_themselves() {
    let headers = "[reconcile.headers]\nauthorization = \"Bearer secret\"\n";
    let (upstream, endpoint, gateway) = resolved_by_itself(headers).await;
    metric_becomes(&gateway, "semel_reconcile_pending", 0).await;
    let questions = endpoint.questions();
    assert_eq!(questions[0].get("key"), None);
    assert_eq!(questions[0].get("path"), None);
    assert_eq!(questions[0]["fence"], upstream.fences()[0]);
    assert_eq!(
        (&questions[0]["question"], &questions[1]["question"]),
        (&json!(1), &json!(2))
    );
    for (head, _) in endpoint.asked.lock().unwrap().iter() {
        assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/ask"));
        assert_eq!(head.headers["authorization"], "Bearer secret");
        assert_eq!(head.headers["content-type"], "application/json");
    }
    assert_is_order_7(&order(gateway.address, KEY).await);
    assert_eq!(endpoint.questions().len(), questions.len());
    assert_eq!(upstream.requests().len(), 1);
    assert!(!gateway.log().contains("secret"));
}

/// A record need not say which route claimed it: what happened is kept for the longest of their times,
/// also of those that hold.
#[tokio::test]
async fn what_happened_is_kept_for_the_longest_ttl() {
    let routes = "[[routes]]\npath = \"/payments\"\nttl = \"payment\"\non-lost = \"hold\"\n[[routes]]\nttl = \"email\"\n";
    let (_, endpoint, gateway) = resolved_by_itself(routes).await;
    let id = endpoint.questions()[0]["identity"].clone();
    let record = format!("/api/v1/records/{}", id.as_str().unwrap());
    let record: Value = serde_json::from_slice(&get(gateway.admin, &record).await.body).unwrap();
    let time = |of: &str| humantime::parse_rfc3339(record[of].as_str().unwrap()).unwrap();
    let kept = time("expires_at").duration_since(time("settled_at"));
    assert_eq!(kept.unwrap(), Duration::from_hours(7 * 24), "{record}");
}

#[tokio::test]
async fn it_gives_up_and_says_so() {
    let upstream = Script::start(Reaction::Close).await;
    let endpoint = Endpoint::open(Act::Say(json!({"finding": "still-unknown"}))).await;
    let file = file(
        &endpoint,
        "every = \"50ms\"\npause = \"10ms\"\nattempts = 2\n",
    );
    let path = file.path().to_str().unwrap();
    let gateway = Gateway::start(upstream.address, &["--config", path]);
    order(gateway.address, KEY).await;
    metric_becomes(&gateway, "semel_reconcile_given_up", 1).await;
    sleep(Duration::from_millis(300)).await;
    let questions = endpoint.questions();
    assert_eq!(questions.len(), 2, "{questions:?} {}", gateway.log());
    let name = "semel_events_total{event=\"reconcile_gave_up\"}";
    assert_eq!(metric(&gateway, name).await, 1);
    assert!(gateway.log().contains("given up"), "{}", gateway.log());
    // A client that asks again has it asked again.
    endpoint.act(Act::Say(happened()));
    assert_is_order_7(&order(gateway.address, KEY).await);
    metric_becomes(&gateway, "semel_reconcile_given_up", 0).await;
}

/// `kill -9` while the upstream works: the next gateway finds the record past its lease.
#[tokio::test]
async fn what_a_killed_gateway_left_resolves_by_itself() {
    let upstream = Script::start(Reaction::Silence).await;
    let endpoint = Endpoint::open(Act::Say(happened())).await;
    let file = file(&endpoint, "every = \"100ms\"\n");
    let flags = [
        "--config",
        file.path().to_str().unwrap(),
        "--lease",
        "500ms",
    ];
    let gateway = Gateway::start(upstream.address, &flags);
    let asking = tokio::spawn({
        let address = gateway.address;
        async move { drop(crate::support::send(request(address)).await) }
    });
    eventually("the request", async || upstream.requests().pop()).await;
    // Running: nobody is asked.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(endpoint.questions().len(), 0);
    let directory = gateway.directory();
    gateway.kill();
    asking.await.unwrap();

    let gateway = Gateway::start_in(&directory, upstream.address, &flags);
    metric_becomes(&gateway, "semel_events_total{event=\"resolved\"}", 1).await;
    assert_is_order_7(&order(gateway.address, KEY).await);
    assert_eq!(upstream.requests().len(), 1);
}

fn request(address: SocketAddr) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let headers = [("idempotency-key", KEY)];
    crate::support::request(
        http::Method::POST,
        address,
        "/orders",
        &headers,
        "{\"item\":1}",
    )
}

#[tokio::test]
async fn the_endpoint_can_speak_tls() {
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    let endpoint = Served::start_with(Some(signed.server(&["h2", "http/1.1"])), async |_| {
        let answer = json!({"finding": "did-not-happen"});
        Response::new(answer.to_string().into())
    })
    .await;
    let upstream = Script::start(Reaction::Close).await;
    let directory = tempfile::tempdir().unwrap();
    let ca = authority.file_in(directory.path());
    let ca = format!("--upstream-ca={}", ca.display());
    let url = format!(
        "--reconciler=https://localhost:{}/ask",
        endpoint.address.port()
    );
    let flags = ["--on-lost=reconcile", &url, &ca];
    let gateway = Gateway::start(upstream.address, &flags);
    assert_eq!(
        order(gateway.address, KEY).await.problem(),
        "upstream-failed"
    );
    upstream.react(Reaction::Send(PLACED));
    assert_eq!(order(gateway.address, KEY).await.text(), "placed");
    assert!(!endpoint.seen().is_empty());
}
