//! Many connections at once. Too long for `./test`: `scripts/nightly` has it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{Connection, Gateway, Served, get, request};

const IDLE: usize = 10_000;
const ACTIVE: usize = 2_000;
/// How many of them begin at the same time.
const AT_ONCE: usize = 500;
/// How long the active ones are busy. All is over before the gateway closes idle connections, after 30 s.
const BUSY: Duration = Duration::from_secs(3);

/// Makes so many of something, some at the same time.
async fn each<T, F>(count: usize, mut make: impl FnMut() -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut all = Vec::new();
    while all.len() < count {
        let some = (0..AT_ONCE.min(count - all.len())).map(|_| make());
        all.extend(some.collect::<JoinSet<_>>().join_all().await);
    }
    all
}

/// A request that is answered from the record of the first like it.
async fn ask(stream: &mut TcpStream) {
    let request =
        "POST /idle HTTP/1.1\r\nhost: x\r\nidempotency-key: idle\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        let read = stream.read_buf(&mut answer).await.unwrap();
        assert!(read > 0, "closed: {}", String::from_utf8_lossy(&answer));
    }
    assert!(answer.starts_with(b"HTTP/1.1 201 "));
}

async fn open(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    ask(&mut stream).await;
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_and_two_thousand_active_connections_hold() {
    let upstream = Served::start(None).await;
    let flags = [
        "--store",
        "memory:",
        "--max-connections=12100",
        "--max-attempts=2000",
    ];
    let gateway = Gateway::start(upstream.address, &flags);
    let address = gateway.address;
    open(address).await;
    let before = gateway.resident();
    let began = Instant::now();
    let idle = each(IDLE, || open(address)).await;
    let (opened, grown) = (began.elapsed(), gateway.resident() - before);
    let active = each(ACTIVE, || Connection::open(address)).await;
    let busy = Instant::now();
    let mut working = JoinSet::new();
    for (nth, mut connection) in active.into_iter().enumerate() {
        working.spawn(async move {
            let mut done = 0;
            // Every other request has a key.
            while busy.elapsed() < BUSY || done < 2 {
                let key = format!("\"{nth}-{done}\"");
                let headers = [("idempotency-key", key.as_str())];
                let order = request(Method::POST, address, "/", &headers[..done % 2], "{}");
                assert_eq!(connection.send(order).await.unwrap().status, 201);
                done += 1;
            }
            done
        });
    }
    let done: usize = working.join_all().await.into_iter().sum();
    let (took, most) = (busy.elapsed(), gateway.most_resident() - before);
    // None of the idle ones was given up.
    let mut idle = idle.into_iter();
    each(IDLE, || {
        let mut stream = idle.next().unwrap();
        async move { ask(&mut stream).await }
    })
    .await;
    assert_eq!(get(gateway.admin, "/readyz").await.status, 200);
    println!(
        "{IDLE} idle connections opened in {opened:?}, {} KiB each; {ACTIVE} active ones with {done} \
         requests in {took:?}; {} MiB above idle at most",
        (grown / IDLE) >> 10,
        most >> 20
    );
    let log = gateway.log();
    assert!(
        !log.contains("WARN\",\"message\":\"upstream") && !log.contains("ERROR"),
        "{log}"
    );
}
