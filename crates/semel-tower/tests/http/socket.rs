//! Rows that show on a connection only: 26, 42, 50 and 68.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::StatusCode;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::{Answer, App, K, layer, pieces};

struct Connection(TcpStream);

/// Serves a router on a port of its own.
async fn serve(router: Router) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    at
}

impl Connection {
    async fn to(at: std::net::SocketAddr) -> Self {
        Self(TcpStream::connect(at).await.unwrap())
    }

    async fn write(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until the text read so far fits.
    async fn read_until(&mut self, fits: impl Fn(&str) -> bool) -> String {
        let mut read = Vec::new();
        while !fits(&String::from_utf8_lossy(&read)) {
            let more = timeout(Duration::from_secs(10), self.0.read_buf(&mut read)).await;
            assert!(
                more.expect("an answer in time").unwrap() > 0,
                "closed early"
            );
        }
        String::from_utf8(read).unwrap()
    }

    async fn send(&mut self, headers: &str, body: &str) -> String {
        let head = format!("POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {K}\r\n");
        self.write(&format!("{head}{headers}\r\n{body}")).await;
        self.read_until(is_whole).await
    }
}

/// Whether one response is there, framed by a length, by chunks, or without content.
fn is_whole(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let head = head.to_ascii_lowercase();
    match head.split_once("content-length: ") {
        Some((_, rest)) => {
            let length: usize = rest.lines().next().unwrap().parse().unwrap();
            body.len() >= length
        }
        None => !head.contains("transfer-encoding") || body.ends_with("0\r\n\r\n"),
    }
}

#[tokio::test]
async fn row_26_a_retry_with_another_framing_is_a_replay() {
    let app = App::orders(layer());
    let at = serve(app.router.clone()).await;
    let mut connection = Connection::to(at).await;
    let first = connection.send("Content-Length: 8\r\n", "3 apples").await;
    assert!(first.starts_with("HTTP/1.1 201"), "{first}");
    let chunked = "4\r\n3 ap\r\n4\r\nples\r\n0\r\nX-Trailer: dropped\r\n\r\n";
    let retry = connection
        .send("Transfer-Encoding: chunked\r\n", chunked)
        .await;
    assert!(retry.contains("idempotency-replayed: true"), "{retry}");
    assert_eq!(app.execs(), 1);
}

#[tokio::test]
async fn row_42_a_connection_that_closes_stops_nothing() {
    let layer = layer();
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let held = gate.clone();
    let app = App::running(layer.clone(), move |n| {
        let gate = held.clone();
        async move {
            drop(gate.acquire().await);
            (StatusCode::CREATED, format!("order {n}")).into_response()
        }
    });
    let at = serve(app.router.clone()).await;
    let mut connection = Connection::to(at).await;
    connection
        .write(&format!(
            "POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {K}\r\nContent-Length: 2\r\n\r\nab"
        ))
        .await;
    while app.execs() == 0 {
        tokio::task::yield_now().await;
    }
    drop(connection);
    // Ask until the server has seen the end of the connection; the attempt must be there still.
    let mut other = Connection::to(at).await;
    let waiting = other.send("Content-Length: 2\r\n", "ab").await;
    assert!(waiting.starts_with("HTTP/1.1 409"), "{waiting}");
    gate.add_permits(1);
    layer.drain().await;
    let retry = other.send("Content-Length: 2\r\n", "ab").await;
    assert!(retry.contains("idempotency-replayed: true"), "{retry}");
    assert!(retry.ends_with("order 1"), "{retry}");
    assert_eq!(app.execs(), 1);
}

#[tokio::test]
async fn row_50_framing_is_made_anew() {
    let app = App::answering(layer(), |_| {
        (StatusCode::CREATED, pieces(&["3 ap", "ples"])).into_response()
    });
    let at = serve(app.router.clone()).await;
    for replay in [false, true] {
        let answer = Connection::to(at)
            .await
            .send("Content-Length: 0\r\n", "")
            .await;
        assert_eq!(
            answer.contains("idempotency-replayed: true"),
            replay,
            "{answer}"
        );
        assert!(answer.contains("content-length: 8\r\n"), "{answer}");
        assert!(!answer.contains("transfer-encoding"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n3 apples"), "{answer}");
        assert_eq!(answer.matches("date: ").count(), 1, "{answer}");
    }
    let app = App::answering(layer(), |_| StatusCode::NO_CONTENT.into_response());
    let at = serve(app.router.clone()).await;
    for _ in 0..2 {
        let answer = Connection::to(at)
            .await
            .send("Content-Length: 0\r\n", "")
            .await;
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(!answer.contains("content-length") && !answer.contains("transfer-encoding"));
    }
}

#[tokio::test]
async fn row_50_an_answer_given_in_chunks_is_replayed_over_http_2() {
    let app = App::answering(layer().with_max_response_body(0), |_| {
        (StatusCode::CREATED, pieces(&["3 ap", "ples"])).into_response()
    });
    let kept = App::answering(layer(), |_| {
        (StatusCode::CREATED, pieces(&["3 ap", "ples"])).into_response()
    });
    for (app, length) in [(app, "0"), (kept, "8")] {
        let at = serve(app.router.clone()).await;
        let first = Connection::to(at)
            .await
            .send("Content-Length: 0\r\n", "")
            .await;
        assert!(
            first.contains("transfer-encoding: chunked") || length == "8",
            "{first}"
        );
        let stream = TokioIo::new(TcpStream::connect(at).await.unwrap());
        let (mut client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
                .await
                .unwrap();
        tokio::spawn(connection);
        let request = http::Request::post("http://x/orders")
            .header("idempotency-key", K)
            .body(String::new())
            .unwrap();
        let replay = Answer::of(client.send_request(request).await.unwrap().map(Body::new)).await;
        assert!(replay.is_replay(), "{replay:?}");
        assert_eq!(replay.header("content-length"), Some(length));
        assert_eq!(replay.header("transfer-encoding"), None);
        assert_eq!(replay.body.len().to_string(), length);
        assert_eq!(app.execs(), 1);
    }
}

#[tokio::test]
async fn row_57_a_large_answer_is_framed_whole_and_then_omitted() {
    let app = App::answering(layer().with_max_response_body(4), |_| {
        (StatusCode::OK, "3 apples").into_response()
    });
    let at = serve(app.router.clone()).await;
    let first = Connection::to(at)
        .await
        .send("Content-Length: 0\r\n", "")
        .await;
    assert!(first.ends_with("\r\n\r\n3 apples"), "{first}");
    let replay = Connection::to(at)
        .await
        .send("Content-Length: 0\r\n", "")
        .await;
    assert!(replay.contains("content-length: 0\r\n"), "{replay}");
    assert!(
        replay.contains("idempotency-body-omitted: true"),
        "{replay}"
    );
}

#[tokio::test]
async fn row_68_a_refusal_by_the_head_alone_sends_no_100() {
    let app = App::orders(layer().with_max_request_body(100));
    let at = serve(app.router.clone()).await;
    let refused = |key: &str, length: usize| {
        format!(
            "POST /orders HTTP/1.1\r\nHost: x\r\n{key}Content-Length: {length}\r\n\
             Expect: 100-continue\r\n\r\n"
        )
    };
    for (head, status) in [
        (refused("Idempotency-Key: \"bad\r\n", 8), "400"),
        (refused("", 8), "400"),
        (refused(&format!("Idempotency-Key: {K}\r\n"), 101), "413"),
    ] {
        let mut connection = Connection::to(at).await;
        connection.write(&head).await;
        let answer = connection.read_until(is_whole).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
    }
    assert_eq!(app.execs(), 0);
}

#[tokio::test]
async fn row_68_otherwise_100_comes_before_the_body_is_read() {
    let app = App::orders(layer());
    let at = serve(app.router.clone()).await;
    let mut connection = Connection::to(at).await;
    connection
        .write(&format!(
            "POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {K}\r\nContent-Length: 8\r\n\
             Expect: 100-continue\r\n\r\n"
        ))
        .await;
    let interim = connection
        .read_until(|text| text.ends_with("\r\n\r\n"))
        .await;
    assert_eq!(interim, "HTTP/1.1 100 Continue\r\n\r\n");
    connection.write("3 apples").await;
    let answer = connection.read_until(is_whole).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}
