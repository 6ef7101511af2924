//! Unary calls of gRPC, whose status stands in trailers, by the metadata `idempotency-key`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::channel::Channel;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::support::tls::{Authority, connect, gateway_between, http2};
use crate::support::{Gateway, Served};

const MESSAGE: Bytes = Bytes::from_static(b"\0\0\0\0\x05apple");

/// Answers its first call with one status, and all others with 0, always behind a message.
async fn service(tls: Option<TlsAcceptor>, first: u16) -> Served {
    let calls = Arc::new(AtomicUsize::new(0));
    Served::start_with(tls, move |request| {
        let calls = Arc::clone(&calls);
        async move {
            assert_eq!(request.headers()["te"], "trailers");
            let asked = request.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(asked, MESSAGE);
            let nth = calls.fetch_add(1, Ordering::SeqCst);
            let status = if nth == 0 { first } else { 0 };
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.into());
            trailers.insert("x-call", nth.into());
            let (mut sender, body) = Channel::<Bytes>::new(2);
            sender.try_send(Frame::data(MESSAGE)).unwrap();
            sender.try_send(Frame::trailers(trailers)).unwrap();
            let answer = Response::builder().header("content-type", "application/grpc");
            answer.body(Body::new(body)).unwrap()
        }
    })
    .await
}

struct Reply {
    message: Bytes,
    trailers: HeaderMap,
    is_replay: bool,
}

async fn call(sender: &mut SendRequest<Full<Bytes>>, key: &str) -> Reply {
    let request = Request::post("https://localhost/shop.Orders/Place")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("idempotency-key", key)
        .body(Full::from(MESSAGE))
        .unwrap();
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    let message = body.to_bytes();
    let said = std::str::from_utf8(&message);
    assert_eq!(head.status, 200, "{said:?}");
    assert_eq!(head.headers["content-type"], "application/grpc");
    Reply {
        message,
        trailers,
        is_replay: head.headers.contains_key("idempotency-replayed"),
    }
}

async fn calls_run_once(upstream: &Served, sender: &mut SendRequest<Full<Bytes>>) {
    for is_replay in [false, true, true] {
        let reply = call(sender, "k").await;
        assert_eq!(reply.is_replay, is_replay);
        assert_eq!(reply.message, MESSAGE);
        assert_eq!(reply.trailers["grpc-status"], "0");
        assert_eq!(reply.trailers["x-call"], "0");
    }
    assert_eq!(call(sender, "l").await.trailers["x-call"], "1");
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].version, http::Version::HTTP_2);
    assert_eq!(seen[0].headers["idempotency-key"], "k");
}

#[tokio::test]
async fn a_call_runs_once_without_tls() {
    let upstream = service(None, 0).await;
    let url = format!("--upstream=h2c://{}", upstream.address);
    let gateway = Gateway::start(upstream.address, &[&url]);
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    calls_run_once(&upstream, &mut http2(stream).await).await;
}

#[tokio::test]
async fn a_call_runs_once_with_tls_on_both_sides() {
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    let upstream = service(Some(signed.server(&["h2"])), 0).await;
    let gateway = gateway_between(&authority, &signed, upstream.address);
    let client = authority.client(&["h2"], None);
    let stream = connect(gateway.address, &client).await.unwrap();
    calls_run_once(&upstream, &mut http2(stream).await).await;
}

/// 14 is `UNAVAILABLE`: the next call runs. 5 is `NOT_FOUND`: it is kept.
#[tokio::test]
async fn what_a_status_in_the_trailers_means() {
    for (status, runs_again) in [("14", true), ("5", false)] {
        let upstream = service(None, status.parse().unwrap()).await;
        let url = format!("--upstream=h2c://{}", upstream.address);
        let gateway = Gateway::start(upstream.address, &[&url]);
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let mut sender = http2(stream).await;
        assert_eq!(call(&mut sender, "k").await.trailers["grpc-status"], status);
        let second = call(&mut sender, "k").await;
        assert_eq!(second.is_replay, !runs_again);
        let expected = if runs_again { "0" } else { status };
        assert_eq!(second.trailers["grpc-status"], expected);
    }
}
