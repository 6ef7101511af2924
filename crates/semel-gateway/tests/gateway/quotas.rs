//! What each caller may use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::support::{Connection, Gateway, Shop, eventually, order_with, request};

fn fields<'a>(who: &'a str, key: &'a str) -> [(&'a str, &'a str); 2] {
    [("idempotency-key", key), ("authorization", who)]
}

/// Conformance row 80.
#[tokio::test]
async fn ten_thousand_fresh_keys_are_refused_and_an_old_one_is_replayed() {
    let shop = Shop::open().await;
    let flags = ["--store", "memory:", "--limits-new-keys", "100/d"];
    let gateway = Gateway::start(shop.address, &flags);
    let address = gateway.address;
    let first = order_with(address, &fields("Bearer one", "\"old\"")).await;
    assert_eq!(first.status, 201);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..4 {
        clients.spawn(async move {
            let mut connection = Connection::open(address).await;
            let mut refused = 0;
            for n in 0..2_500 {
                let key = format!("\"{client}-{n}\"");
                let fields = fields("Bearer one", &key);
                let order = request(http::Method::POST, address, "/orders", &fields, "{}");
                let answer = connection.send(order).await.unwrap();
                if answer.status == 201 {
                    continue;
                }
                assert_eq!(
                    (answer.status.as_u16(), answer.problem().as_str()),
                    (429, "limit")
                );
                let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
                assert!((1..=864).contains(&wait), "{wait}");
                refused += 1;
            }
            refused
        });
    }
    let refused: usize = clients.join_all().await.into_iter().sum();
    // One of a hundred comes back every fourteen minutes.
    assert!((9_900..=9_901).contains(&refused), "{refused}");
    assert_eq!(shop.placed(), 10_001 - refused);
    for _ in 0..200 {
        let again = order_with(address, &fields("Bearer one", "\"old\"")).await;
        assert!(again.is_replay());
        assert_eq!(again.body, first.body);
    }
    let other = order_with(address, &fields("Bearer two", "\"old\"")).await;
    assert_eq!((other.status.as_u16(), other.is_replay()), (201, false));
    let metrics = gateway.metrics().await;
    let limited = format!("semel_events_total{{event=\"limited\"}} {refused}\n");
    assert!(metrics.contains(&limited), "{metrics}");
    println!("10,000 fresh keys: {refused} answered 429");
}

#[tokio::test]
async fn so_many_attempts_of_a_caller_run_at_once_on_a_route() {
    let gate = Arc::new(Semaphore::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let (waiting, running) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let begun = Arc::clone(&running);
    let held = move || async move {
        begun.fetch_add(1, Ordering::SeqCst);
        // Open once it is closed.
        drop(waiting.acquire().await);
        StatusCode::CREATED
    };
    let router = Router::new().fallback(post(held));
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("semel.toml");
    let text = format!(
        "upstream = \"http://{upstream}\"\n\
         [[routes]]\npath = \"/held/*\"\nlimits = {{ running = 1 }}\n"
    );
    std::fs::write(&file, text).unwrap();
    let gateway = Gateway::start_with(&file, &[]);
    let address = gateway.address;
    let send = move |path: &'static str, who: &'static str, key: &'static str| async move {
        let fields = fields(who, key);
        let order = request(http::Method::POST, address, path, &fields, "{}");
        crate::support::send(order).await.unwrap()
    };
    let first = tokio::spawn(send("/held/1", "Bearer one", "\"1\""));
    let duplicate = || send("/held/1", "Bearer one", "\"1\"");
    let running = &running;
    let run = |so_many| {
        eventually("running", move || {
            std::future::ready((running.load(Ordering::SeqCst) == so_many).then_some(()))
        })
    };
    run(1).await;
    let second = send("/held/2", "Bearer one", "\"2\"").await;
    assert_eq!(second.problem(), "limit");
    assert_eq!(second.header("retry-after"), Some("1"));
    assert_eq!(duplicate().await.problem(), "in-flight");
    let others = [
        tokio::spawn(send("/held/2", "Bearer two", "\"2\"")),
        // Another route has no limit.
        tokio::spawn(send("/other", "Bearer one", "\"3\"")),
    ];
    run(3).await;
    gate.close();
    assert_eq!(first.await.unwrap().status, 201);
    for other in others {
        assert_eq!(other.await.unwrap().status, 201);
    }
    assert_eq!(send("/held/2", "Bearer one", "\"2\"").await.status, 201);
}

#[tokio::test]
async fn what_is_kept_of_a_caller_delays_its_next_attempt() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--limits-kept", "10B/d"]);
    let address = gateway.address;
    let first = order_with(address, &fields("Bearer one", "\"1\"")).await;
    assert_eq!(first.status, 201);
    let second = order_with(address, &fields("Bearer one", "\"2\"")).await;
    assert_eq!(second.problem(), "limit");
    assert!(
        order_with(address, &fields("Bearer one", "\"1\""))
            .await
            .is_replay()
    );
    let other = order_with(address, &fields("Bearer two", "\"2\"")).await;
    assert_eq!(other.status, 201);
}
