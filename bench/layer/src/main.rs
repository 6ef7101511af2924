//! What the layer adds to a request in the same process, without a socket.
//!
//! A program of its own because it counts allocations, and counting them costs everybody who
//! allocates. `semel-bench-layer REQUESTS ROUNDS` prints a line for each round of each kind of
//! request: its name, nanoseconds and allocations with the layer, nanoseconds and allocations without.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use semel::memory::{Limits, MemoryStore};
use semel_bench_load::{answer, key};
use semel_tower::IdempotencyLayer;
use tokio::runtime::Runtime;
use tower::{Layer as _, Service, ServiceExt as _};

const ROOM: Limits = Limits {
    records: 1 << 24,
    bytes: 1 << 36,
};

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|word| word.parse().expect("a number"));
    let (Some(requests), Some(rounds)) = (numbers.next(), numbers.next()) else {
        panic!("usage: semel-bench-layer REQUESTS ROUNDS");
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let body = Bytes::from(answer(0));
    let plain = tower::service_fn(move |_: Request<Full<Bytes>>| {
        let response = Response::new(Full::new(body.clone()));
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let layer = IdempotencyLayer::new(MemoryStore::new(ROOM));
    let layered = layer.layer(plain.clone());
    let mut next_key = 0;
    for kind in ["unkeyed", "fresh", "replay"] {
        let mut make = || {
            let builder = Request::post("/orders").header("content-type", "application/json");
            let builder = match kind {
                "unkeyed" => builder,
                "fresh" => {
                    next_key += 1;
                    builder.header("idempotency-key", key(next_key))
                }
                _ => builder.header("idempotency-key", key(0)),
            };
            builder
                .body(Full::new(Bytes::from_static(br#"{"item":7}"#)))
                .expect("a valid request")
        };
        // Keyed requests are kept by the first run, and everything is warm.
        time(&runtime, &layered, requests / 10 + 1, &mut make);
        time(&runtime, &plain, requests / 10 + 1, &mut make);
        for _ in 0..rounds {
            println!(
                "{kind} {} {} {} {}",
                time(&runtime, &layered, requests, &mut make),
                allocations(&runtime, &layered, &mut make),
                time(&runtime, &plain, requests, &mut make),
                allocations(&runtime, &plain, &mut make),
            );
        }
    }
}

async fn ask<S, B>(service: &S, request: Request<Full<Bytes>>)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body,
{
    let Ok(response) = service.clone().oneshot(request).await;
    assert!(response.status().is_success());
    let body = response.into_body().collect().await;
    assert!(body.is_ok());
}

/// Nanoseconds for each of so many requests. They are made a few at a time, so that each lies in the processor's
/// cache when it is asked, as one that a server has just read.
fn time<S, B>(
    runtime: &Runtime,
    service: &S,
    count: usize,
    make: &mut impl FnMut() -> Request<Full<Bytes>>,
) -> f64
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body,
{
    const AT_A_TIME: usize = 16;
    let mut requests = Vec::with_capacity(AT_A_TIME);
    let mut took = Duration::ZERO;
    runtime.block_on(async {
        for _ in 0..count.div_ceil(AT_A_TIME) {
            requests.extend((0..AT_A_TIME).map(|_| make()));
            let started = Instant::now();
            for request in requests.drain(..) {
                ask(service, request).await;
            }
            took += started.elapsed();
        }
    });
    took.as_nanos() as f64 / count.next_multiple_of(AT_A_TIME) as f64
}

/// Allocations of one request; the mean of many, so that a growing table does not stand out.
fn allocations<S, B>(
    runtime: &Runtime,
    service: &S,
    make: &mut impl FnMut() -> Request<Full<Bytes>>,
) -> f64
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body,
{
    const REQUESTS: u32 = 1000;
    let mut total = 0;
    for _ in 0..REQUESTS {
        let request = make();
        let counted = allocation_counter::measure(|| runtime.block_on(ask(service, request)));
        total += counted.count_total;
    }
    total as f64 / f64::from(REQUESTS)
}
