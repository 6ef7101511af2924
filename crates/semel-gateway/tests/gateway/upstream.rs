//! What the upstream's silence means.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::support::{
    Gateway, Reaction, Recorder, Script, Shop, eventually, nobody, order, order_with, read_head,
    read_request, send_raw,
};

#[tokio::test]
async fn never_reached_is_released() {
    let (socket, address) = nobody();
    let gateway = Gateway::start(address, &[]);
    for _ in 0..2 {
        let answer = order(gateway.address, "\"k\"").await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_str()),
            (502, "upstream-unreachable")
        );
    }
    let unkeyed = order_with(gateway.address, &[]).await;
    assert_eq!(unkeyed.status, 502);

    drop(socket);
    let shop = Shop::open_at(address).await;
    let answer = order(gateway.address, "\"k\"").await;
    assert_eq!(answer.status, 201);
    assert!(!answer.is_replay());
    assert!(order(gateway.address, "\"k\"").await.is_replay());
    assert_eq!(shop.placed(), 1);
}

#[tokio::test]
async fn sent_and_not_answered_is_unknown() {
    let upstream = Script::start(Reaction::Close).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let answer = order(gateway.address, "\"k\"").await;
    assert_eq!(
        (answer.status.as_u16(), answer.problem().as_str()),
        (502, "upstream-failed")
    );
    upstream.react(Reaction::Send(
        "HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n",
    ));
    for _ in 0..3 {
        let answer = order(gateway.address, "\"k\"").await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_str()),
            (409, "outcome-unknown")
        );
    }
    assert_eq!(upstream.requests().len(), 1);
    // Of another key nothing is known either, so it runs.
    assert_eq!(order(gateway.address, "\"l\"").await.status, 201);
}

#[tokio::test]
async fn an_answer_that_breaks_off_in_its_header_is_unknown() {
    let upstream = Script::start(Reaction::Send("HTTP/1.1 201 Cre")).await;
    let gateway = Gateway::start(upstream.address, &[]);
    assert_eq!(
        order(gateway.address, "\"k\"").await.problem(),
        "upstream-failed"
    );
    assert_eq!(
        order(gateway.address, "\"k\"").await.problem(),
        "outcome-unknown"
    );
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn on_lost_retry_runs_again_under_a_higher_fence() {
    let upstream = Script::start(Reaction::Close).await;
    let gateway = Gateway::start(upstream.address, &["--on-lost", "retry"]);
    assert_eq!(order(gateway.address, "\"k\"").await.status, 502);
    upstream.react(Reaction::Send(
        "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok",
    ));
    let answer = order(gateway.address, "\"k\"").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (201, "ok"));
    assert!(order(gateway.address, "\"k\"").await.is_replay());
    let fences = upstream.fences();
    assert_eq!(fences.len(), 2);
    assert!(fences[0] < fences[1], "{fences:?}");
}

#[tokio::test]
async fn silence_is_a_timeout_and_unknown() {
    let upstream = Script::start(Reaction::Silence).await;
    let gateway = Gateway::start(upstream.address, &["--upstream-timeout", "200ms"]);
    let answer = order(gateway.address, "\"k\"").await;
    assert_eq!(
        (answer.status.as_u16(), answer.problem().as_str()),
        (504, "upstream-timeout")
    );
    assert_eq!(
        order(gateway.address, "\"k\"").await.problem(),
        "outcome-unknown"
    );
    let unkeyed = order_with(gateway.address, &[]).await;
    assert_eq!(unkeyed.problem(), "upstream-timeout");
    assert_eq!(upstream.requests().len(), 2);
}

