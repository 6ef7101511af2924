//! Upstreams that speak TLS, and HTTP/2.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::{Response, StatusCode, Version};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::tls::Authority;
use crate::support::{Gateway, Served, eventually, order, order_with};

/// A gateway in front of `https://localhost`, which trusts this authority.
struct Secured {
    gateway: Gateway,
    _directory: TempDir,
}

impl Secured {
    fn start(upstream: SocketAddr, trusted: &Authority, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = trusted.file_in(directory.path());
        let url = format!("--upstream=https://localhost:{}", upstream.port());
        let ca = format!("--upstream-ca={}", ca.display());
        let gateway = Gateway::start(upstream, &[&[&*url, &*ca], more].concat());
        Self {
            gateway,
            _directory: directory,
        }
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
