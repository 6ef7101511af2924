//! What the upstream is told of clients behind another proxy. What is told of all others is in
//! `malformed/http1/connection.cases`.

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
