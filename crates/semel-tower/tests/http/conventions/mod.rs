//! A service behind a preset, and what is asked of it. The layer's tests and the gateway's share this.

mod rows;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use semel::{Clock as _, SystemClock};
use serde_json::Value;
use tokio::sync::Semaphore;

pub(crate) use rows::{Afterwards, Carrier, Mark, ROWS, Row, Then};

/// The service: what it answers stands in the path.
#[derive(Clone)]
pub(crate) struct Upstream {
    runs: Arc<AtomicUsize>,
    /// `/slow` waits for it.
    pub(crate) gate: Arc<Semaphore>,
}

impl Upstream {
    pub(crate) fn new() -> Self {
        Self {
            runs: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        }
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }
}

/// `/first-500/…` answers the first request on this path with 500, and the next with 201.
async fn answer(State(upstream): State<Upstream>, uri: Uri, request: Request) -> Response {
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await;
    let n = upstream.runs.fetch_add(1, Ordering::SeqCst) + 1;
    if uri.path().starts_with("/slow") {
        upstream.gate.acquire().await.unwrap().forget();
    }
    let context = serde_json::from_slice::<Value>(&body.unwrap())
        .ok()
        .and_then(|body| body.get("context").cloned());
    let answer = serde_json::json!({
        "id": n,
        "context": context,
        // As a service would that does the same itself.
        "replayed": uri.path().starts_with("/replayed"),
    });
    let mut parts = uri.path().split('/').skip(1);
    let first = parts.next().unwrap_or_default().strip_prefix("first-");
    let failure = first.and_then(|status| status.parse().ok());
    let turn = parts.next().and_then(|turn| turn.parse::<usize>().ok());
    let status = match failure {
        Some(status) if turn == Some(n) => StatusCode::from_u16(status).unwrap(),
        _ => StatusCode::CREATED,
    };
    let json = [("content-type", "application/json")];
    (status, json, answer.to_string()).into_response()
}

