//! What a layer does that only observes: nothing to the request, and it says what it would have done.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use semel::guard::{Guard, Observer, Seen, Signal};
use semel::memory::MemoryStore;
use semel::store::{Claim, ClaimRequest, Entry, Result, Store};
use semel::{Identity, IdentityDigest, StoreError, StoreErrorKind};
use semel_tower::{IdempotencyLayer, Mode, Preset, Rate, ScopeLimits};
use tower::ServiceExt as _;

use crate::support::{App, Call, pieces};

#[derive(Default)]
struct Signals(Mutex<Vec<Signal>>);

impl Observer for Signals {
    fn on_event(&self, seen: &Seen<'_>) {
        self.0.lock().unwrap().push(seen.signal);
    }
}

impl Signals {
    fn count(&self, signal: Signal) -> usize {
        let all = self.0.lock().unwrap();
        all.iter().filter(|told| **told == signal).count()
    }
}

/// A layer over this store that only observes, and what it tells.
fn observing<S: Store>(store: S) -> (IdempotencyLayer<S>, Arc<Signals>) {
    let signals = Arc::new(Signals::default());
    let guard = Guard::builder(store).observer(signals.clone()).build();
    (
        IdempotencyLayer::new(guard).with_mode(Mode::Observe),
        signals,
    )
}

/// A store that does not answer, or only that it does not know.
#[derive(Default)]
struct Stalled {
    memory: MemoryStore,
    is_doubtful: AtomicBool,
}

impl Store for Stalled {
    async fn claim(&self, _: &Identity, _: &ClaimRequest) -> Result<Claim> {
        match self.is_doubtful.load(Ordering::SeqCst) {
            true => Err(StoreError::new(StoreErrorKind::Unknown, "no answer")),
            false => pending().await,
        }
    }

    async fn get(&self, _: &IdentityDigest) -> Result<Option<Entry>> {
        pending().await
    }

    semel::delegate!(memory: change, list, purge, wait, probe, close);
}

