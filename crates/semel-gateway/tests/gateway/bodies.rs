//! Bodies of requests and answers, small, large and endless.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, Response};
use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::support::{
    Gateway, Reaction, Recorder, Script, Served, Shop, order, read_head, request, send, send_raw,
};

const KEY: (&str, &str) = ("idempotency-key", "\"k\"");

#[tokio::test]
async fn a_body_with_a_key_has_a_limit() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--max-body", "1KiB"]);
    let ask = |size: usize| {
        let body = "x".repeat(size);
        let key = format!("\"k{size}\"");
        let headers = [("idempotency-key", key.as_str())];
        send(request(
            Method::POST,
            gateway.address,
            "/orders",
            &headers,
            &body,
        ))
    };
    let answer = ask(1025).await.unwrap();
    assert_eq!(
        (answer.status.as_u16(), answer.problem().as_str()),
        (413, "too-large")
    );
    assert_eq!(ask(1024).await.unwrap().status, 201);
    assert_eq!(shop.placed(), 1);

    let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
    let mut stream = send_raw(
        gateway.address,
        &format!(
            "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: \"c\"\r\n\
             transfer-encoding: chunked\r\n\r\n{chunk}{chunk}"
        ),
    )
    .await;
    let answer = read_head(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert_eq!(shop.placed(), 1);
}

#[tokio::test]
async fn bodies_without_a_key_have_none() {
    const SIZE: usize = 32 << 20;
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--max-body", "1KiB"]);
    let client = Client::builder(TokioExecutor::new()).build_http();
    for length_known in [true, false] {
        let pieces = Pieces::new(SIZE / 65536);
        let mut put = Request::put(format!("http://{}/echo", gateway.address));
        if length_known {
            put = put.header("content-length", SIZE);
        }
        let answer = client.request(put.body(pieces).unwrap()).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(text.ends_with(&format!("\n{SIZE} bytes")), "{text}");
        assert_eq!(
            text.contains(&format!("\ncontent-length: {SIZE}\n")),
            length_known
        );
        assert_eq!(
            text.contains("\ntransfer-encoding: chunked\n"),
            !length_known
        );
    }
}

/// The first half of an answer is there before the upstream makes the second, with and without key.
#[tokio::test]
async fn answers_are_passed_on_as_they_come() {
    type Sender = Arc<Mutex<Option<mpsc::Sender<Bytes>>>>;
    let slot = Sender::default();
    async fn stream(State(slot): State<Sender>) -> axum::http::Response<Body> {
        let (sender, receiver) = mpsc::channel(4);
        sender.send(Bytes::from("data: one\n\n")).await.unwrap();
        *slot.lock().unwrap() = Some(sender);
        let response = axum::http::Response::builder().header("content-type", "text/event-stream");
        response.body(Body::new(Pieces(receiver))).unwrap()
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/events", get(stream).post(stream))
        .with_state(slot.clone());
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });

    let gateway = Gateway::start(upstream, &[]);
    let client = Client::builder(TokioExecutor::new()).build_http();
    for method in [Method::GET, Method::POST] {
        let events = request(method, gateway.address, "/events", &[KEY], "");
        let answer = client.request(events).await.unwrap();
        let mut body = answer.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "data: one\n\n");
        let sender = slot.lock().unwrap().take().unwrap();
        sender.send(Bytes::from("data: two\n\n")).await.unwrap();
        drop(sender);
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!(rest, "data: two\n\n");
    }
    // A stream is not kept, and not run again.
    let events = request(Method::POST, gateway.address, "/events", &[KEY], "");
    let again = send(events).await.unwrap();
    assert!(again.is_replay());
    assert_eq!(again.header("idempotency-body-omitted"), Some("true"));
}

#[tokio::test]
async fn a_body_that_is_no_http_is_the_clients_fault() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    for key in ["", "idempotency-key: \"k\"\r\n"] {
        let mut stream = send_raw(
            gateway.address,
            &format!(
                "POST /orders HTTP/1.1\r\nhost: x\r\n{key}transfer-encoding: chunked\r\n\r\n\
                 2\r\nok\r\nnonsense\r\n"
            ),
        )
        .await;
        let answer = read_head(&mut stream).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    assert_eq!(shop.placed(), 0);
    let text = crate::support::get(gateway.admin, "/metrics").await;
    assert!(
        text.text().contains("{kind=\"client_body\"} 1"),
        "{}",
        text.text()
    );
}

