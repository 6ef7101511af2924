//! What the upstream is told of clients behind another proxy. What is told of all others is in
//! `malformed/http1/connection.cases`.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::tls::Authority;
use crate::support::{Gateway, Recorder, Shop, get, order_with, read_head, send_raw};

const SAID: &str = "POST /orders HTTP/1.1\r\nhost: inner.example\r\nx-forwarded-for: 203.0.113.9\r\n\
     x-forwarded-proto: https\r\nx-forwarded-host: shop.example\r\nx-forwarded-port: 443\r\n\
     forwarded: for=203.0.113.9;proto=https\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn trusted_peers_are_believed() {
    let upstream = Recorder::start().await;
    let flags = [
        "--trust-forwarded",
        "192.0.2.0/24, ::1",
        "--trust-forwarded",
        "127.0.0.0/8",
    ];
    let gateway = Gateway::start(upstream.address, &flags);
    let mut stream = send_raw(gateway.address, SAID).await;
    let answer = read_head(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let [seen] = &upstream.seen()[..] else {
        panic!("{:?}", upstream.seen());
    };
    let hop = "for=127.0.0.1;host=\"inner.example\";proto=http";
    for (name, value) in [
        ("host", upstream.address.to_string().as_str()),
        ("x-forwarded-for", "203.0.113.9, 127.0.0.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "shop.example"),
        ("x-forwarded-port", "443"),
        ("forwarded", &format!("for=203.0.113.9;proto=https, {hop}")),
    ] {
        assert_eq!(seen.values(name), [value], "{seen:?}");
    }
}

#[tokio::test]
async fn the_host_is_preserved() {
    let upstream = Recorder::start().await;
    let gateway = Gateway::start(upstream.address, &["--preserve-host"]);
    let mut stream = send_raw(gateway.address, SAID).await;
    read_head(&mut stream).await.unwrap();
    let seen = upstream.seen();
    assert_eq!(seen[0].values("host"), ["inner.example"]);
    assert_eq!(seen[0].values("x-forwarded-host"), ["inner.example"]);
    assert_eq!(seen[0].values("x-forwarded-for"), ["127.0.0.1"]);
}

#[tokio::test]
async fn the_file_has_a_list_of_trusted_peers() {
    let shop = Shop::open().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("semel.toml");
    std::fs::write(&file, "trust-forwarded = [\"127.0.0.1\", \"::1\"]\n").unwrap();
    let gateway = Gateway::start(shop.address, &["--config", file.to_str().unwrap()]);
    let request =
        "GET /echo HTTP/1.1\r\nhost: a\r\nx-forwarded-proto: https\r\nconnection: close\r\n\r\n";
    let mut stream = send_raw(gateway.address, request).await;
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer)
        .await
        .unwrap();
    assert!(answer.contains("x-forwarded-proto: https\n"), "{answer}");
    assert_eq!(get(gateway.address, "/echo").await.status, 200);
}

/// What is not believed makes no scope either.
#[tokio::test]
async fn a_forwarded_host_makes_a_scope_if_its_sender_is_trusted() {
    for (trusted, orders) in [("192.0.2.1", 1), ("127.0.0.1", 2)] {
        let shop = Shop::open().await;
        let flags = [
            "--scope-header",
            "x-forwarded-host",
            "--trust-forwarded",
            trusted,
        ];
        let gateway = Gateway::start(shop.address, &flags);
        for host in ["shop.example", "other.example"] {
            let headers = [("idempotency-key", "k"), ("x-forwarded-host", host)];
            assert_eq!(order_with(gateway.address, &headers).await.status, 201);
        }
        assert_eq!(shop.placed(), orders, "with {trusted} trusted");
    }
}

/// Version 2, command LOCAL.
const LOCAL: &str = "\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
const FROM_A_CLIENT: &str = "PROXY TCP4 203.0.113.9 192.0.2.1 5555 80\r\n";

#[tokio::test]
async fn a_load_balancer_says_who_the_client_is() {
    let upstream = Recorder::start().await;
    let flags = ["--proxy-protocol", "--trust-forwarded", "127.0.0.0/8"];
    let gateway = Gateway::start(upstream.address, &flags);
    // The client is not the load balancer: what it says itself is not believed.
    let mut stream = send_raw(gateway.address, &format!("{FROM_A_CLIENT}{SAID}")).await;
    let answer = read_head(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // Its own connections, to see whether the gateway is there.
    let mut stream = send_raw(gateway.address, &format!("{LOCAL}{SAID}")).await;
    read_head(&mut stream).await.unwrap();
    let seen = upstream.seen();
    assert_eq!(seen[0].values("x-forwarded-for"), ["203.0.113.9"]);
    assert_eq!(seen[0].values("x-forwarded-proto"), ["http"]);
    assert_eq!(
        seen[1].values("x-forwarded-for"),
        ["203.0.113.9, 127.0.0.1"]
    );
    assert_eq!(seen[1].values("x-forwarded-proto"), ["https"]);

    // A client without an address would be taken for the load balancer.
    for begin in ["", "PROXY UNKNOWN\r\n"] {
        let mut stream = send_raw(gateway.address, &format!("{begin}{SAID}")).await;
        assert_eq!(read_head(&mut stream).await, None);
    }
    assert_eq!(upstream.seen().len(), 2);
}

#[tokio::test]
async fn nobody_else_says_who_the_client_is() {
    let upstream = Recorder::start().await;
    let flags = ["--proxy-protocol", "--trust-forwarded", "192.0.2.1"];
    let gateway = Gateway::start(upstream.address, &flags);
    let mut stream = send_raw(gateway.address, SAID).await;
    read_head(&mut stream).await.unwrap();
    assert_eq!(upstream.seen()[0].values("x-forwarded-for"), ["127.0.0.1"]);
    let mut stream = send_raw(gateway.address, &format!("{FROM_A_CLIENT}{SAID}")).await;
    let answer = read_head(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(upstream.seen().len(), 1);
}

#[tokio::test]
async fn a_load_balancer_says_who_the_client_is_before_tls() {
    let upstream = Recorder::start().await;
    let authority = Authority::new();
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = authority.sign(&["localhost"]).files_in(directory.path());
    let files = [
        format!("--tls-cert={}", certificate.display()),
        format!("--tls-key={}", key.display()),
    ];
    let flags = [
        "--proxy-protocol",
        "--trust-forwarded=127.0.0.1",
        &files[0],
        &files[1],
    ];
    let gateway = Gateway::start(upstream.address, &flags);
    let stream = send_raw(gateway.address, FROM_A_CLIENT).await;
    let client = authority.client(&["http/1.1"], None);
    let name = "localhost".try_into().unwrap();
    let mut stream = client.connect(name, stream).await.unwrap();
    stream.write_all(SAID.as_bytes()).await.unwrap();
    let mut begin = [0; 13];
    stream.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200 ");
    let seen = upstream.seen();
    assert_eq!(seen[0].values("x-forwarded-for"), ["203.0.113.9"]);
    assert_eq!(seen[0].values("x-forwarded-proto"), ["https"]);
}
