//! Upstreams that speak TLS, and HTTP/2.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::tls::Authority;
use crate::support::{
    Gateway, PATIENCE, Reaction, Script, Served, eventually, order, order_with, read_whole,
    request, send_raw,
};

/// A gateway in front of `https://localhost`, which trusts this authority.
struct Secured {
    gateway: Gateway,
    directory: TempDir,
}

impl Secured {
    fn start(upstream: SocketAddr, trusted: &Authority, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = trusted.file_in(directory.path());
        let url = format!("--upstream=https://localhost:{}", upstream.port());
        let ca = format!("--upstream-ca={}", ca.display());
        let gateway = Gateway::start(upstream, &[&[&*url, &*ca], more].concat());
        Self { gateway, directory }
    }
}

#[tokio::test]
async fn an_upstream_gets_http2_over_tls_if_it_offers_it() {
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    for (alpn, version) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ] {
        let upstream = Served::start(Some(signed.server(alpn))).await;
        let secured = Secured::start(upstream.address, &authority, &[]);
        for replay in [false, true] {
            let answer = order(secured.gateway.address, "\"k\"").await;
            assert_eq!((answer.status.as_u16(), answer.text()), (201, "ok"));
            assert_eq!(answer.is_replay(), replay);
        }
        let [seen] = &upstream.seen()[..] else {
            panic!("{:?}", upstream.seen());
        };
        assert_eq!(seen.version, version);
        let host = format!("localhost:{}", upstream.address.port());
        assert_eq!(seen.headers["host"], *host);
        if version == Version::HTTP_2 {
            assert_eq!(seen.uri.authority().unwrap().as_str(), host);
            assert_eq!(seen.uri.scheme_str(), Some("https"));
        }
        assert_eq!(seen.headers["idempotency-key"], "\"k\"");
        assert_eq!(seen.headers["x-forwarded-proto"], "http");
    }
}

#[tokio::test]
async fn the_clients_host_is_preserved_over_tls() {
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    let upstream = Served::start(Some(signed.server(&["h2", "http/1.1"]))).await;
    let secured = Secured::start(upstream.address, &authority, &["--preserve-host"]);
    let host = secured.gateway.address.to_string();
    assert_eq!(order(secured.gateway.address, "\"k\"").await.status, 201);
    let seen = upstream.seen();
    assert_eq!(seen[0].headers["host"], *host);
    assert_eq!(seen[0].version, Version::HTTP_11);
}

/// Both kinds of files are read again while the gateway runs.
#[tokio::test]
async fn an_upstream_is_shown_the_certificate_that_it_asks_for() {
    let (servers, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    let signed = servers.sign(&["localhost"]);
    let server = signed.server_for(&["h2"], Some(&clients));
    let upstream = Served::start(Some(server)).await;
    let directory = tempfile::tempdir().unwrap();
    let ours = others.sign_client("gateway", "spiffe://example/gateway");
    let [certificate, key] = ours.files_in(directory.path());
    let flags = [
        format!("--upstream-cert={}", certificate.display()),
        format!("--upstream-key={}", key.display()),
    ];
    let secured = Secured::start(
        upstream.address,
        &others,
        &flags.each_ref().map(String::as_str),
    );
    let answered = async || order(secured.gateway.address, "\"k\"").await;
    // Whom it does not trust it sends nothing, and who does not trust it begins nothing.
    assert_eq!(answered().await.problem(), "upstream-unreachable");
    servers.file_in(secured.directory.path());
    eventually("the new authority", async || {
        assert_eq!(answered().await.problem(), "upstream-unreachable");
        let log = secured.gateway.log();
        log.contains("received fatal alert").then_some(())
    })
    .await;
    let ours = clients.sign_client("gateway", "spiffe://example/gateway");
    ours.files_in(directory.path());
    eventually("the new certificate", async || {
        (answered().await.status == 201).then_some(())
    })
    .await;
    assert_eq!(upstream.seen().len(), 1);
}

/// Whoever answers in the upstream's place gets nothing.
#[tokio::test]
async fn an_upstream_without_the_right_certificate_is_sent_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    for (signed, why) in [
        (other.sign(&["localhost"]), "BadSignature"),
        (authority.sign(&["elsewhere"]), "not valid for name"),
    ] {
        let upstream = Served::start(Some(signed.server(&["h2"]))).await;
        let secured = Secured::start(upstream.address, &authority, &[]);
        for _ in 0..2 {
            let answer = order(secured.gateway.address, "\"k\"").await;
            assert_eq!(answer.problem(), "upstream-unreachable");
        }
        let log = secured.gateway.log();
        assert!(log.contains(why), "{log}");
        assert_eq!(upstream.seen().len(), 0);
    }
}

