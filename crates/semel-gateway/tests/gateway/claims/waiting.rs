//! Calls that wait for an attempt in flight.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinHandle;

use super::api::{Api, said};
use super::{gateway, nowhere};
use crate::support::{Answer, Gateway, eventually};

const WAITERS: usize = 32;

/// Calls that wait, once all of them do.
async fn waiting(api: &Api, count: usize) -> Vec<JoinHandle<Answer>> {
    let waiters = (0..count).map(|_| {
        let api = api.clone();
        tokio::spawn(async move { api.claim("k", json!({"wait": "5m"})).await })
    });
    let waiters = waiters.collect();
    wait_for(api, count).await;
    waiters
}

/// The metrics say how many are waiting.
async fn wait_for(api: &Api, count: usize) {
    eventually("the waiters", || async {
        let metrics = crate::support::get(api.address, "/metrics").await;
        let line = format!("semel_claims_waiting {count}\n");
        metrics.text().contains(&line).then_some(())
    })
    .await;
}

#[tokio::test]
async fn those_who_wait_are_told_the_outcome() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let held = api.acquire("k", json!({})).await;
    let waiters = waiting(&api, WAITERS).await;
    let began = Instant::now();
    held.told("complete", json!({"outcome": {"text": "done"}}))
        .await;
    for waiter in waiters {
        let answer = waiter.await.unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(said(&answer)["outcome"]["text"], "done");
    }
    // Far less than they would have waited.
    assert!(began.elapsed() < Duration::from_secs(60));
    wait_for(&api, 0).await;
}

#[tokio::test]
async fn one_of_those_who_wait_runs_after_a_release() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let held = api.acquire("k", json!({})).await;
    let waiters = waiting(&api, 4).await;
    held.told("abandon", json!({})).await;
    // One of them holds it, and the others wait for that one.
    wait_for(&api, 3).await;
    let mut acquired = 0;
    let shown = api.show(held.id()).await;
    assert_eq!(
        (&shown["state"], &shown["attempt"]),
        (&json!("in-flight"), &json!(2))
    );
    gateway.terminate();
    for waiter in waiters {
        let answer = waiter.await.unwrap();
        match answer.status.as_u16() {
            201 => acquired += 1,
            _ => assert_eq!(answer.problem(), "in-flight"),
        }
    }
    assert_eq!(acquired, 1);
}

/// A wait is no reason to stop late.
#[tokio::test]
async fn waits_end_when_the_gateway_stops() {
    let mut gateway = gateway();
    let api = Api::of(gateway.admin).await;
    api.acquire("k", json!({})).await;
    let waiters = waiting(&api, 2).await;
    gateway.terminate();
    for waiter in waiters {
        let answer = waiter.await.unwrap();
        assert_eq!(
            (answer.status.as_u16(), &*answer.problem()),
            (409, "in-flight")
        );
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert!(gateway.ended().await.success());
}

#[tokio::test]
async fn who_finds_no_room_to_wait_is_told_at_once() {
    let gateway = Gateway::start(nowhere(), &["--max-waiting", "1"]);
    let api = Api::of(gateway.admin).await;
    let held = api.acquire("k", json!({})).await;
    let waiters = waiting(&api, 1).await;
    let answer = api.claim("k", json!({"wait": "5m"})).await;
    assert_eq!(answer.problem(), "in-flight");
    held.told("complete", json!({})).await;
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().status, 200);
    }
}

/// A client that is gone waits no more.
#[tokio::test]
async fn a_closed_connection_claims_nothing() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let held = api.acquire("k", json!({})).await;
    for waiter in waiting(&api, 2).await {
        waiter.abort();
    }
    wait_for(&api, 0).await;
    held.told("abandon", json!({})).await;
    assert_eq!(api.show(held.id()).await["state"], "released");
    assert_eq!(api.acquire("k", json!({})).await.said["attempt"], 2);
}
