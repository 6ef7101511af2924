//! How much may be open, run and be held at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{
    Gateway, PATIENCE, Shop, eventually, get, order, order_with, request, send_raw,
};

/// A service that answers requests with a key, or with `x-held`, once its gate is opened, and counts them.
struct Gated {
    address: SocketAddr,
    calls: Arc<Calls>,
}

struct Calls {
    running: AtomicUsize,
    most: AtomicUsize,
    keyed: AtomicUsize,
    gate: Semaphore,
}

impl Gated {
    async fn open() -> Self {
        let calls = Arc::new(Calls {
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            keyed: AtomicUsize::new(0),
            gate: Semaphore::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(serve).with_state(Arc::clone(&calls));
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { address, calls }
    }

    fn most(&self) -> usize {
        self.calls.most.load(Ordering::SeqCst)
    }
}

async fn serve(State(calls): State<Arc<Calls>>, headers: HeaderMap) -> StatusCode {
    let keyed = headers.contains_key("idempotency-key");
    if keyed {
        calls.keyed.fetch_add(1, Ordering::SeqCst);
    }
    if keyed || headers.contains_key("x-held") {
        let _running = Running::begin(&calls);
        // Open once it is closed.
        if let Ok(permit) = calls.gate.acquire().await {
            permit.forget();
        }
    }
    StatusCode::CREATED
}

struct Running<'a>(&'a Calls);

impl<'a> Running<'a> {
    fn begin(calls: &'a Calls) -> Self {
        let running = calls.running.fetch_add(1, Ordering::SeqCst) + 1;
        calls.most.fetch_max(running, Ordering::SeqCst);
        Self(calls)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Sends so many orders over HTTP/2, each with a key of its own, and resets each after 10 ms. Says
/// how many were answered before, each with 503 `overloaded`.
async fn flood(address: SocketAddr, orders: usize) -> usize {
    const AT_ONCE: usize = 100;
    let (mut sent, mut answered) = (0, 0);
    'connection: while sent < orders {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        while sent < orders {
            let mut resets = JoinSet::new();
            for n in sent..sent + AT_ONCE {
                let key = format!("\"reset-{n}\"");
                let order = request(
                    Method::POST,
                    address,
                    "/orders",
                    &[("idempotency-key", &key)],
                    &"3 apples".repeat(128),
                );
                let mut sender = sender.clone();
                resets.spawn(async move {
                    timeout(Duration::from_millis(10), sender.send_request(order)).await
                });
            }
            for reset in resets.join_all().await {
                match reset {
                    Err(_) => sent += 1,
                    Ok(Ok(answer)) => {
                        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
                        assert_eq!(answer.headers()["retry-after"], "1");
                        sent += 1;
                        answered += 1;
                    }
                    // The gateway had enough of this connection.
                    Ok(Err(_)) => continue 'connection,
                }
            }
        }
    }
    answered
}

/// R11: an attempt goes on when its client goes away. Over HTTP/2 that costs a client nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_are_reset_leave_no_more_attempts_than_may_run() {
    let upstream = Gated::open().await;
    let gateway = Gateway::start(upstream.address, &["--max-attempts", "8"]);
    let address = gateway.address;
    upstream.calls.gate.add_permits(1);
    assert_eq!(order(address, "\"before\"").await.status, 201);
    let memory = gateway.resident();

    let is_over = Arc::new(AtomicBool::new(false));
    let others = tokio::spawn({
        let is_over = Arc::clone(&is_over);
        async move {
            let mut served = 0;
            while !is_over.load(Ordering::SeqCst) {
                assert_eq!(get(address, "/orders").await.status, 201);
                assert!(order(address, "\"before\"").await.is_replay());
                assert_eq!(order_with(address, &[]).await.status, 201);
                served += 1;
            }
            served
        }
    });
    let began = Instant::now();
    let answered = flood(address, 5_000).await;
    let took = began.elapsed();
    is_over.store(true, Ordering::SeqCst);
    let served = others.await.unwrap();
    let grown = gateway.resident().saturating_sub(memory);
    println!(
        "5000 orders reset in {took:?}, {answered} answered 503 before; at most {} calls of the \
         service at once; {served} rounds of others served; {} KiB more memory",
        upstream.most(),
        grown >> 10
    );
    assert_eq!(upstream.most(), 8);
    assert!(served > 0);
    assert!(grown < 64 << 20, "{grown} bytes");
    assert_eq!(order(address, "\"new\"").await.problem(), "overloaded");

    upstream.calls.gate.close();
    eventually("room for a new order", async || {
        (order(address, "\"new\"").await.status == 201).then_some(())
    })
    .await;
    assert!(upstream.most() <= 8);
}

#[tokio::test]
async fn connections_beyond_the_bound_wait() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--max-connections", "2"]);
    let mut idle = Vec::new();
    for _ in 0..2 {
        let mut stream = send_raw(gateway.address, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
        idle.push(stream);
    }
    let waiting = tokio::spawn(order(gateway.address, "\"k\""));
    eventually("a word about it", async || {
        gateway.log().contains("--max-connections").then_some(())
    })
    .await;
    assert_eq!(shop.received(), 0);
    idle.pop();
    assert_eq!(waiting.await.unwrap().status, 201);
}