#[tokio::test]
async fn an_upstream_gets_http2_without_tls_if_it_is_said_to_speak_it() {
    let upstream = Served::start(None).await;
    let url = format!("--upstream=h2c://{}", upstream.address);
    let gateway = Gateway::start(upstream.address, &[&url]);
    for replay in [false, true] {
        let answer = order(gateway.address, "\"k\"").await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, replay));
    }
    let unkeyed = order_with(gateway.address, &[]).await;
    assert_eq!(unkeyed.text(), "ok");
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    for seen in seen {
        assert_eq!(seen.version, Version::HTTP_2);
        assert_eq!(seen.uri.scheme_str(), Some("http"));
        assert!(!seen.headers.contains_key("connection"), "{seen:?}");
    }
}

/// Answers 201 once so many requests are there at the same time.
fn together(count: usize) -> impl Fn(Request<Incoming>) -> Together + Clone + Send + Sync {
    let barrier = Arc::new(Barrier::new(count));
    move |request| {
        let barrier = Arc::clone(&barrier);
        Box::pin(async move {
            request.into_body().collect().await.unwrap();
            barrier.wait().await;
            let answer = Response::builder().status(StatusCode::CREATED);
            answer.body(Body::empty()).unwrap()
        })
    }
}

type Together = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

async fn orders(gateway: SocketAddr, count: usize) {
    let mut orders = JoinSet::new();
    for n in 0..count {
        orders.spawn(async move {
            let answer = order(gateway, &format!("\"k{n}\"")).await;
            assert_eq!(answer.status, 201, "{answer:?}");
        });
    }
    while let Some(done) = orders.join_next().await {
        done.unwrap();
    }
}

/// Each thread of the gateway has connections of its own.
#[tokio::test]
async fn requests_at_once_share_a_connection_of_http2() {
    let threads = std::thread::available_parallelism().unwrap().get();
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    let server = signed.server(&["h2", "http/1.1"]);
    let upstream = Served::start_with(Some(server), together(50)).await;
    let secured = Secured::start(upstream.address, &authority, &[]);
    orders(secured.gateway.address, 50).await;
    let connections = upstream.connections();
    assert!(connections <= threads, "{connections}");
}

#[tokio::test]
async fn requests_at_once_have_a_connection_of_http1_each() {
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    let server = signed.server(&["http/1.1"]);
    let upstream = Served::start_with(Some(server), together(20)).await;
    let secured = Secured::start(upstream.address, &authority, &[]);
    orders(secured.gateway.address, 20).await;
    assert_eq!(upstream.connections(), 20);
}

/// A gateway, and a client's connection to it: one of those is served by one of its threads.
async fn one_thread(timeout: &str, upstream: SocketAddr) -> (Gateway, TcpStream) {
    let flags = [
        format!("--upstream=h2c://{upstream}"),
        format!("--upstream-timeout={timeout}"),
    ];
    let gateway = Gateway::start(upstream, &flags.each_ref().map(String::as_str));
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    (gateway, stream)
}

