//! Bodies larger than memory, both ways. `SEMEL_STREAM_MIB` says how large: 1024 in `scripts/nightly`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::bodies::Pieces;
use crate::support::tls::{Authority, connect, gateway_between, http2};
use crate::support::{Gateway, PATIENCE, Served, read_head, send_raw};

const PIECE: usize = 64 << 10;
/// What the gateway may take beyond what it has when idle.
const ALLOWANCE: usize = 64 << 20;

/// More than the allowance, in pieces.
fn pieces() -> usize {
    let size = std::env::var("SEMEL_STREAM_MIB");
    let size = size.map_or(192, |size| size.parse::<usize>().unwrap());
    (size << 20) / PIECE
}

/// `GET` and `POST` are answered with the size, `PUT` with the size of what came.
async fn answer(request: Request<Incoming>) -> Response<Body> {
    if request.method() == Method::PUT {
        let size = read(request.into_body()).await;
        return Response::new(Body::from(size.to_string()));
    }
    Response::new(Body::new(Pieces::new(pieces())))
}

/// How many bytes come.
async fn read(mut body: Incoming) -> usize {
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        size += frame.unwrap().data_ref().map_or(0, Bytes::len);
    }
    size
}

/// Sends a stream up, gets one without a key and one with, and measures the gateway.
async fn up_and_down<F>(gateway: &Gateway, mut send: impl FnMut(Request<Pieces>) -> F)
where
    F: Future<Output = Response<Incoming>>,
{
    let size = pieces() * PIECE;
    let request = |method, count| {
        let request = Request::builder().method(method).uri("https://localhost/");
        request.body(Pieces::new(count)).unwrap()
    };
    // What it allocates for a first request is not the stream's.
    assert_eq!(
        read(send(request(Method::PUT, 1)).await.into_body()).await,
        5
    );
    let idle = gateway.resident();
    let up = send(request(Method::PUT, pieces())).await;
    let said = up.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(said, size.to_string());
    let up = gateway.most_resident() - idle;
    let down = send(request(Method::GET, 0)).await;
    assert_eq!(read(down.into_body()).await, size);
    let down = gateway.most_resident() - idle;
    let keyed = || {
        let mut keyed = request(Method::POST, 0);
        let key = "k".parse().unwrap();
        keyed.headers_mut().insert("idempotency-key", key);
        keyed
    };
    assert_eq!(read(send(keyed()).await.into_body()).await, size);
    let kept = gateway.most_resident() - idle;
    let replay = send(keyed()).await;
    assert_eq!(replay.headers()["idempotency-body-omitted"], "true");
    let [up, down, kept] = [up, down, kept].map(|bytes| bytes >> 10);
    println!(
        "{} MiB: {up} KiB above idle at most after the way up, {down} after the way down, {kept} after an \
         answer to a key; idle {} KiB",
        size >> 20,
        idle >> 10
    );
    assert!(kept << 10 < ALLOWANCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_pass_in_little_memory() {
    let upstream = Served::start_with(None, answer).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let client = Client::builder(TokioExecutor::new()).build_http();
    up_and_down(&gateway, |mut request| {
        let to = format!("http://{}/", gateway.address);
        *request.uri_mut() = to.parse().unwrap();
        let sent = client.request(request);
        async { sent.await.unwrap() }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_pass_in_little_memory_over_tls_and_http2() {
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    let upstream = Served::start_with(Some(signed.server(&["h2"])), answer).await;
    let gateway = gateway_between(&authority, &signed, upstream.address);
    let client = authority.client(&["h2"], None);
    let stream = connect(gateway.address, &client).await.unwrap();
    let sender = http2(stream).await;
    up_and_down(&gateway, |request| {
        let mut sender = sender.clone();
        async move { sender.send_request(request).await.unwrap() }
    })
    .await;
}

/// A client that stops reading stops the upstream, and what it has not read waits there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_pauses_holds_the_sender_back() {
    let made = Arc::new(AtomicUsize::new(0));
    let making = Arc::clone(&made);
    let upstream = Served::start_with(None, move |_| {
        let making = Arc::clone(&making);
        async move {
            let (mut sender, body) = Channel::<Bytes>::new(1);
            tokio::spawn(async move {
                for _ in 0..pieces() {
                    let piece = Bytes::from(vec![b'x'; PIECE]);
                    sender.send(Frame::data(piece)).await.unwrap();
                    making.fetch_add(PIECE, Ordering::SeqCst);
                }
            });
            Response::new(Body::new(body))
        }
    })
    .await;
    let gateway = Gateway::start(upstream.address, &[]);
    let idle = gateway.resident();
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let to = format!("http://{}/", gateway.address);
    let answer = client.get(to.parse().unwrap()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let early = made.load(Ordering::SeqCst);
    let above = gateway.most_resident().saturating_sub(idle);
    println!(
        "{} KiB sent to a reader that pauses, {} KiB above idle",
        early >> 10,
        above >> 10
    );
    assert!(early < ALLOWANCE, "{early} bytes were sent");
    assert!(above < ALLOWANCE, "{above} bytes");
    let rest = timeout(PATIENCE, read(answer.into_body())).await.unwrap();
    assert_eq!(rest, pieces() * PIECE);
}

/// Who does not read its answer yet goes on sending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_goes_on_while_its_answer_is_not_read() {
    let (came, mut comes) = mpsc::unbounded_channel();
    let upstream = Served::start_with(None, move |request: Request<Incoming>| {
        let came = came.clone();
        tokio::spawn(async move { came.send(read(request.into_body()).await) });
        async { Response::new(Body::new(Pieces::new(pieces()))) }
    })
    .await;
    let gateway = Gateway::start(upstream.address, &[]);
    let client = Client::builder(TokioExecutor::new()).build_http();
    let post = Request::post(format!("http://{}/", gateway.address));
    let post = post.body(Pieces::new(pieces())).unwrap();
    let answer = timeout(PATIENCE, client.request(post)).await;
    let size = timeout(PATIENCE, comes.recv()).await.unwrap();
    assert_eq!(size, Some(pieces() * PIECE));
    let answer = answer.unwrap().unwrap();
    assert_eq!(read(answer.into_body()).await, pieces() * PIECE);
}

/// The same where the gateway has all of the request, and the upstream takes it after it began to answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_sent_to_its_end_while_its_answer_is_not_read() {
    const SIZE: usize = 8 << 20;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let gateway = Gateway::start(listener.local_addr().unwrap(), &["--max-body=16MiB"]);
    let head = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\nidempotency-key: \"k\"\r\ncontent-length: {SIZE}\r\n\r\n"
    );
    let mut client = send_raw(gateway.address, &head).await;
    client.write_all(&vec![b'x'; SIZE]).await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    read_head(&mut upstream).await.unwrap();
    let (mut upload, mut answer) = upstream.into_split();
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    answer.write_all(stream.as_bytes()).await.unwrap();
    // Until nobody takes more of it.
    while let Ok(written) = timeout(Duration::from_millis(500), answer.write(&[b'x'; PIECE])).await
    {
        written.unwrap();
    }
    let mut came = vec![0; SIZE];
    // An answer that nobody reads is given up after a minute, and then it goes on.
    let all = timeout(PATIENCE / 3, upload.read_exact(&mut came)).await;
    assert_eq!(all.unwrap().unwrap(), SIZE);
}

/// Also where the upload did not end before the answer began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_used_again_after_a_stream_in_both_directions() {
    let upstream = Served::start_with(None, async |request| {
        Response::new(Body::new(request.into_body()))
    })
    .await;
    let gateway = Gateway::start(upstream.address, &[]);
    let client = Client::builder(TokioExecutor::new()).build_http();
    for _ in 0..10 {
        let (mut say, body) = Channel::<Bytes>::new(1);
        let post = Request::post(format!("http://{}/", gateway.address));
        let answer = client.request(post.body(body).unwrap());
        say.send_data(Bytes::from("hello")).await.unwrap();
        let answer = timeout(PATIENCE, answer).await.unwrap().unwrap();
        drop(say);
        assert_eq!(read(answer.into_body()).await, 5);
    }
    // What the upstream reads to its end can be known after the next request was sent.
    assert!(upstream.connections() <= 3, "{}", upstream.connections());
}

/// A stream in both directions at once: what is sent comes back while more is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_can_go_both_ways_at_once() {
    let upstream = Served::start_with(None, async |request| {
        Response::new(Body::new(request.into_body()))
    })
    .await;
    let url = format!("--upstream=h2c://{}", upstream.address);
    let gateway = Gateway::start(upstream.address, &[&url]);
    let stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .unwrap();
    let mut sender = http2(stream).await;
    let (mut say, body) = Channel::<Bytes>::new(1);
    let request = Request::post("http://localhost/chat").body(body).unwrap();
    let answer = timeout(PATIENCE, sender.send_request(request)).await;
    let mut heard = answer.unwrap().unwrap().into_body();
    for nth in 0..100 {
        let word = Bytes::from(format!("word {nth}"));
        say.send(Frame::data(word.clone())).await.unwrap();
        let frame = timeout(PATIENCE, heard.frame()).await.unwrap();
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), word);
    }
    drop(say);
    assert_eq!(heard.collect().await.unwrap().to_bytes(), "");
}