/// Connections take no more descriptors than leave some for the store and the upstream.
#[tokio::test]
async fn idle_connections_do_not_take_the_stores_descriptors() {
    let shop = Shop::open().await;
    let gateway = Gateway::start_with_files(128, shop.address, &[]);
    assert!(
        gateway.log().contains("128 files may be open"),
        "{}",
        gateway.log()
    );
    let mut served = send_raw(gateway.address, "").await;
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(gateway.address).await.unwrap());
    }
    eventually("a word about it", async || {
        gateway.log().contains("--max-connections").then_some(())
    })
    .await;
    // Who is in is served, and the store works.
    for n in 0..50 {
        let order = format!(
            "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: \"k-{n}\"\r\n\
             content-length: 2\r\n\r\n{{}}"
        );
        served.write_all(order.as_bytes()).await.unwrap();
        let mut answer = [0; 1024];
        let read = served.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
    assert_eq!(get(gateway.admin, "/readyz").await.status, 200);
    drop(idle);
    assert_eq!(order(gateway.address, "\"after\"").await.status, 201);
    let log = gateway.log();
    assert!(
        !log.contains("cannot accept") && !log.contains("ERROR"),
        "{log}"
    );
}

/// Requests without a key have a share of their own: none of them takes what an attempt needs.
#[tokio::test]
async fn requests_without_a_key_take_no_room_of_attempts() {
    let upstream = Gated::open().await;
    let gateway = Gateway::start_with_files(128, upstream.address, &[]);
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let mut waiting = JoinSet::new();
    for _ in 0..200 {
        let held = request(Method::GET, gateway.address, "/", &[("x-held", "1")], "");
        let mut sender = sender.clone();
        waiting.spawn(async move { sender.send_request(held).await.unwrap().status() });
    }
    eventually("those beyond it refused", async || {
        let metrics = get(gateway.admin, "/metrics").await;
        let refused = "semel_events_total{event=\"overloaded\"} ";
        let refused = metrics.text().lines().find_map(|l| l.strip_prefix(refused));
        let refused: f64 = refused?.parse().ok()?;
        (refused > 0.0 && refused + upstream.most() as f64 >= 200.0).then_some(())
    })
    .await;
    let one_more = request(Method::GET, gateway.address, "/", &[("x-held", "1")], "");
    let refused = crate::support::send(one_more).await.unwrap();
    assert_eq!(refused.problem(), "overloaded");
    assert!(
        refused
            .text()
            .contains("with the same key if there was one"),
        "{refused:?}"
    );
    let keyed = tokio::spawn(order(gateway.address, "\"k\""));
    eventually("the order or its refusal", async || {
        (keyed.is_finished() || upstream.calls.keyed.load(Ordering::SeqCst) == 1).then_some(())
    })
    .await;
    upstream.calls.gate.close();
    let answer = keyed.await.unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[tokio::test]
async fn a_body_that_trickles_is_given_up() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--body-timeout", "300ms"]);
    for key in ["idempotency-key: \"k\"\r\n", ""] {
        let head = format!(
            "POST /orders HTTP/1.1\r\nhost: x\r\n{key}content-length: 1000000\r\nconnection: close\r\n\r\n"
        );
        let mut slow = send_raw(gateway.address, &head).await;
        let mut answer = Vec::new();
        let trickle = async {
            while answer.is_empty() {
                // 10 kB a second at most: more than nothing, and less than earns its time.
                slow.write_all(&[b'x'; 200]).await.unwrap();
                let piece = slow.read_buf(&mut answer);
                timeout(Duration::from_millis(20), piece).await.ok();
            }
        };
        timeout(PATIENCE, trickle).await.unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    // What comes quickly has all the time it needs.
    let large = "x".repeat(256 << 10);
    let fields = [("idempotency-key", "\"large\"")];
    let large = request(Method::POST, gateway.address, "/orders", &fields, &large);
    assert_eq!(crate::support::send(large).await.unwrap().status, 201);
    assert_eq!(shop.placed(), 1);
}

#[tokio::test]
async fn bodies_are_held_up_to_a_bound() {
    let upstream = Gated::open().await;
    let flags = ["--max-body-memory", "64KiB", "--max-body", "60KiB"];
    let gateway = Gateway::start(upstream.address, &flags);
    let address = gateway.address;
    let large = move |key: &'static str| {
        let fields = [("idempotency-key", key)];
        let order: http::Request<Full<Bytes>> = request(
            Method::POST,
            address,
            "/orders",
            &fields,
            &"x".repeat(50 << 10),
        );
        crate::support::send(order)
    };
    let first = tokio::spawn(large("\"first\""));
    eventually("the first", async || (upstream.most() == 1).then_some(())).await;
    let second = large("\"second\"").await.unwrap();
    assert_eq!(second.problem(), "overloaded");
    upstream.calls.gate.close();
    assert_eq!(first.await.unwrap().unwrap().status, 201);
    assert_eq!(large("\"second\"").await.unwrap().status, 201);
}
