//! `[[routes]]`: which one takes a request, and what holds there.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::NamedTempFile;

use crate::support::{Answer, Gateway, Reaction, Recorder, Script, Shop, request, send};

/// A file with these routes. `{name}` stands for an address.
pub(crate) fn file(text: &str, addresses: &[(&str, SocketAddr)]) -> NamedTempFile {
    let mut text = text.to_owned();
    for (name, address) in addresses {
        text = text.replace(&format!("{{{name}}}"), &format!("http://{address}"));
    }
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

async fn ask(gateway: &Gateway, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = request(method, gateway.address, path, headers, "{}");
    send(request).await.unwrap()
}

async fn post(gateway: &Gateway, path: &str, key: &str) -> Answer {
    ask(gateway, Method::POST, path, &[("idempotency-key", key)]).await
}

/// Sends a target as it is written, for a host.
async fn raw(gateway: &Gateway, line: &str, host: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .unwrap();
    let text = format!(
        "{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_first_route_that_matches_holds() {
    let (payments, shop, rest) = (
        Recorder::start().await,
        Recorder::start().await,
        Recorder::start().await,
    );
    let file = file(
        r#"
        [[routes]]
        path = "/v1/payments/*"
        methods = ["POST", "PATCH"]
        upstream = "{payments}"

        [[routes]]
        path = "/v1/payments/{id}"
        upstream = "{rest}"

        [[routes]]
        host = ["shop.example", "*.shop.example"]
        upstream = "{shop}"
        "#,
        &[
            ("payments", payments.address),
            ("shop", shop.address),
            ("rest", rest.address),
        ],
    );
    let gateway = Gateway::start_with(file.path(), &["--trust-forwarded", "127.0.0.1"]);
    let cases = [
        ("POST /v1/payments", "a", Some(&payments)),
        ("POST /v1/payments/", "a", Some(&payments)),
        (
            "PATCH /v1/payments/1/lines?x=/v1/orders",
            "a",
            Some(&payments),
        ),
        ("POST /v1/%70ayments/1", "a", Some(&payments)),
        ("POST /v1/payments/a%2Fb", "a", Some(&payments)),
        ("GET /v1/payments/1", "shop.example", Some(&rest)),
        ("GET /v1/payments/1/lines", "shop.example", Some(&shop)),
        ("POST /orders", "SHOP.example:8080", Some(&shop)),
        ("POST /orders", "eu.shop.example", Some(&shop)),
        (
            "POST http://shop.example/orders",
            "shop.example",
            Some(&shop),
        ),
        ("POST /orders", "workshop.example", None),
        ("GET /v1/payments", "a", None),
        ("OPTIONS *", "a", None),
    ];
    for (line, host, to) in cases {
        let before = [&payments, &shop, &rest].map(|upstream| upstream.seen().len());
        let answer = raw(&gateway, line, host).await;
        let after = [&payments, &shop, &rest].map(|upstream| upstream.seen().len());
        let reached: usize = after.iter().zip(before).map(|(now, then)| now - then).sum();
        match to {
            Some(upstream) => {
                assert!(answer.starts_with("HTTP/1.1 200"), "{line}: {answer}");
                let last = upstream.seen().pop().unwrap().line;
                let target = line
                    .split(' ')
                    .nth(1)
                    .unwrap()
                    .replace("http://shop.example", "");
                // The path is passed on as it was written.
                assert_eq!(last.split(' ').nth(1), Some(&*target), "{line}");
                assert_eq!(reached, 1, "{line}");
            }
            None => {
                assert!(answer.starts_with("HTTP/1.1 404"), "{line}: {answer}");
                assert!(answer.contains("\"code\":\"no-route\""), "{answer}");
                assert_eq!(reached, 0, "{line}");
            }
        }
    }
    // In HTTP/2 the host is the target's. What another proxy wrote chooses nothing: clients can write it.
    let stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .unwrap();
    let opened = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.unwrap();
    tokio::spawn(connection);
    for (host, status) in [("shop.example", 200), ("other.example", 404)] {
        let before = shop.seen().len();
        let asked = Request::get(format!("http://{host}/orders"))
            .header("x-forwarded-host", "shop.example")
            .body(Full::<Bytes>::default())
            .unwrap();
        let answer = sender.send_request(asked).await.unwrap();
        assert_eq!(answer.status(), status, "{host}");
        let reached = shop.seen().len() - before;
        assert_eq!(reached, usize::from(status == 200), "{host}");
    }
    let problem = post(&gateway, "/orders", "k").await;
    assert_eq!(problem.status, StatusCode::NOT_FOUND);
    assert_eq!(problem.problem(), "no-route");
}

/// However the path of a protected route is written, the request is the route's, or refused: servers
/// that read it as that path must not get it from another one.
#[tokio::test]
async fn no_spelling_of_a_path_gets_around_its_route() {
    let (guarded, open) = (Recorder::start().await, Recorder::start().await);
    let file = file(
        r#"
        upstream = "{open}"

        [[routes]]
        path = "/v1/payments/*"
        upstream = "{guarded}"
        require-key = true

        [[routes]]
        path = "/public/*"
        protect = false
        "#,
        &[("guarded", guarded.address), ("open", open.address)],
    );
    let gateway = Gateway::start_with(file.path(), &[]);
    for target in [
        "/v1/payments",
        "/v1/payments/",
        "/v1/payments?a",
        "/v1/%70ayments",
        "/v1/%70%61yments/1",
        "/v1/./payments",
        "/v1//payments",
        "//v1/payments",
        "/v1/payments//1",
        "/./v1/payments",
        "/v1/x/../payments",
        "/v1/%2e/payments",
        "/v1/x/%2E%2e/payments",
        "/v1%2Fpayments",
        "/v1%2fpayments/1",
        "/v1%252Fpayments",
        "/v1\\payments",
        "/v1%5cpayments",
        "/v1;a=b/payments",
        "/v1/payments;a=b",
        "/v1/;/payments",
        "/v1/x/..;/payments",
        "/v1/x%2F..%2Fpayments",
        "/public/../v1/payments",
        "/public/..%2Fv1%2Fpayments",
        "/public/%2e%2e/v1/payments",
        "/public/..;/v1/payments",
        "/public/%252e%252e/v1/payments",
        "http://a/v1/./payments",
    ] {
        let answer = raw(&gateway, &format!("POST {target}"), "a").await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{target}: {answer}");
        let codes = ["missing-key", "ambiguous-path"];
        let known = codes
            .iter()
            .any(|code| answer.contains(&format!("\"code\":\"{code}\"")));
        assert!(known, "{target}: {answer}");
        assert!(
            guarded.seen().is_empty() && open.seen().is_empty(),
            "{target}"
        );
    }
    // What is strange and means the same to all is not refused.
    for target in [
        "/x//y",
        "/group%2Frepo",
        "/a;b",
        "/x/../y",
        "/public/a%2Fb",
        "/%ff%zz%",
    ] {
        let answer = raw(&gateway, &format!("POST {target}"), "a").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{target}: {answer}");
    }
    let long = "%2e".repeat(4 << 10);
    let answer = raw(&gateway, &format!("POST /{long}"), "a").await;
    assert!(answer.contains("ambiguous-path"), "{answer}");
}

#[tokio::test]
async fn what_a_route_leaves_open_comes_from_the_top() {
    let shop = Shop::open().await;
    let broken = Script::start(Reaction::Send(
        "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",
    ))
    .await;
    let file = file(
        r#"
        upstream = "{shop}"
        require-key = true
        max-body = "1KiB"
        [dispositions]
        503 = "keep"

        [[routes]]
        path = "/plain/*"
        protect = false

        [[routes]]
        path = "/free"
        require-key = false
        max-body = "10B"
        scope = ["X-Account"]
        require-principal = true
        service = "free"

        [[routes]]
        path = "/broken/kept"
        upstream = ["{broken}"]

        [[routes]]
        path = "/broken/released"
        upstream = "{broken}"
        dispositions = { "5xx" = "release" }
        "#,
        &[("shop", shop.address), ("broken", broken.address)],
    );
    let gateway = Gateway::start_with(file.path(), &[]);
    let none = ask(&gateway, Method::POST, "/orders", &[]).await;
    assert_eq!(none.problem(), "missing-key");
    assert!(
        ask(&gateway, Method::POST, "/free", &[])
            .await
            .status
            .is_success()
    );

    // Forwarded plainly: twice, and with nothing of ours.
    for _ in 0..2 {
        let answer = post(&gateway, "/plain/echo", "p").await;
        assert!(!answer.is_replay());
        assert!(
            answer.text().contains("idempotency-key: p"),
            "{}",
            answer.text()
        );
        assert!(
            !answer.text().contains("idempotency-fence"),
            "{}",
            answer.text()
        );
    }

    let big = request(
        Method::POST,
        gateway.address,
        "/free",
        &[("idempotency-key", "b"), ("x-account", "1")],
        "12345678901",
    );
    assert_eq!(send(big).await.unwrap().problem(), "too-large");
    assert_eq!(
        post(&gateway, "/free", "b").await.problem(),
        "missing-principal"
    );
    let fields = |account| [("idempotency-key", "same"), ("x-account", account)];
    for account in ["1", "2"] {
        let first = ask(&gateway, Method::POST, "/free", &fields(account)).await;
        assert!(first.status.is_success() && !first.is_replay());
        assert!(
            ask(&gateway, Method::POST, "/free", &fields(account))
                .await
                .is_replay()
        );
    }

    // The route's class counts before the status at the top.
    for (path, asked) in [("/broken/kept", 1), ("/broken/released", 2)] {
        let before = broken.requests().len();
        for _ in 0..2 {
            assert_eq!(post(&gateway, path, path).await.status, 503);
        }
        assert_eq!(broken.requests().len() - before, asked, "{path}");
    }
}

/// The same key on routes of two services makes two records; on two routes of one it is one, as
/// without routes.
#[tokio::test]
async fn routes_of_two_services_never_meet() {
    let shop = Shop::open().await;
    let file = file(
        r#"
        upstream = "{shop}"
        ttl = "order"
        [[routes]]
        host = "a.example"
        service = "a"
        [[routes]]
        host = "b.example"
        service = "b"
        ttl = "payment"
        [[routes]]
        path = "/orders"
        methods = ["PATCH"]
        "#,
        &[("shop", shop.address)],
    );
    let gateway = Gateway::start_with(file.path(), &[]);
    for host in ["a.example", "b.example", "c.example"] {
        for replay in [false, true] {
            let answer = order_for(&gateway, host).await;
            assert_eq!(answer.is_replay(), replay, "{host}");
        }
    }
    assert_eq!(shop.placed(), 3);
    let other = ask(
        &gateway,
        Method::PATCH,
        "/orders",
        &[("idempotency-key", "one")],
    )
    .await;
    assert_eq!(other.problem(), "mismatch");
}

async fn order_for(gateway: &Gateway, host: &str) -> Answer {
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .set_host(false)
        .build_http::<Full<Bytes>>();
    let request = Request::post(format!("http://{}/orders", gateway.address))
        .header("host", host)
        .header("idempotency-key", "one")
        .body(Full::from("{}"))
        .unwrap();
    crate::support::read_whole(client.request(request).await.unwrap())
        .await
        .unwrap()
}
