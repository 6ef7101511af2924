//! Start and stop.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;

use crate::support::{Gateway, Shop, eventually, get, order, order_with, read_head, send_raw};

fn refuses_connections(gateway: &Gateway) -> bool {
    TcpStream::connect(gateway.address).is_err()
}

#[tokio::test]
async fn sigterm_lets_requests_and_lone_attempts_end() {
    let shop = Shop::open().await;
    let mut gateway = Gateway::start(shop.address, &[]);
    let address = gateway.address;
    let waiting = tokio::spawn(async move {
        order_with(
            address,
            &[("idempotency-key", "\"waits\""), ("x-delay", "600")],
        )
        .await
    });
    let gone = send_raw(
        address,
        "POST /orders HTTP/1.1\r\nhost: 127.0.0.1\r\nidempotency-key: \"gone\"\r\nx-delay: 900\r\n\
         content-length: 10\r\n\r\n{\"item\":1}",
    )
    .await;
    eventually("both attempts", || async {
        (shop.received() == 2).then_some(())
    })
    .await;
    drop(gone);
    gateway.terminate();
    eventually("no more connections", || async {
        refuses_connections(&gateway).then_some(())
    })
    .await;
    let ready = get(gateway.admin, "/readyz").await;
    assert_eq!((ready.status.as_u16(), ready.text()), (503, "stopping\n"));
    assert_eq!(get(gateway.admin, "/healthz").await.status, 200);
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 201);
    assert_eq!(gateway.ended().await.code(), Some(0));

    let directory = gateway.directory();
    let next = Gateway::start_in(&directory, shop.address, &[]);
    for key in ["\"waits\"", "\"gone\""] {
        let again = order(next.address, key).await;
        assert!(again.is_replay(), "{key}: {again:?}");
    }
    assert_eq!(shop.placed(), 2);
}

#[tokio::test]
async fn what_does_not_end_within_the_grace_period_is_unknown() {
    let shop = Shop::open().await;
    let flags = ["--drain", "100ms", "--lease", "300ms"];
    let mut gateway = Gateway::start(shop.address, &flags);
    let address = gateway.address;
    let waiting = tokio::spawn(async move {
        let headers = [("idempotency-key", "\"k\""), ("x-delay", "5000")];
        let order = crate::support::request(
            axum::http::Method::POST,
            address,
            "/orders",
            &headers,
            "{\"item\":1}",
        );
        crate::support::send(order).await
    });
    eventually("the attempt", || async {
        (shop.received() == 1).then_some(())
    })
    .await;
    gateway.terminate();
    assert_eq!(gateway.ended().await.code(), Some(1));
    assert!(
        gateway.log().contains(
            "attempts still running at the end of --drain: 1; their lease of 300ms is no longer renewed, \
             and when it lapses their keys are answered 409 `outcome-unknown`"
        ),
        "{}",
        gateway.log()
    );
    assert!(gateway.log().lines().all(is_json), "{}", gateway.log());
    waiting.await.unwrap().unwrap_err();

    let next = Gateway::start_in(&gateway.directory(), shop.address, &flags);
    let code = eventually("the end of the lease", || async {
        let code = order(next.address, "\"k\"").await.problem();
        (code != "in-flight").then_some(code)
    })
    .await;
    assert_eq!(code, "outcome-unknown");
    assert_eq!(shop.received(), 1);
}

fn is_json(line: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(line).is_ok()
}

/// Load balancers send requests until they have seen that it is not ready.
#[tokio::test]
async fn it_accepts_connections_for_as_long_as_it_is_told_to() {
    let shop = Shop::open().await;
    let mut gateway = Gateway::start(shop.address, &["--drain-delay", "2s"]);
    gateway.terminate();
    eventually("the news", || async {
        let ready = get(gateway.admin, "/readyz").await;
        (ready.status == 503).then_some(())
    })
    .await;
    assert_eq!(order(gateway.address, "\"late\"").await.status, 201);
    assert_eq!(gateway.ended().await.code(), Some(0));
    assert!(refuses_connections(&gateway));
    let log = gateway.log();
    let lines = [
        "connections are accepted for 2s more",
        "no more connections are accepted",
    ];
    let [delayed, closed] = lines.map(|line| log.find(line).unwrap());
    assert!(delayed < closed);
}

#[tokio::test]
async fn the_longest_times_are_no_trouble() {
    let shop = Shop::open().await;
    let times = [
        "lease",
        "ttl",
        "wait",
        "upstream-timeout",
        "body-timeout",
        "drain",
    ];
    let flags: Vec<String> = times.iter().map(|t| format!("--{t}=100years")).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut gateway = Gateway::start(shop.address, &flags);
    // A body that is still to come when its time is reckoned.
    let mut stream = send_raw(
        gateway.address,
        "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: \"k\"\r\nexpect: 100-continue\r\n\
         content-length: 2\r\n\r\n",
    )
    .await;
    let head = read_head(&mut stream).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
    stream.write_all(b"{}").await.unwrap();
    let head = read_head(&mut stream).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    assert!(order_with(gateway.address, &[]).await.status == 201);
    drop(stream);
    gateway.terminate();
    assert_eq!(gateway.ended().await.code(), Some(0));
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
}

#[tokio::test]
async fn silent_connections_do_not_keep_it() {
    let shop = Shop::open().await;
    let mut gateway = Gateway::start(shop.address, &["--drain", "60s"]);
    let mute = TcpStream::connect(gateway.address).unwrap();
    let mut idle = send_raw(gateway.address, "GET /echo HTTP/1.1\r\nhost: x\r\n\r\n").await;
    read_head(&mut idle).await.unwrap();
    let before = Instant::now();
    gateway.terminate();
    assert_eq!(gateway.ended().await.code(), Some(0));
    assert!(before.elapsed() < Duration::from_secs(20));
    drop((mute, idle));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let shop = Shop::open().await;
    let mut gateway = Gateway::start(shop.address, &[]);
    let stream = send_raw(
        gateway.address,
        "POST /orders HTTP/1.1\r\nhost: x\r\nx-delay: 60000\r\ncontent-length: 2\r\n\r\n{}",
    )
    .await;
    eventually("the request", || async {
        (shop.received() == 1).then_some(())
    })
    .await;
    gateway.terminate();
    eventually("no more connections", || async {
        refuses_connections(&gateway).then_some(())
    })
    .await;
    gateway.terminate();
    assert_eq!(gateway.ended().await.code(), Some(1));
    drop(stream);
}

#[tokio::test]
async fn a_store_that_forgets_is_warned_about() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--store", "memory:"]);
    assert_eq!(order(gateway.address, "\"k\"").await.status, 201);
    assert!(order(gateway.address, "\"k\"").await.is_replay());
    let log = gateway.log();
    assert_eq!(
        log.matches("does not survive the end of this process")
            .count(),
        1,
        "{log}"
    );
    let durable = Gateway::start(shop.address, &[]);
    assert!(!durable.log().contains("WARN"), "{}", durable.log());
}
