//! How much the layer allocates, on top of the service in it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use allocation_counter::measure;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use semel::guard::{Guard, Observer, Seen};
use semel::memory::MemoryStore;
use semel_tower::IdempotencyLayer;
use tower::{Layer as _, Service};

#[derive(Clone)]
struct Plain;

impl Service<Request<Full<Bytes>>> for Plain {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        ready(Ok(Response::new(Full::new(Bytes::from_static(
            b"3 apples",
        )))))
    }
}

/// An observer: what it is told is borrowed, and costs no allocation either.
#[derive(Default)]
struct Counted(AtomicUsize);

impl Observer for Counted {
    fn on_event(&self, seen: &Seen<'_>) {
        let known = seen.operation.map_or(0, str::len);
        self.0.fetch_add(known, Ordering::Relaxed);
    }
}

fn request(method: Method, key: Option<&str>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::from_static(b"3 apples")));
    *request.method_mut() = method;
    if let Some(key) = key {
        let key = key.parse().expect("a key is a field value");
        request.headers_mut().insert("idempotency-key", key);
    }
    request
}

/// The allocations of one call, on a runtime that has run such calls before.
fn allocations(method: &Method, keys: [Option<&str>; 2]) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let guard = Guard::builder(MemoryStore::default()).observer(Arc::new(Counted::default()));
    let mut service = IdempotencyLayer::new(guard.build()).layer(Plain);
    let [first, second] = keys.map(|key| request(method.clone(), key));
    let mut call = |request| {
        let answer = runtime.block_on(async { service.call(request).await });
        answer.expect("the service does not fail")
    };
    call(first);
    let mut answer = None;
    let count = measure(|| answer = Some(call(second))).count_total;
    drop(answer);
    count
}

/// R13: no allocation without a key, nor for safe methods.
#[test]
fn r13_what_goes_past_the_layer_allocates_nothing() {
    assert_eq!(allocations(&Method::POST, [None, None]), 0);
    assert_eq!(allocations(&Method::GET, [Some("k"), Some("k")]), 0);
}

/// Not a promise, but whoever makes it more should know.
#[test]
fn fresh_and_replayed_requests_allocate_a_bounded_number_of_times() {
    let fresh = allocations(&Method::POST, [Some("a"), Some("b")]);
    let replayed = allocations(&Method::POST, [Some("a"), Some("a")]);
    // Of the fresh ones two are the task that renews the lease; of both three are the name among the
    // extensions.
    assert!(fresh <= 27 && replayed <= 15, "{fresh}, {replayed}");
}
