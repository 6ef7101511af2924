//! Traces: what a collector gets, and what it cannot hold up.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Uri};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;
use tokio::net::TcpListener;

use crate::support::{
    Gateway, Reaction, Recorder, Script, Shop, eventually, nobody, order, order_with,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";
const KEY: &str = "a-key-that-nobody-may-see";

/// A collector.
struct Collector {
    address: SocketAddr,
    batches: Arc<Mutex<Vec<Batch>>>,
}

struct Batch {
    path: String,
    headers: HeaderMap,
    bytes: Bytes,
}

impl Collector {
    async fn start() -> Self {
        let batches = Arc::<Mutex<Vec<Batch>>>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::clone(&batches);
        let take = async move |uri: Uri, headers: HeaderMap, bytes: Bytes| {
            let path = uri.path().to_owned();
            kept.lock().unwrap().push(Batch {
                path,
                headers,
                bytes,
            });
        };
        let router = Router::new().fallback(take);
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { address, batches }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let batches = self.batches.lock().unwrap();
        let decoded = batches
            .iter()
            .map(|batch| ExportTraceServiceRequest::decode(batch.bytes.clone()).unwrap());
        decoded.collect()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self.requests().into_iter().flat_map(|r| r.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The spans, once there are so many.
    async fn eventually(&self, count: usize) -> Vec<Span> {
        eventually("the spans", async || {
            Some(self.spans()).filter(|spans| spans.len() >= count)
        })
        .await
    }
}

/// A gateway whose spans go there every few milliseconds, in this environment.
fn traced(upstream: SocketAddr, environment: &[&str], flags: &[&str]) -> Gateway {
    let words = [&["/usr/bin/env", "OTEL_BSP_SCHEDULE_DELAY=20"], environment].concat();
    let directory = Arc::new(tempfile::tempdir().unwrap());
    Gateway::start_under(&words, &directory, upstream, flags)
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let attribute = span.attributes.iter().find(|a| a.key == name)?;
    Some(match attribute.value.clone()?.value? {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

fn named<'a>(spans: &'a [Span], trace: &str, name: &str) -> &'a Span {
    let ours = spans
        .iter()
        .filter(|span| hex::encode(&span.trace_id) == trace);
    let mut named = ours.filter(|span| span.name == name);
    let one = named.next();
    one.unwrap_or_else(|| panic!("no span {name} of {trace} in {spans:#?}"))
}

#[tokio::test]
async fn a_request_is_a_span_with_its_steps_below_and_a_replay_links_to_it() {
    let upstream = Recorder::start().await;
    let collector = Collector::start().await;
    let gateway = traced(
        upstream.address,
        &[],
        &["--otlp-endpoint", &collector.url()],
    );
    let other = "0af7651916cd43dd8448eb211c80319c";
    for trace in [TRACE, other] {
        let parent = format!("00-{trace}-{CLIENT}-01");
        let fields = [
            ("idempotency-key", KEY),
            ("traceparent", &parent),
            ("tracestate", "vendor=1"),
            ("authorization", "Bearer secret"),
        ];
        assert_eq!(order_with(gateway.address, &fields).await.status, 200);
    }
    // Four of the first, two of its replay.
    let spans = collector.eventually(6).await;
    assert_eq!(spans.len(), 6, "{spans:#?}");

    let server = named(&spans, TRACE, "POST default");
    assert_eq!(server.kind(), SpanKind::Server);
    assert_eq!(hex::encode(&server.parent_span_id), CLIENT);
    assert_eq!(server.trace_state, "vendor=1");
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", "default"),
        ("url.path", "/orders"),
        ("http.response.status_code", "200"),
        ("semel.event", "ran"),
        ("semel.attempt", "1"),
    ] {
        assert_eq!(attribute(server, name).as_deref(), Some(value), "{name}");
    }
    let [claim, call, complete] =
        ["claim", "POST", "complete"].map(|name| named(&spans, TRACE, name));
    for step in [claim, call, complete] {
        assert_eq!(step.parent_span_id, server.span_id, "{}", step.name);
        assert_eq!(step.kind(), SpanKind::Client);
        assert!(step.start_time_unix_nano >= server.start_time_unix_nano);
        assert!(step.end_time_unix_nano >= step.start_time_unix_nano);
    }
    assert_eq!(attribute(claim, "semel.found").as_deref(), Some("acquired"));
    assert!(claim.end_time_unix_nano <= call.start_time_unix_nano);
    assert!(call.end_time_unix_nano <= complete.start_time_unix_nano);

    // The upstream goes on below the span of its call.
    let seen = upstream.seen();
    let parent = format!("00-{TRACE}-{}-01", hex::encode(&call.span_id));
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].values("traceparent"), [parent]);
    assert_eq!(seen[0].values("tracestate"), ["vendor=1"]);

    let replay = named(&spans, other, "POST default");
    assert_eq!(
        attribute(replay, "semel.event").as_deref(),
        Some("replayed")
    );
    assert_eq!(attribute(replay, "semel.id"), attribute(server, "semel.id"));
    assert_eq!(replay.links.len(), 1);
    let link = &replay.links[0];
    assert_eq!(
        (&link.trace_id, &link.span_id),
        (&server.trace_id, &server.span_id)
    );
    let claim = named(&spans, other, "claim");
    assert_eq!(
        attribute(claim, "semel.found").as_deref(),
        Some("completed")
    );

    let batches = collector.batches.lock().unwrap();
    for batch in &*batches {
        assert_eq!(batch.path, "/v1/traces");
        let sent = String::from_utf8_lossy(&batch.bytes);
        assert!(!sent.contains(KEY) && !sent.contains("secret"), "{sent}");
    }
}

/// The name of the first trace is for the gateway, not for clients.
#[tokio::test]
async fn a_replay_shows_nothing_of_the_first_trace() {
    let shop = Shop::open().await;
    let collector = Collector::start().await;
    let gateway = traced(shop.address, &[], &["--otlp-endpoint", &collector.url()]);
    let first = order(gateway.address, "k").await;
    let replay = order(gateway.address, "k").await;
    assert!(replay.is_replay());
    for answer in [&first, &replay] {
        let mut names = answer.headers.keys().map(|name| name.as_str());
        assert!(!names.any(|name| name.contains("trace")), "{answer:?}");
    }
    assert_eq!(first.body, replay.body);
}

#[tokio::test]
async fn the_environment_says_where_and_how_much() {
    let upstream = Recorder::start().await;
    let collector = Collector::start().await;
    let endpoint = format!(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT={}/whole",
        collector.url()
    );
    let environment = [
        &*endpoint,
        "OTEL_SERVICE_NAME=edge",
        "OTEL_EXPORTER_OTLP_HEADERS=x-tenant=seven",
        "OTEL_TRACES_SAMPLER=parentbased_always_off",
    ];
    let gateway = traced(upstream.address, &environment, &[]);
    // Nobody asked for this one, and the client of the next does not want it.
    order(gateway.address, "k1").await;
    let parents = ["00", "01"].map(|flags| format!("00-{TRACE}-{CLIENT}-{flags}"));
    for (key, parent) in ["k2", "k3"].into_iter().zip(&parents) {
        let fields = [("idempotency-key", key), ("traceparent", parent)];
        order_with(gateway.address, &fields).await;
    }
    let spans = collector.eventually(4).await;
    assert_eq!(spans.len(), 4, "{spans:#?}");
    assert!(
        spans
            .iter()
            .all(|span| hex::encode(&span.trace_id) == TRACE)
    );
    let seen = upstream.seen();
    let passed: Vec<&str> = seen
        .iter()
        .map(|seen| seen.values("traceparent")[0])
        .collect();
    assert!(passed[0].ends_with("-00"), "{passed:?}");
    for (passed, flags) in passed[1..].iter().zip(["-00", "-01"]) {
        assert!(passed.starts_with(&format!("00-{TRACE}-")), "{passed}");
        assert!(
            passed.ends_with(flags) && !passed.contains(CLIENT),
            "{passed}"
        );
    }
    let resource = collector.requests()[0].resource_spans[0].resource.clone();
    let mut attributes = resource.unwrap().attributes.into_iter();
    let name = attributes.find(|attribute| attribute.key == "service.name");
    let name = name.unwrap().value.unwrap().value;
    assert_eq!(name, Some(Value::StringValue("edge".to_owned())));
    let batches = collector.batches.lock().unwrap();
    assert_eq!(batches[0].path, "/whole");
    assert_eq!(batches[0].headers["x-tenant"], "seven");
}

#[tokio::test]
async fn a_failure_of_the_upstream_is_one_of_its_span() {
    let upstream = Script::start(Reaction::Close).await;
    let collector = Collector::start().await;
    let gateway = traced(
        upstream.address,
        &[],
        &["--otlp-endpoint", &collector.url()],
    );
    assert_eq!(
        order(gateway.address, "k").await.problem(),
        "upstream-failed"
    );
    let spans = collector.eventually(4).await;
    let trace = hex::encode(&spans[0].trace_id);
    let call = named(&spans, &trace, "POST");
    assert_eq!(attribute(call, "error.type").as_deref(), Some("unanswered"));
    let server = named(&spans, &trace, "POST default");
    assert_eq!(
        attribute(server, "semel.event").as_deref(),
        Some("upstream-failed")
    );
    for span in [call, server] {
        assert_eq!(
            span.status.as_ref().map(|status| status.code),
            Some(2),
            "{span:?}"
        );
    }
    named(&spans, &trace, "mark unknown");
}

#[tokio::test]
async fn what_is_left_is_sent_at_the_end() {
    let shop = Shop::open().await;
    let collector = Collector::start().await;
    let never = ["OTEL_BSP_SCHEDULE_DELAY=3600000"];
    let flags = ["--otlp-endpoint", &collector.url()];
    let mut gateway = traced(shop.address, &never, &flags);
    for nth in 0..20 {
        order(gateway.address, &format!("k{nth}")).await;
    }
    assert_eq!(collector.spans().len(), 0);
    gateway.terminate();
    assert!(gateway.ended().await.success(), "{}", gateway.log());
    assert_eq!(collector.spans().len(), 80);
}

/// Neither requests nor the end wait for a collector, whether it refuses or is silent.
#[tokio::test]
async fn a_collector_that_is_away_holds_nothing_up() {
    let silent = Script::start(Reaction::Silence).await;
    let (_socket, away) = nobody();
    for collector in [silent.address, away] {
        let shop = Shop::open().await;
        let small = [
            "OTEL_BSP_MAX_QUEUE_SIZE=8",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=4",
        ];
        let flags = ["--otlp-endpoint", &format!("http://{collector}")];
        let mut gateway = traced(shop.address, &small, &flags);
        // More spans than there is room for.
        for nth in 0..40 {
            let key = format!("k{nth}");
            assert_eq!(order(gateway.address, &key).await.status, 201);
            assert!(order(gateway.address, &key).await.is_replay());
        }
        assert_eq!(shop.placed(), 40);
        if collector == away {
            let dropped = "semel_spans_total{result=\"dropped\"} 0\n";
            let complaints = || gateway.log().matches("the collector did not take").count();
            eventually("what was dropped", async || {
                let told = !gateway.metrics().await.contains(dropped) && complaints() > 0;
                told.then_some(())
            })
            .await;
            assert_eq!(complaints(), 1, "{}", gateway.log());
        }
        gateway.terminate();
        assert!(gateway.ended().await.success(), "{}", gateway.log());
    }
}

#[test]
fn what_cannot_be_traced_as_it_is_said_is_an_error() {
    let start = |variable: &str, flags: &[&str]| {
        let (name, value) = variable.split_once('=').unwrap();
        let started = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
            .env_clear()
            .env(name, value)
            .args([
                "serve",
                "--store",
                "memory:",
                "--upstream",
                "http://127.0.0.1:9",
            ])
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(flags)
            .output()
            .unwrap();
        assert_eq!(started.status.code(), Some(2));
        String::from_utf8(started.stderr).unwrap()
    };
    let url = ["--otlp-endpoint", "http://127.0.0.1:4318"];
    for (variable, flags, message) in [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
            &url[..],
            "write http/protobuf",
        ),
        ("OTEL_TRACES_SAMPLER=often", &url, "is none of always_on"),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318",
            &[],
            "OTEL_EXPORTER_OTLP_ENDPOINT: ",
        ),
        (
            "OTEL_A=b",
            &["--otlp-endpoint", "http://a:b@c:1"],
            "OTEL_EXPORTER_OTLP_HEADERS",
        ),
        (
            "OTEL_A=b",
            &["--otlp-endpoint", "ftp://c"],
            "--otlp-endpoint: only http",
        ),
    ] {
        let said = start(variable, flags);
        assert!(said.contains(message), "{variable}: {said}");
    }
}