#[tokio::test]
async fn answers_without_content_stay_so() {
    let upstream = Script::start(Reaction::Send("HTTP/1.1 204 No Content\r\n\r\n")).await;
    let gateway = Gateway::start(upstream.address, &[]);
    for replay in [false, true] {
        let answer = tokio::time::timeout(Duration::from_secs(10), order(gateway.address, "\"k\""));
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, 204);
        assert_eq!(answer.header("content-length"), None);
        assert_eq!(answer.header("transfer-encoding"), None);
        assert_eq!(answer.is_replay(), replay);
    }
    let head = Script::start(Reaction::Send(
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
    ))
    .await;
    let gateway = Gateway::start(head.address, &[]);
    let answer = send(request(Method::HEAD, gateway.address, "/", &[], ""))
        .await
        .unwrap();
    assert_eq!(answer.header("content-length"), Some("5"));
}

#[tokio::test]
async fn an_answer_of_two_lengths_has_the_one_of_its_chunks() {
    let upstream = Script::start(Reaction::Send(
        "HTTP/1.1 200 OK\r\ncontent-length: 99\r\ntransfer-encoding: chunked\r\n\r\n\
         2\r\nok\r\n0\r\n\r\n",
    ))
    .await;
    let gateway = Gateway::start(upstream.address, &[]);
    for key in [&[KEY][..], &[KEY], &[]] {
        let answer = send(request(Method::POST, gateway.address, "/", key, "x")).await;
        assert_eq!(answer.unwrap().text(), "ok");
    }
}

/// A body that is sent piece by piece.
pub(crate) struct Pieces(mpsc::Receiver<Bytes>);

impl Pieces {
    /// So many, of 64 KiB each.
    pub(crate) fn new(pieces: usize) -> Self {
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(async move {
            for _ in 0..pieces {
                sender.send(Bytes::from(vec![b'x'; 65536])).await.ok();
            }
        });
        Self(receiver)
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// A stream that is reset with `NO_ERROR` looks like one that ended.
#[tokio::test]
async fn a_body_that_is_given_up_over_http2_is_not_taken_for_whole() {
    let upstream = Recorder::start().await;
    let gateway = Gateway::start(upstream.address, &[]);
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    let driving = tokio::spawn(connection);
    for key in [Some("key"), None] {
        let request = Request::post("http://localhost/orders");
        let request = match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        };
        let mut ready = sender.clone().ready().await.unwrap();
        let (answer, mut body) = ready
            .send_request(request.body(()).unwrap(), false)
            .unwrap();
        body.send_data("amount=10".into(), false).unwrap();
        // It is on its way before the reset takes back what is not.
        ready.ready().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        body.send_reset(h2::Reason::NO_ERROR);
        assert!(answer.await.is_err());
    }
    // With the same key it runs for the first time.
    assert_eq!(order(gateway.address, "key").await.status, 200);
    let whole = upstream.seen().into_iter().filter(|seen| seen.complete);
    let bodies: Vec<_> = whole.map(|seen| seen.body).collect();
    assert_eq!(bodies, [b"{\"item\":1}"]);
    driving.abort();
}

/// What of an answer is not kept may be silent, with a key as without: a stream of events, and what is larger than is
/// kept.
#[tokio::test]
async fn a_stream_with_a_key_may_pause_longer_than_the_upstream_may_be_silent() {
    for (kind, first) in [("text/event-stream", 6), ("text/plain", 100)] {
        let (say, said) = mpsc::channel::<&str>(1);
        let said = Arc::new(tokio::sync::Mutex::new(said));
        let upstream = Served::start_with(None, move |request| {
            let said = Arc::clone(&said);
            async move {
                if request.uri().path() == "/silent" {
                    std::future::pending::<()>().await;
                }
                let mut rest = said.lock_owned().await;
                let (mut sender, body) = Channel::<Bytes>::new(1);
                tokio::spawn(async move {
                    sender
                        .send(Frame::data("x".repeat(first).into()))
                        .await
                        .unwrap();
                    while let Some(more) = rest.recv().await {
                        sender.send(Frame::data(more.into())).await.unwrap();
                    }
                });
                let answer = Response::builder().header("content-type", kind);
                answer.body(Body::new(body)).unwrap()
            }
        })
        .await;
        let flags = ["--upstream-timeout", "300ms", "--max-body", "64B"];
        let gateway = Gateway::start(upstream.address, &flags);
        let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
        let post = |path: &str, key: &str| {
            let to = format!("http://{}{path}", gateway.address);
            let request = Request::post(to).header("idempotency-key", key);
            client.request(request.body(Body::empty()).unwrap())
        };
        let mut answer = post("/stream", "\"a\"").await.unwrap().into_body();
        let frame = answer.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap().len(), first);
        // Its silence begins after the stream's.
        let silent = post("/silent", "\"b\"").await.unwrap();
        assert_eq!(silent.status(), 504);
        say.send("rest").await.unwrap();
        drop(say);
        let rest = answer.collect().await.expect(kind).to_bytes();
        assert_eq!(rest, "rest");
    }
}