fn nth(n: usize) -> Call {
    Call::post("/orders").key(&format!("\"key-{n}\""))
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stalls_holds_as_many_requests_as_may_run() {
    let (layer, signals) = observing(Stalled::default());
    let layer = layer.with_max_attempts(3);
    let app = App::orders(layer.clone());
    for n in 1..=10 {
        app.send(nth(n)).await.assert_first(201);
    }
    assert_eq!(app.execs.count(), 10);
    assert_eq!(layer.guard().running(), 3);
    assert_eq!(signals.count(Signal::Overloaded), 7);
}

/// Of claims whose answer was lost, too: the guard looks for each until it is found.
#[tokio::test(start_paused = true)]
async fn what_is_left_to_settle_is_bounded() {
    let store = Stalled {
        is_doubtful: true.into(),
        ..Stalled::default()
    };
    let (layer, signals) = observing(store);
    let layer = layer.with_max_attempts(3);
    let app = App::orders(layer.clone());
    for n in 1..=10 {
        app.send(nth(n)).await.assert_first(201);
        // Every claim is tried three times.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(layer.guard().unsettled(), 3);
    assert_eq!(signals.count(Signal::Overloaded), 7);
}

#[tokio::test(start_paused = true)]
async fn a_scope_beyond_its_limit_is_told_and_what_is_known_is_not_limited() {
    let (layer, signals) = observing(MemoryStore::default());
    let limits = ScopeLimits::new().with_new_keys(Rate::per_second(1));
    let layer = layer.with_scope_limits(limits);
    let app = App::orders(layer.clone());
    for n in [1, 2, 1] {
        app.send(nth(n)).await.assert_first(201);
        layer.drain().await;
    }
    assert_eq!(app.execs.count(), 3);
    assert_eq!(
        *signals.0.lock().unwrap(),
        [
            Signal::New,
            Signal::Completed,
            Signal::Limited,
            Signal::Replayed
        ]
    );
}

/// What becomes of three requests if the first answer is a failure.
const FAILED_ONCE: [Signal; 5] = [
    Signal::New,
    Signal::Released,
    Signal::Again,
    Signal::Completed,
    Signal::Replayed,
];

/// What the answer's body says decides, as it does where the layer enforces; and it passes unchanged.
#[tokio::test(start_paused = true)]
async fn a_task_that_failed_is_none_that_is_kept() {
    let (layer, signals) = observing(MemoryStore::default());
    let layer = layer.with_preset(Preset::Adcp).with_mode(Mode::Observe);
    let app = App::answering(layer.clone(), |n| {
        let status = if n == 1 { "failed" } else { "completed" };
        let text = format!("{{\"status\": \"{status}\", \"replayed\": true}}");
        ([("content-type", "application/json")], text).into_response()
    });
    let task = || Call::post("/orders").body("{\"idempotency_key\":\"0123456789abcdef\"}");
    for status in ["failed", "completed", "completed"] {
        let answer = app.send(task()).await;
        let text = format!("{{\"status\": \"{status}\", \"replayed\": true}}");
        assert_eq!(answer.body, text);
        layer.drain().await;
    }
    assert_eq!(*signals.0.lock().unwrap(), FAILED_ONCE);
}

/// An answer of gRPC whose status comes behind its body.
fn grpc(status: &'static str) -> Response {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let body = pieces(&["reply"]).with_trailers(std::future::ready(Some(Ok(trailers))));
    let body = axum::body::Body::new(body);
    ([("content-type", "application/grpc")], body).into_response()
}

#[tokio::test(start_paused = true)]
async fn the_status_in_trailers_decides() {
    let (layer, signals) = observing(MemoryStore::default());
    let app = App::answering(layer.clone(), |n| grpc(if n == 1 { "14" } else { "0" }));
    for _ in 0..3 {
        app.send(Call::order()).await;
        layer.drain().await;
    }
    assert_eq!(*signals.0.lock().unwrap(), FAILED_ONCE);
}

/// Of an answer that nobody waits to hear of nothing is gathered.
#[tokio::test(start_paused = true)]
async fn what_is_known_already_holds_no_memory() {
    let (layer, signals) = observing(MemoryStore::default());
    let layer = layer.with_max_body_memory(16);
    let (mut rest, slow) = Channel::<Bytes>::new(1);
    let slow = Arc::new(Mutex::new(Some(slow)));
    let app = App::answering(layer.clone(), move |n| {
        let body = match n {
            2 => slow.lock().unwrap().take().map(axum::body::Body::new),
            _ => None,
        };
        // What it means its body may say.
        let status = http::StatusCode::UNPROCESSABLE_ENTITY;
        (status, body.unwrap_or_default()).into_response()
    });
    app.send(nth(1).body("12345678")).await;
    layer.drain().await;
    let request = nth(1).body("12345678").request();
    let response = app.router.clone().oneshot(request).await.unwrap();
    while signals.count(Signal::Replayed) == 0 {
        tokio::task::yield_now().await;
    }
    let mut body = response.into_body();
    let piece = Frame::data(Bytes::from_static(b"a piece"));
    rest.send(piece).await.unwrap();
    body.frame().await.unwrap().unwrap();
    app.send(nth(2).body("0123456789abcdef")).await;
    assert_eq!(signals.count(Signal::Overloaded), 0);
    drop((rest, body));
}

#[test]
fn what_is_not_enforced_is_not_declared() {
    for preset in [Preset::Adcp, Preset::Iceberg] {
        let layer = IdempotencyLayer::preset(preset, MemoryStore::default());
        assert!(layer.declaration().unwrap().is_some());
        for mode in [Mode::Observe, Mode::Off] {
            let layer = layer.clone().with_mode(mode);
            assert_eq!(layer.declaration().unwrap(), None, "{preset} {mode:?}");
        }
    }
}