/// What the upstream has no room for is asked of it on another connection.
#[tokio::test]
async fn a_request_waits_for_no_room_on_a_connection_of_http2() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let all_there = Arc::new(Barrier::new(4));
    let first = Arc::new(AtomicBool::new(true));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (all_there, first) = (Arc::clone(&all_there), Arc::clone(&first));
            let service = service_fn(move |_| {
                let (all_there, first) = (Arc::clone(&all_there), Arc::clone(&first));
                async move {
                    if !first.swap(false, Ordering::SeqCst) {
                        all_there.wait().await;
                    }
                    Ok::<_, Infallible>(Response::new(Body::from("ok")))
                }
            });
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(1);
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    let (gateway, stream) = one_thread("5s", address).await;
    let sender = crate::support::tls::http2::<Full<Bytes>>(stream).await;
    let order = |n: usize| {
        let mut sender = sender.clone();
        let key = format!("\"k{n}\"");
        let order = request(
            Method::POST,
            gateway.address,
            "/orders",
            &[("idempotency-key", &key)],
            "{}",
        );
        async move {
            let answer = sender.send_request(order).await;
            read_whole(answer.unwrap()).await.unwrap()
        }
    };
    assert_eq!(order(0).await.status, 200);
    for answer in futures_util::future::join_all((1..5).map(order)).await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// It takes the upstream's room until it ends.
#[tokio::test]
async fn an_upload_that_was_answered_early_is_in_nobodys_way() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        // Neither read nor given up.
        let held = Arc::new(Mutex::new(Vec::new()));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let held = Arc::clone(&held);
            let service = service_fn(move |request: Request<Incoming>| {
                held.lock().unwrap().push(request.into_body());
                async { Ok::<_, Infallible>(Response::new(Body::empty())) }
            });
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(1);
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    let (gateway, stream) = one_thread("5s", address).await;
    let mut sender = crate::support::tls::http2::<Channel<Bytes>>(stream).await;
    let mut uploads = Vec::new();
    for _ in 0..3 {
        let (upload, body) = Channel::new(1);
        let put = Request::put(format!("http://{}/", gateway.address));
        let answer = sender.send_request(put.body(body).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
        uploads.push(upload);
    }
}

