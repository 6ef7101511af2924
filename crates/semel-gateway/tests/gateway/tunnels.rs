//! Connections that leave HTTP: WebSocket and the like.

use std::time::Duration;

use axum::body::Body;
use http::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::tls::{Authority, connect, gateway_between};
use crate::support::{Gateway, PATIENCE, Served, eventually, get, order, read_head, send_raw};

const ASKS: &str = "GET /chat HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket, h2c\r\n\
     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// An upstream that repeats what it gets, in another protocol, and says goodbye.
async fn parrot(tls: Option<tokio_rustls::TlsAcceptor>) -> Served {
    Served::start_with(tls, async |mut request| {
        let mut answer = Response::new(Body::empty());
        if request.uri().path() == "/no" {
            *answer.status_mut() = StatusCode::FORBIDDEN;
            return answer;
        }
        if !request.headers().contains_key("upgrade") {
            return answer;
        }
        assert_eq!(request.headers()["upgrade"], "websocket");
        assert_eq!(request.headers()["connection"], "upgrade");
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let stream = TokioIo::new(upgrade.await.unwrap());
            let (mut read, mut write) = tokio::io::split(stream);
            tokio::io::copy(&mut read, &mut write).await.ok();
            write.write_all(b"goodbye").await.ok();
            write.shutdown().await.ok();
        });
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert("connection", "upgrade".parse().unwrap());
        headers.insert("upgrade", "websocket".parse().unwrap());
        answer.headers_mut().insert(
            "sec-websocket-accept",
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".parse().unwrap(),
        );
        answer
    })
    .await
}

async fn read_switch(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Says something, and hears it.
async fn talk(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    stream.write_all(b"hello").await.unwrap();
    stream.flush().await.unwrap();
    let mut heard = [0; 5];
    let heard = timeout(PATIENCE, stream.read_exact(&mut heard)).await;
    assert_eq!(heard.unwrap().unwrap(), 5);
}

/// Ends one direction, and hears what still comes from the other.
async fn part(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    stream.shutdown().await.unwrap();
    let mut heard = String::new();
    let read = timeout(PATIENCE, stream.read_to_string(&mut heard)).await;
    read.unwrap().unwrap();
    assert_eq!(heard, "goodbye");
}

async fn tunnels(gateway: &Gateway) -> String {
    let metrics = get(gateway.admin, "/metrics").await;
    let line = metrics
        .text()
        .lines()
        .find_map(|line| line.strip_prefix("semel_tunnels "));
    line.unwrap().to_owned()
}

#[tokio::test]
async fn an_upgrade_passes_bytes_both_ways() {
    let upstream = parrot(None).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let mut stream = send_raw(gateway.address, ASKS).await;
    let head = read_switch(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for field in [
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-accept: s3pP",
    ] {
        assert!(head.contains(&format!("\r\n{field}")), "{head}");
    }
    talk(&mut stream).await;
    assert_eq!(tunnels(&gateway).await, "1");
    talk(&mut stream).await;
    part(stream).await;
    eventually("the end of the tunnel", || async {
        (tunnels(&gateway).await == "0").then_some(())
    })
    .await;
    let seen = upstream.seen();
    assert_eq!(
        seen[0].headers["sec-websocket-key"],
        "dGhlIHNhbXBsZSBub25jZQ=="
    );
}

#[tokio::test]
async fn an_upgrade_that_the_upstream_refuses_is_any_answer() {
    let upstream = parrot(None).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let mut stream = send_raw(gateway.address, &ASKS.replace("/chat", "/no")).await;
    let head = read_head(&mut stream).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert!(!head.contains("upgrade"), "{head}");
    // The connection goes on.
    stream.write_all(ASKS.as_bytes()).await.unwrap();
    let head = read_switch(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    talk(&mut stream).await;
}

/// What passes through a tunnel would be neither recorded nor replayed.
#[tokio::test]
async fn an_upgrade_with_a_key_or_a_body_is_refused() {
    let upstream = parrot(None).await;
    let gateway = Gateway::start(upstream.address, &[]);
    for (more, body) in [("idempotency-key: k", ""), ("content-length: 2", "{}")] {
        for method in ["GET", "POST"] {
            let head = ASKS.replace("\r\n\r\n", &format!("\r\n{more}\r\n\r\n{body}"));
            let head = head.replace("GET", method);
            let mut stream = send_raw(gateway.address, &head).await;
            let head = read_head(&mut stream).await.unwrap();
            assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
        }
    }
    assert_eq!(upstream.seen().len(), 0);
}

#[tokio::test]
async fn an_upgrade_passes_through_tls_on_both_sides() {
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    let upstream = parrot(Some(signed.server(&["h2", "http/1.1"]))).await;
    let gateway = gateway_between(&authority, &signed, upstream.address);
    let client = authority.client(&["http/1.1"], None);
    let mut stream = connect(gateway.address, &client).await.unwrap();
    stream.write_all(ASKS.as_bytes()).await.unwrap();
    let head = read_switch(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    talk(&mut stream).await;
    part(stream).await;
}

#[tokio::test]
async fn a_tunnel_is_a_connection() {
    let upstream = parrot(None).await;
    let gateway = Gateway::start(upstream.address, &["--max-connections", "1"]);
    let mut stream = send_raw(gateway.address, ASKS).await;
    read_switch(&mut stream).await;
    let to = gateway.address;
    let mut waiting = tokio::spawn(async move { order(to, "\"k\"").await });
    let early = timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(early.is_err(), "{early:?}");
    talk(&mut stream).await;
    part(stream).await;
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_stopping_gateway_waits_for_tunnels_until_its_drain_ends() {
    let upstream = parrot(None).await;
    for (drain, ends) in [("600s", true), ("300ms", false)] {
        let mut gateway = Gateway::start(upstream.address, &["--drain", drain]);
        let mut stream = send_raw(gateway.address, ASKS).await;
        read_switch(&mut stream).await;
        gateway.terminate();
        if ends {
            eventually("no more connections", || async {
                std::net::TcpStream::connect(gateway.address)
                    .is_err()
                    .then_some(())
            })
            .await;
            talk(&mut stream).await;
            part(stream).await;
        }
        assert_eq!(gateway.ended().await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_tunnel_is_under_way_until_it_ends() {
    let [one, two] = [parrot(None).await, parrot(None).await];
    let both = format!("--upstream=http://{},http://{}", one.address, two.address);
    let gateway = Gateway::start(one.address, &[&both]);
    let mut stream = send_raw(gateway.address, ASKS).await;
    read_switch(&mut stream).await;
    let (busy, idle) = match one.seen().len() {
        1 => (one, two),
        _ => (two, one),
    };
    for _ in 0..6 {
        get(gateway.address, "/").await;
    }
    assert_eq!([busy.seen().len(), idle.seen().len()], [1, 6]);
    part(stream).await;
    eventually("a request where the tunnel was", async || {
        get(gateway.address, "/").await;
        (busy.seen().len() > 1).then_some(())
    })
    .await;
}