#[tokio::test]
async fn an_answer_whose_body_breaks_off_is_never_run_again() {
    let upstream = Script::start(Reaction::Send(
        "HTTP/1.1 201 Created\r\nlocation: /orders/1\r\ncontent-length: 9\r\n\r\nhalf",
    ))
    .await;
    let gateway = Gateway::start(upstream.address, &[]);
    let key = [("idempotency-key", "\"k\"")];
    let first = crate::support::request(
        axum::http::Method::POST,
        gateway.address,
        "/orders",
        &key,
        "{\"item\":1}",
    );
    crate::support::send(first).await.unwrap_err();
    let again = order(gateway.address, "\"k\"").await;
    assert!(again.is_replay());
    assert_eq!((again.status.as_u16(), again.text()), (201, ""));
    assert_eq!(again.header("location"), Some("/orders/1"));
    assert_eq!(again.header("idempotency-body-omitted"), Some("true"));
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn an_answer_may_have_many_fields() {
    let fields = "x: 1\r\n".repeat(250) + &format!("y: {}\r\n", "a".repeat(200 << 10));
    let answer = format!("HTTP/1.1 201 Created\r\n{fields}content-length: 2\r\n\r\nok");
    let upstream = Script::start(Reaction::Send(answer.leak())).await;
    let gateway = Gateway::start(upstream.address, &[]);
    for replay in [false, true] {
        // The client here takes 100 fields only.
        let request =
            "POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ncontent-length: 0\r\n\r\n";
        let mut stream = send_raw(gateway.address, request).await;
        let head = read_head(&mut stream).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 201 "), "{head:.100}");
        assert_eq!(head.matches("\r\nx: 1").count(), 250);
        assert_eq!(head.contains("idempotency-replayed: true"), replay);
    }
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn a_gateway_out_of_descriptors_does_not_blame_the_upstream() {
    let upstream = Script::start(Reaction::Send(
        "HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n",
    ))
    .await;
    let gateway = Gateway::start(upstream.address, &["--store", "memory:"]);
    let request = |key| {
        format!("POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: {key}\r\ncontent-length: 0\r\n\r\n")
    };
    let mut stream = send_raw(gateway.address, &request("first")).await;
    let head = read_head(&mut stream).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    // The upstream closed its connection: the next request needs another one.
    gateway.limit_files(3);
    stream
        .write_all(request("second").as_bytes())
        .await
        .unwrap();
    let head = read_head(&mut stream).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(head.contains("\r\nretry-after: 1\r\n"), "{head}");
    eventually("the reason in the log", || {
        let said = gateway.log().contains("\"failure\":\"starved\"");
        std::future::ready(said.then_some(()))
    })
    .await;
    assert_eq!(upstream.requests().len(), 1);
}

/// Clients that break off are not the upstream's fault, and must not fill the log.
#[tokio::test]
async fn a_client_that_breaks_off_is_no_warning() {
    let upstream = Recorder::start().await;
    let gateway = Gateway::start(upstream.address, &["--log-level", "debug"]);
    let request = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf";
    drop(send_raw(gateway.address, request).await);
    let line = eventually("a line about the client", || {
        let line = gateway
            .log()
            .lines()
            .find(|line| line.contains("client_body"))
            .map(str::to_owned);
        std::future::ready(line)
    })
    .await;
    assert!(line.contains("\"DEBUG\""), "{line}");
    assert!(!gateway.log().contains("\"WARN\""), "{}", gateway.log());
}

#[tokio::test]
async fn refusals_of_the_upstream_are_released() {
    let upstream = Script::start(Reaction::Send(
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n",
    ))
    .await;
    let gateway = Gateway::start(upstream.address, &[]);
    for _ in 0..2 {
        let answer = order(gateway.address, "\"k\"").await;
        assert_eq!(answer.status, 429);
        assert_eq!(answer.header("retry-after"), Some("7"));
    }
    assert_eq!(upstream.requests().len(), 2);
}

/// An upstream that closes its connections after each answer must not make outcomes unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_upstream_closed_are_not_used_again() {
    let upstream = Script::start(Reaction::Send(
        "HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n",
    ))
    .await;
    let gateway = Gateway::start(upstream.address, &[]);
    for n in 0..50 {
        let answer = order(gateway.address, &format!("\"k{n}\"")).await;
        assert_eq!(answer.status, 201, "order {n}: {answer:?}");
        // The close arrives a moment after the answer.
        sleep(Duration::from_millis(n % 4)).await;
    }
}

/// An upstream that keeps connections open and closes them after random pauses: now and then just
/// when a request is on its way. Whatever the gateway makes of that, nothing runs twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_closed_at_random_execute_nothing_twice() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let executed = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let ledger = Arc::clone(&executed);
    tokio::spawn(async move {
        for nth in 0_u64.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let ledger = Arc::clone(&ledger);
            tokio::spawn(async move {
                // A different patience for each connection, around the clients' pauses.
                let patience = Duration::from_micros(500 + nth * 7919 % 3000);
                while let Ok(Some(request)) = timeout(patience, read_request(&mut stream)).await {
                    let key = request
                        .lines()
                        .find_map(|line| line.strip_prefix("idempotency-key: "))
                        .unwrap();
                    *ledger.lock().unwrap().entry(key.to_owned()).or_default() += 1;
                    let answer = b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(answer).await.ok();
                }
            });
        }
    });
    let gateway = Gateway::start(
        address,
        &["--store", "memory:", "--upstream-timeout", "20s"],
    );
    let (mut done, mut unsent, mut unknown) = (0, 0, 0);
    for n in 0..500_u64 {
        let key = format!("\"k{n}\"");
        let answer = order(gateway.address, &key).await;
        let runs = executed.lock().unwrap().get(&key).copied();
        if answer.status == 201 {
            done += 1;
            assert_eq!(runs, Some(1));
        } else if answer.problem() == "upstream-unreachable" {
            // Closed before the request was begun to be sent.
            unsent += 1;
            assert_eq!(runs, None, "{}", gateway.log());
        } else {
            unknown += 1;
            assert_eq!(answer.problem(), "upstream-failed", "{}", gateway.log());
            assert_eq!(
                order(gateway.address, &key).await.problem(),
                "outcome-unknown"
            );
        }
        sleep(Duration::from_micros(n * 104_729 % 3500)).await;
    }
    let twice = executed
        .lock()
        .unwrap()
        .values()
        .filter(|times| **times > 1)
        .count();
    assert_eq!(twice, 0);
    assert!(done > 250, "only {done} of 500 were done");
    println!("500 requests: {done} done, {unsent} not sent, {unknown} unknown, 0 run twice");
}