/// An end without a word could be an attacker's (RFC 8446, section 6.1), and upstreams complain of it.
#[tokio::test]
async fn connections_that_are_given_up_end_in_an_orderly_way() {
    let authority = Authority::new();
    let acceptor = authority.sign(&["localhost"]).server(&["http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secured = Secured::start(listener.local_addr().unwrap(), &authority, &[]);
    let head = "HTTP/1.1 200 OK\r\ncontent-length: ";
    let (whole, part) = (format!("{head}0\r\n\r\n"), format!("{head}9\r\n\r\npart"));
    for answer in ["", &*part, &*whole] {
        let mut client =
            send_raw(secured.gateway.address, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let (stream, _) = listener.accept().await.unwrap();
        let mut upstream = acceptor.accept(stream).await.unwrap();
        assert!(upstream.read(&mut [0; 1024]).await.unwrap() > 0);
        upstream.write_all(answer.as_bytes()).await.unwrap();
        upstream.flush().await.unwrap();
        let mut read = Vec::new();
        while !read.windows(4).any(|end| end == b"\r\n\r\n") && !answer.is_empty() {
            assert!(client.read_buf(&mut read).await.unwrap() > 0);
        }
        drop(client);
        let ended = timeout(PATIENCE, upstream.read(&mut [0; 1024])).await;
        assert_eq!(ended.unwrap().unwrap(), 0, "after {answer:?}");
    }
}

/// It would be the fullest for as long as others wait there.
#[tokio::test]
async fn a_connection_of_http2_that_was_silent_gets_no_more_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for nth in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(move |_| async move {
                if nth == 0 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(Response::new(Body::empty()))
            });
            let builder = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    let (gateway, stream) = one_thread("500ms", address).await;
    let mut sender = crate::support::tls::http2::<Full<Bytes>>(stream).await;
    for status in [504, 200] {
        let get = request(Method::GET, gateway.address, "/", &[], "");
        let answer = sender.send_request(get).await.unwrap();
        assert_eq!(answer.status(), status);
    }
}

/// Who does not begin to speak HTTP/2 was sent nothing.
#[tokio::test]
async fn an_upstream_that_speaks_no_http2_was_sent_nothing() {
    let upstream = Script::start(Reaction::Send("HTTP/1.1 400 Bad Request\r\n\r\n")).await;
    let url = format!("--upstream=h2c://{}", upstream.address);
    let gateway = Gateway::start(upstream.address, &[&url]);
    for _ in 0..2 {
        let answer = order(gateway.address, "\"k\"").await;
        assert_eq!(answer.problem(), "upstream-unreachable");
    }
}

/// While one connection is being made, requests that cannot share it make others.
#[tokio::test]
async fn requests_of_http1_wait_for_no_connection_of_others() {
    let authority = Authority::new();
    let server = authority.sign(&["localhost"]).server(&["http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stalled, mut stalls) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for nth in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            // The second one gets no TLS.
            if nth == 1 {
                stalled.send(stream).await.unwrap();
                continue;
            }
            let server = server.clone();
            tokio::spawn(async move {
                let stream = server.accept(stream).await.unwrap();
                let service = service_fn(async |request: Request<Incoming>| {
                    request.into_body().collect().await.unwrap();
                    let answer = Response::builder().header("connection", "close");
                    Ok::<_, Infallible>(answer.body(Body::empty()).unwrap())
                });
                let http1 = hyper::server::conn::http1::Builder::new();
                http1
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .ok();
            });
        }
    });
    let secured = Secured::start(address, &authority, &[]);
    let stream = TcpStream::connect(secured.gateway.address).await.unwrap();
    let sender = crate::support::tls::http2::<Full<Bytes>>(stream).await;
    let get = || {
        let mut sender = sender.clone();
        let get = request(Method::GET, secured.gateway.address, "/", &[], "");
        async move { sender.send_request(get).await.unwrap().status() }
    };
    assert_eq!(get().await, 200);
    let waits = tokio::spawn(get());
    let held = stalls.recv().await.unwrap();
    assert_eq!(get().await, 200);
    assert!(!waits.is_finished());
    drop(held);
    assert_eq!(waits.await.unwrap(), 502);
}

/// An upstream that refuses streams and says GOAWAY while requests come: what it says it has not done is
/// done elsewhere, and nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_upstream_of_http2_did_not_do_is_done_once() {
    const ORDERS: usize = 300;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let executed = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let refused = Arc::new(Mutex::new(0));
    let (ledger, refusals) = (Arc::clone(&executed), Arc::clone(&refused));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (ledger, refusals) = (Arc::clone(&ledger), Arc::clone(&refusals));
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let mut nth = 0;
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    nth += 1;
                    if nth % 7 == 3 {
                        *refusals.lock().unwrap() += 1;
                        respond.send_reset(h2::Reason::REFUSED_STREAM);
                        continue;
                    }
                    let key = request.headers()["idempotency-key"].to_str().unwrap();
                    *ledger.lock().unwrap().entry(key.to_owned()).or_default() += 1;
                    let mut answer = Response::new(());
                    *answer.status_mut() = StatusCode::CREATED;
                    respond.send_response(answer, true).unwrap();
                    if nth == 20 {
                        connection.graceful_shutdown();
                    }
                }
            });
        }
    });
    let flags = [
        &format!("--upstream=h2c://{address}"),
        "--store",
        "memory:",
        "--upstream-timeout",
        "20s",
    ];
    let gateway = Gateway::start(address, &flags);
    let mut orders = JoinSet::new();
    let to = gateway.address;
    for n in 0..ORDERS {
        orders.spawn(async move {
            let key = format!("\"k{n}\"");
            // Refused twice in a row: nothing was done, and the client may ask again.
            eventually("the order", || async {
                let answer = order(to, &key).await;
                if answer.status == 201 {
                    return Some(());
                }
                assert_eq!(answer.problem(), "upstream-unreachable");
                None
            })
            .await;
        });
    }
    while let Some(done) = orders.join_next().await {
        done.unwrap();
    }
    let executed = executed.lock().unwrap();
    assert_eq!(executed.len(), ORDERS);
    let twice = executed.values().filter(|times| **times > 1).count();
    assert_eq!(twice, 0);
    let refused = *refused.lock().unwrap();
    assert!(refused > 0);
    println!("{ORDERS} orders, each done once; {refused} streams were refused");
}