/// What is sent.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Sent {
    pub(crate) fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.retain(|field| field.0 != name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// The layer or the gateway in front of an [`Upstream`].
pub(crate) trait System: Sync {
    fn send(&self, sent: Sent) -> impl Future<Output = Got> + Send;
    fn upstream(&self) -> &Upstream;
}

impl Row {
    /// `POST` with the nth key, which is none where `n` is 0, and an order of so many apples.
    pub(crate) fn post(&self, path: &str, n: usize, apples: u32) -> Sent {
        let key = format!("0192f5a0-7c1e-7abc-8def-{n:012}");
        self.post_with(path, (n > 0).then_some(&*key), apples)
    }

    pub(crate) fn post_with(&self, path: &str, key: Option<&str>, apples: u32) -> Sent {
        let mut fields = vec![("content-type".to_owned(), "application/json".to_owned())];
        let mut member = String::new();
        let mut set = |name: &str, value: String| fields.push((name.to_owned(), value));
        match (self.carrier, key) {
            (Carrier::Bare(name), Some(key)) => set(name, key.to_owned()),
            (Carrier::Quoted(name), Some(key)) if key != self.bad_key => {
                set(name, format!("\"{key}\""));
            }
            (Carrier::Quoted(name), Some(key)) => set(name, key.to_owned()),
            (Carrier::Member(name), Some(key)) => member = format!("\"{name}\":\"{key}\","),
            (_, None) => {}
        }
        if key.is_some() {
            for (name, value) in self.fields {
                set(name, value.replace("{now}", &NOW));
            }
        }
        Sent {
            method: "POST",
            path: path.to_owned(),
            fields,
            body: format!("{{{member}\"apples\":{apples}}}"),
        }
    }

    /// What is said by an answer of the layer itself.
    pub(crate) fn says(&self, got: &Got) -> (u16, String) {
        let code = got.json().pointer(self.code.0).cloned();
        let code = code.and_then(|code| Some(code.as_str()?.to_owned()));
        (got.status, code.unwrap_or_default())
    }

    pub(crate) fn is_replay(&self, got: &Got, of: &Got) -> bool {
        let is_marked = match self.mark {
            Mark::None => MARKS.iter().all(|name| got.field(name).is_none()),
            Mark::Field("repeatability-result") => {
                got.field("repeatability-result") == Some("accepted")
            }
            Mark::Field(name) => got.field(name) == Some("true") && of.field(name).is_none(),
            Mark::Envelope => got.json()["replayed"] == true && of.json()["replayed"] != true,
        };
        let is_same = match self.mark {
            Mark::Envelope => got.json()["id"] == of.json()["id"],
            _ => got.body == of.body,
        };
        is_marked && is_same && got.status == of.status
    }
}

/// The fields by which other conventions mark replays.
const MARKS: [&str; 3] = [
    "idempotency-replayed",
    "idempotent-replayed",
    "repeatability-result",
];

/// The same in all requests: a retry is sent later, and says when it was first sent.
static NOW: LazyLock<String> = LazyLock::new(|| http_date(Duration::ZERO));

/// A date so long ago, as HTTP writes it.
pub(crate) fn http_date(ago: Duration) -> String {
    let now = Duration::from_micros(SystemClock::new().now().as_micros());
    httpdate::fmt_http_date(UNIX_EPOCH + now - ago)
}

/// What is not as the row says.
#[derive(Default)]
pub(crate) struct Faults(pub(crate) Vec<String>);

impl Faults {
    fn expect(&mut self, what: &str, is_so: bool, got: &Got) {
        if !is_so {
            let body = String::from_utf8_lossy(&got.body);
            self.0
                .push(format!("{what}: {} {body} {:?}", got.status, got.headers));
        }
    }
}

/// Holds a system to all of a row but what only time shows.
pub(crate) async fn check(system: &impl System, row: &Row) -> Faults {
    let mut faults = Faults::default();
    let upstream = system.upstream();
    let mut key = 0;
    let mut next = || {
        key += 1;
        key
    };
    // Said as the convention says it, and never kept by a cache.
    let refusal = |faults: &mut Faults, what: &str, got: &Got, expected: (u16, &str)| {
        let (status, code) = row.says(got);
        let is_so = (status, &*code) == expected
            && got.field("content-type") == Some(row.code.1)
            && got.field("cache-control") == Some("no-store");
        faults.expect(what, is_so, got);
    };

    // Carrier and mark.
    let n = next();
    let first = system.send(row.post("/orders", n, 1)).await;
    let runs = upstream.runs();
    let second = system.send(row.post("/orders", n, 1)).await;
    let is_replay = row.is_replay(&second, &first) && upstream.runs() == runs;
    faults.expect("a replay", is_replay, &second);

    // Another content, and the first again.
    let other = system.send(row.post("/orders", n, 2)).await;
    refusal(&mut faults, "mismatch", &other, row.mismatch);
    if let Some((pointer, kind)) = row.mismatch_type {
        let is_so = other.json().pointer(pointer) == Some(&kind.into());
        faults.expect("the type of a mismatch", is_so, &other);
    }
    let third = system.send(row.post("/orders", n, 1)).await;
    faults.expect("a replay after it", row.is_replay(&third, &first), &third);

    // The same content, written otherwise.
    let mut same = row.post("/orders", n, 1);
    same.body = same.body.replace(":1}", " : 1.0 }");
    let same = system.send(same).await;
    faults.expect("1.0 is 1", row.is_replay(&same, &first), &same);

    // Another route.
    let other = system.send(row.post("/refunds", n, 1)).await;
    match row.other_route {
        Then::Runs => faults.expect("another route", other.json()["id"] == runs + 1, &other),
        _ => refusal(&mut faults, "another route", &other, row.mismatch),
    }

    // No key, and one that is none.
    let before = upstream.runs();
    let none = system.send(row.post("/orders", 0, 1)).await;
    match row.missing {
        Some(missing) => refusal(&mut faults, "no key", &none, missing),
        None => faults.expect("no key", none.json()["id"] == before + 1, &none),
    }
    let before = upstream.runs();
    let bad = system
        .send(row.post_with("/orders", Some(row.bad_key), 1))
        .await;
    refusal(&mut faults, "a bad key", &bad, row.invalid);
    faults.expect("a bad key runs", upstream.runs() == before, &bad);

    // What is kept.
    let of_all = [
        (500, row.after_500),
        (422, row.after_422),
        (429, Then::Runs),
        (503, Then::Runs),
    ];
    for (status, then) in of_all.iter().chain(row.after).copied() {
        let n = next();
        let path = format!("/first-{status}/{}", upstream.runs() + 1);
        let first = system.send(row.post(&path, n, 1)).await;
        faults.expect("a failure", first.status == status, &first);
        let second = system.send(row.post(&path, n, 1)).await;
        let is_so = match then {
            Then::Replay => row.is_replay(&second, &first),
            _ => second.status == 201 && !row.is_replay(&second, &first),
        };
        faults.expect(&format!("after {status}"), is_so, &second);
    }

    // In flight. A system that does not know the key would wait here.
    if !faults.0.is_empty() {
        return faults;
    }
    let n = next();
    let before = upstream.runs();
    let slow = system.send(row.post("/slow", n, 1));
    let duplicate = async {
        while upstream.runs() == before {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let duplicate = system.send(row.post("/slow", n, 1)).await;
        upstream.gate.add_permits(1);
        duplicate
    };
    let (slow, duplicate) = tokio::join!(slow, duplicate);
    refusal(&mut faults, "in flight", &duplicate, row.in_flight);
    let after = duplicate
        .field("retry-after")
        .and_then(|after| after.parse::<u64>().ok());
    faults.expect(
        "when to ask again",
        after.is_some_and(|after| after > 0),
        &duplicate,
    );
    faults.expect("the slow one", slow.status == 201, &slow);

    // The scope.
    for name in row.scope {
        let n = next();
        let of = |value| system.send(row.post("/orders", n, 1).field(name, value));
        let (a, b) = (of("a").await, of("b").await);
        let is_so = a.status == 201 && b.status == 201 && a.json()["id"] != b.json()["id"];
        faults.expect(name, is_so, &b);
    }
    if row.preset == "oasis" {
        check_oasis(system, row, &mut faults).await;
    }
    faults
}

async fn check_oasis(system: &impl System, row: &Row, faults: &mut Faults) {
    const FIRST_SENT: &str = "repeatability-first-sent";
    let sent = |n: usize| row.post("/orders", 100 + n, 1);
    let minutes = |minutes| http_date(Duration::from_mins(minutes));
    let mut without = sent(1);
    without.fields.retain(|field| field.0 != FIRST_SENT);
    let mut alone = row.post("/orders", 0, 1).field(FIRST_SENT, &minutes(0));
    let mut other_method = sent(2);
    (alone.method, other_method.method) = ("POST", "REPORT");
    let runs = system.upstream().runs();
    for (what, sent, status) in [
        ("no date", without, 400),
        ("a date alone", alone, 400),
        ("no such date", sent(3).field(FIRST_SENT, "yesterday"), 400),
        // The forms that HTTP only reads.
        (
            "another form",
            sent(4).field(FIRST_SENT, "Sunday, 06-Nov-94 08:49:37 GMT"),
            400,
        ),
        (
            "too old",
            sent(5).field(FIRST_SENT, &minutes(24 * 60 + 1)),
            412,
        ),
        (
            "in the future",
            sent(6).field(FIRST_SENT, "Fri, 01 Jan 2100 00:00:00 GMT"),
            412,
        ),
        ("a method", other_method, 501),
    ] {
        let got = system.send(sent).await;
        let is_so = got.status == status && got.field("repeatability-result") == Some("rejected");
        faults.expect(what, is_so, &got);
        faults.expect("it runs", system.upstream().runs() == runs, &got);
    }
    let first = system.send(sent(7).field(FIRST_SENT, &minutes(9))).await;
    faults.expect(
        "in time",
        first.field("repeatability-result") == Some("accepted"),
        &first,
    );
    // The whole of a request is the same in each.
    let other = system.send(sent(7).field(FIRST_SENT, &minutes(8))).await;
    faults.expect("another date", other.status == 400, &other);
}
