//! Whose key it is.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::support::{Gateway, Reaction, Script, Shop, order, order_with};

#[tokio::test]
async fn principals_with_the_same_key_are_independent() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let ask = |who: &'static str| {
        let headers = [("idempotency-key", "\"k\""), ("authorization", who)];
        async move { order_with(gateway.address, &headers).await }
    };
    let (one, two) = (ask("Bearer one").await, ask("Bearer two").await);
    let nobody = order(gateway.address, "\"k\"").await;
    assert_eq!(shop.placed(), 3);
    for answer in [&one, &two, &nobody] {
        assert_eq!(answer.status, 201);
        assert!(!answer.is_replay());
    }
    let again = ask("Bearer one").await;
    assert!(again.is_replay());
    assert_eq!(again.body, one.body);
    assert!(!gateway.log().contains("Bearer"));
}

#[tokio::test]
async fn the_principal_can_stand_in_another_field() {
    let shop = Shop::open().await;
    let flags = ["--scope-header", "X-Account", "--require-principal"];
    let gateway = Gateway::start(shop.address, &flags);
    let ask = |account: &'static str, token: &'static str| {
        let headers = [
            ("idempotency-key", "\"k\""),
            ("x-account", account),
            ("authorization", token),
        ];
        async move { order_with(gateway.address, &headers).await }
    };
    assert!(!ask("a", "t1").await.is_replay());
    assert!(
        ask("a", "t2").await.is_replay(),
        "a rotated token is the same account"
    );
    assert!(!ask("b", "t1").await.is_replay());
    let headers = [("idempotency-key", "\"k\""), ("authorization", "t1")];
    let refused = order_with(gateway.address, &headers).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (400, "missing-principal")
    );
    assert_eq!(shop.placed(), 2);
}

#[tokio::test]
async fn credentials_that_may_differ_in_each_request_are_refused_with_what_to_set() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let ask = |gateway: &Gateway, more: &[(&'static str, &'static str)]| {
        let address = gateway.address;
        let headers = [&[("idempotency-key", "\"k\"")], more].concat();
        async move { order_with(address, &headers).await }
    };
    for signed in ["Digest nc=00000001", "Digest nc=00000002", "secret-token"] {
        let answer = ask(&gateway, &[("authorization", signed)]).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.problem(), "missing-principal");
        assert!(answer.text().contains("--scope-header"), "{answer:?}");
        assert!(!answer.text().contains("secret"), "{answer:?}");
    }
    assert_eq!(shop.received(), 0);

    // Where the operator knows that the scheme sends the same in each request.
    let gateway = Gateway::start(shop.address, &["--scope-header", "authorization"]);
    let first = ask(&gateway, &[("authorization", "Token t")]).await;
    assert_eq!(first.status, 201);
    assert!(
        ask(&gateway, &[("authorization", "Token t")])
            .await
            .is_replay()
    );
    assert!(
        !ask(&gateway, &[("authorization", "Token u")])
            .await
            .is_replay()
    );
}

#[tokio::test]
async fn an_empty_principal_is_none() {
    let shop = Shop::open().await;
    let by_credentials = Gateway::start(shop.address, &["--require-principal"]);
    let flags = ["--require-principal", "--scope-header", "X-Account"];
    let by_field = Gateway::start(shop.address, &flags);
    for empty in ["", "   ", "\t"] {
        for (gateway, field) in [(&by_credentials, "authorization"), (&by_field, "x-account")] {
            let headers = [("idempotency-key", "\"k\""), (field, empty)];
            let answer = order_with(gateway.address, &headers).await;
            assert_eq!(answer.status, 400, "{field}: {empty:?}");
            assert_eq!(answer.problem(), "missing-principal");
        }
    }
    assert_eq!(shop.received(), 0);
}

fn at<'a>(host: &'a str, who: &'a str) -> [(&'a str, &'a str); 3] {
    [
        ("idempotency-key", "\"k\""),
        ("host", host),
        ("authorization", who),
    ]
}

#[tokio::test]
async fn the_host_counts() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let first = order_with(gateway.address, &at("a.shop.example", "Bearer t")).await;
    assert_eq!(first.status, 201);
    let same = order_with(gateway.address, &at("A.shop.example:80", "Bearer t")).await;
    assert!(same.is_replay());
    let other = order_with(gateway.address, &at("b.shop.example", "Bearer t")).await;
    assert_eq!(other.problem(), "mismatch");
    assert_eq!(shop.placed(), 1);
}

