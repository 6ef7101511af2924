//! Stores that run out of something, or away: noticed, told, and used again by themselves.

mod check;
mod descriptors;
mod directory;
mod disk;
#[cfg(feature = "redis")]
mod memory;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use tokio::time::{Instant, sleep};

use crate::support::{Answer, Gateway, Shop, get, request, send};

/// Within which what stands in the log, in `/readyz` and in the metrics must be there.
const NOTICED: Duration = Duration::from_secs(2);
/// Within which requests with keys must be answered once the shortage is over.
const HEALED: Duration = Duration::from_secs(10);

/// An order whose answer takes so many bytes in the store.
async fn large_order(gateway: &Gateway, key: &str, bytes: usize) -> Result<Answer, String> {
    send(of_size(gateway, key, bytes)).await
}

fn of_size(gateway: &Gateway, key: &str, bytes: usize) -> Request<Full<Bytes>> {
    let body = format!("{{\"pad\":\"{}\"}}", "x".repeat(bytes));
    let headers = [("idempotency-key", key)];
    request(Method::POST, gateway.address, "/orders", &headers, &body)
}

/// Asks until it is so, no longer than `limit`; says how long that took.
async fn within(limit: Duration, what: &str, mut is: impl AsyncFnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !is().await {
        assert!(since.elapsed() < limit, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
    since.elapsed()
}

async fn until_logged(gateway: &Gateway, words: &str) {
    within(
        NOTICED,
        &format!("`{words}` in the log: {}", gateway.log()),
        async || gateway.log().contains(words),
    )
    .await;
}

/// The lines of the log that speak of the store, at this level.
fn lines(gateway: &Gateway, level: &str) -> Vec<String> {
    let log = gateway.log();
    let lines = log.lines().filter(|line| {
        line.contains(&format!("\"level\":\"{level}\"")) && line.contains("store: ")
    });
    lines.map(str::to_owned).collect()
}

async fn metric(gateway: &Gateway, name: &str) -> String {
    let text = get(gateway.admin, "/metrics").await.text().to_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map(|value| value.trim().to_owned())
        .unwrap_or_default()
}

/// After the shortage: new keys within [`HEALED`], all that was acknowledged as it was, nothing run
/// twice, all of it told.
async fn healed(gateway: &Gateway, shop: &Shop, answered: &[(String, Answer)], bytes: usize) {
    let key = format!("\"after-{}\"", shop.received());
    let took = within(HEALED, "an order after the shortage", async || {
        large_order(gateway, &key, 10)
            .await
            .is_ok_and(|a| a.status == 201)
    })
    .await;
    println!("keyed requests again {took:?} after the shortage");
    until_logged(gateway, "store: works again after").await;
    within(NOTICED, "/readyz", async || {
        get(gateway.admin, "/readyz").await.text() == "ready\n"
    })
    .await;
    within(NOTICED, "the metrics", async || {
        metric(gateway, "semel_store_up").await == "1"
            && metric(gateway, "semel_store_full").await == "0"
    })
    .await;
    for (key, first) in answered {
        let again = large_order(gateway, key, bytes).await.unwrap();
        assert!(again.is_replay(), "{key}: {}", again.status);
        assert_eq!(again.body, first.body, "{key}");
    }
    for (key, times) in shop.executions() {
        assert_eq!(times, 1, "{key} ran {times} times");
    }
}

/// Sends orders until one is refused; what was answered before, and the refusal.
async fn order_until_refused(
    gateway: &Gateway,
    name: &str,
    bytes: usize,
    limit: usize,
) -> (Vec<(String, Answer)>, Answer) {
    let mut answered = Vec::new();
    for n in 0..limit {
        let key = format!("\"{name}-{n}\"");
        let answer = large_order(gateway, &key, bytes).await.unwrap();
        if answer.status != 201 {
            return (answered, answer);
        }
        answered.push((key, answer));
    }
    panic!("{limit} orders, and none was refused");
}

async fn shop_and(flags: &[&str]) -> (Arc<Shop>, Gateway) {
    let shop = Arc::new(Shop::open().await);
    let gateway = Gateway::start(shop.address, flags);
    (shop, gateway)
}
