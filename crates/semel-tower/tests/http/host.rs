//! The host that was asked (rows 18 and 24): part of the target, and of the scope where it is said so.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::{Request, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel::Fingerprint;
use semel_tower::{BodyForm, fingerprint};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{App, Call, K, layer};

fn at(host: &str) -> Call {
    Call::order().header("host", host)
}

fn absolute(target: &str) -> Call {
    Call::post(target).key(K)
}

#[tokio::test]
async fn row_24_another_host_is_another_request() {
    let app = App::orders(layer());
    let first = app.send(at("a.shop.example")).await;
    first.assert_first(201);
    for same in [
        "A.Shop.Example",
        "a.shop.example:80",
        "a.shop.example:443",
        "a.shop.example:",
    ] {
        app.send(at(same)).await.assert_replay_of(&first);
    }
    for other in [
        "b.shop.example",
        "a.shop.example:8080",
        "me@a.shop.example",
        "",
    ] {
        app.send(at(other)).await.assert_problem(422, "mismatch");
    }
    // The target says it better than the field (RFC 9112, section 3.2.2).
    let target = absolute("http://a.shop.example/orders").header("host", "b.shop.example");
    app.send(target).await.assert_replay_of(&first);
    let target = absolute("http://b.shop.example/orders").header("host", "a.shop.example");
    app.send(target).await.assert_problem(422, "mismatch");
    // Who asked is said elsewhere.
    app.send(absolute("http://me@a.shop.example/orders"))
        .await
        .assert_replay_of(&first);
    assert_eq!(app.execs(), 1);
}

fn without_host(parts: &Parts, body: &Bytes) -> Fingerprint {
    fingerprint::of_request(parts, body, BodyForm::Json, [])
}

/// Retries may go to another instance.
#[tokio::test]
async fn row_24_an_address_is_no_host() {
    let app = App::orders(layer());
    let first = app.send(at("10.0.0.1:8080")).await;
    for same in ["10.0.0.2", "[::1]:8080"] {
        app.send(at(same)).await.assert_replay_of(&first);
    }
    app.send(Call::order()).await.assert_replay_of(&first);
    app.send(absolute("http://10.0.0.3/orders"))
        .await
        .assert_replay_of(&first);
    app.send(at("shop.example"))
        .await
        .assert_problem(422, "mismatch");
    // Not counted at all, where the application says so.
    let app = App::orders(layer().with_fingerprint_by(without_host));
    let first = app.send(at("a.example")).await;
    app.send(at("b.example")).await.assert_replay_of(&first);
}

#[tokio::test]
async fn row_18_the_host_can_belong_to_the_scope() {
    let app = App::orders(layer().with_scope_header(HOST));
    let first = app.send(at("a.example")).await;
    first.assert_first(201);
    app.send(at("b.example")).await.assert_first(201);
    app.send(at("A.EXAMPLE:80")).await.assert_replay_of(&first);
    app.send(absolute("http://a.example/orders").header("host", "b.example"))
        .await
        .assert_replay_of(&first);
    assert_eq!(app.execs(), 2);
}

async fn over_http2(address: SocketAddr, host: &str) -> (u16, bool) {
    let stream = TcpStream::connect(address).await.unwrap();
    let io = TokioIo::new(stream);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://{host}/orders"))
        .version(Version::HTTP_2)
        .header("idempotency-key", K)
        .body(Full::new(Bytes::from_static(b"3 apples")))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let replayed = answer.headers().contains_key("idempotency-replayed");
    let status = answer.status().as_u16();
    answer.into_body().collect().await.unwrap();
    (status, replayed)
}

#[tokio::test]
async fn row_18_24_over_http_2_it_is_the_authority() {
    let serve = async |app: &App| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = app.router.clone();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    };
    let app = App::orders(layer());
    let address = serve(&app).await;
    assert_eq!(over_http2(address, "a.example").await, (201, false));
    assert_eq!(over_http2(address, "b.example").await, (422, false));
    assert_eq!(over_http2(address, "a.example").await, (201, true));

    let app = App::orders(layer().with_scope_header(HOST));
    let address = serve(&app).await;
    assert_eq!(over_http2(address, "a.example").await, (201, false));
    assert_eq!(over_http2(address, "b.example").await, (201, false));
    assert_eq!(over_http2(address, "a.example").await, (201, true));
    assert_eq!(app.execs(), 2);
}