/// A host says nothing of who asks, so it comes to the principal.
#[tokio::test]
async fn the_host_can_belong_to_the_scope() {
    let shop = Shop::open().await;
    for flag in ["Host", "X-Forwarded-Host"] {
        let flags = ["--require-principal", "--scope-header", flag];
        let gateway = Gateway::start(shop.address, &flags);
        let key = ("idempotency-key", "\"k\"");
        let headers = [key, ("host", "a"), ("x-forwarded-host", "a")];
        let answer = order_with(gateway.address, &headers).await;
        assert_eq!(answer.problem(), "missing-principal", "{flag}");
    }
    for flag in ["Host", "Host, Authorization", "authorization,host"] {
        let gateway = Gateway::start(shop.address, &["--scope-header", flag]);
        let before = shop.placed();
        for (host, who) in [("a", "Bearer t"), ("b", "Bearer t"), ("a", "Bearer u")] {
            let first = order_with(gateway.address, &at(host, who)).await;
            assert_eq!(first.status, 201, "{flag}");
            assert!(!first.is_replay(), "{flag}");
            let again = order_with(gateway.address, &at(host, who)).await;
            assert!(again.is_replay(), "{flag}");
            assert_eq!(again.body, first.body);
        }
        let headers = over_http2(gateway.address, "a", "Bearer t").await;
        assert!(headers.contains_key("idempotency-replayed"), "{flag}");
        let headers = over_http2(gateway.address, "c", "Bearer t").await;
        assert!(!headers.contains_key("idempotency-replayed"), "{flag}");
        assert_eq!(shop.placed() - before, 4, "{flag}");
    }
}

/// A trusted proxy that asks under a host of its own says which one the client asked.
#[tokio::test]
async fn behind_a_proxy_it_is_the_host_that_the_client_asked() {
    let shop = Shop::open().await;
    let asked = |host: &'static str, hop: &'static str| {
        [
            ("idempotency-key", "\"k\""),
            ("host", hop),
            ("x-forwarded-host", host),
        ]
    };
    let trust = ["--trust-forwarded", "127.0.0.1"];
    let gateway = Gateway::start(shop.address, &trust);
    let first = order_with(gateway.address, &asked("a.example", "one.internal")).await;
    assert_eq!(first.status, 201);
    let other = order_with(gateway.address, &asked("b.example", "one.internal")).await;
    assert_eq!(other.problem(), "mismatch");
    // Through whichever proxy it comes.
    let again = order_with(gateway.address, &asked("A.example:443", "two.internal")).await;
    assert!(again.is_replay());

    let gateway = Gateway::start(
        shop.address,
        &[&trust[..], &["--scope-header", "Host"]].concat(),
    );
    for host in ["a.example", "b.example"] {
        let first = order_with(gateway.address, &asked(host, "one.internal")).await;
        assert!(!first.is_replay());
        let again = order_with(gateway.address, &asked(host, "two.internal")).await;
        assert!(again.is_replay());
    }

    // Nobody else is believed.
    let gateway = Gateway::start(shop.address, &[]);
    let first = order_with(gateway.address, &asked("a.example", "one.example")).await;
    assert!(!first.is_replay());
    let again = order_with(gateway.address, &asked("b.example", "one.example")).await;
    assert!(again.is_replay());
}

async fn over_http2(address: SocketAddr, host: &str, who: &str) -> HeaderMap {
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://{host}/orders"))
        .header("idempotency-key", "\"k\"")
        .header("authorization", who)
        .body(Full::new(Bytes::from_static(b"{\"item\":1}")))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 201);
    answer.headers().clone()
}

/// `Connection` names fields of one connection. What scope, key and fingerprint are made of is for
/// the service as well, and stays.
#[tokio::test]
async fn connection_cannot_take_away_what_was_read() {
    const OK: &str = "HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n";
    let upstream = Script::start(Reaction::Send(OK)).await;
    let gateway = Gateway::start(upstream.address, &["--scope-header", "X-Account"]);
    let fields = [
        ("idempotency-key", "\"k\""),
        ("authorization", "Bearer t"),
        ("x-account", "a"),
        ("cookie", "session=1"),
        ("content-type", "text/plain"),
        ("content-encoding", "identity"),
    ];
    let names = fields.map(|(name, _)| name).join(", ");
    let connection = format!("{names}, Host, Content-Length, X-Hop");
    let mut headers = fields.to_vec();
    headers.push(("x-hop", "1"));
    headers.push(("connection", &connection));
    assert_eq!(order_with(gateway.address, &headers).await.status, 201);
    for (name, value) in fields {
        assert_eq!(upstream.fields(name), [[value]], "{name}");
    }
    assert_eq!(upstream.fields("x-hop"), [[""; 0]]);
    assert_eq!(upstream.fields("host").concat().len(), 1);
    assert!(upstream.requests()[0].ends_with("\r\n\r\n{\"item\":1}"));
}
