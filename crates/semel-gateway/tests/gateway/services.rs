//! Services that share a store: `--service` keeps them apart.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::reconcile::{Act, Endpoint, file};
use crate::support::{Answer, Gateway, Reaction, Script, Shop, eventually, order_with, store_in};

const PAID: &str = "HTTP/1.1 201 Created\r\ncontent-length: 4\r\n\r\npaid";
const ORDERED: &str = "HTTP/1.1 201 Created\r\ncontent-length: 7\r\n\r\nordered";

/// The same request, whichever gateway gets it.
async fn ask(gateway: &Gateway, key: &str) -> Answer {
    let headers = [
        ("idempotency-key", key),
        ("authorization", "Bearer one-and-the-same"),
    ];
    order_with(gateway.address, &headers).await
}

/// Two gateways of two services on one store, asked for the same with the same keys by the same
/// principal; one of them has a reconciler that always says "did not happen".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_crosses_between_services_on_one_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("records.db").display());
    let payments_upstream = Script::start(Reaction::Send(PAID)).await;
    let orders_upstream = Script::start(Reaction::Send(ORDERED)).await;
    let endpoint = Endpoint::open(Act::Say(json!({"finding": "did-not-happen"}))).await;
    let settings = file(&endpoint, "every = \"100ms\"\npause = \"50ms\"\n");
    let payments = Gateway::start(
        payments_upstream.address,
        &[
            "--store",
            &store,
            "--service",
            "payments",
            "--config",
            settings.path().to_str().unwrap(),
        ],
    );
    let flags = ["--store", &store, "--service", "orders"];
    let orders = Gateway::start(orders_upstream.address, &flags);

    // Answers stay with their service.
    for _ in 0..2 {
        assert_eq!(ask(&payments, "\"a\"").await.text(), "paid");
        assert_eq!(ask(&orders, "\"a\"").await.text(), "ordered");
    }
    assert_eq!(payments_upstream.requests().len(), 1);
    assert_eq!(orders_upstream.requests().len(), 1);
    let id = |upstream: &Script| upstream.fields("idempotency-id").concat();
    assert_ne!(id(&payments_upstream), id(&orders_upstream));

    // An order of which nobody knows whether it happened. It did, and payments' endpoint cannot
    // know.
    orders_upstream.react(Reaction::Close);
    assert_eq!(ask(&orders, "\"b\"").await.problem(), "upstream-failed");
    orders_upstream.react(Reaction::Send(ORDERED));
    // The same request is payments' own first.
    assert_eq!(ask(&payments, "\"b\"").await.text(), "paid");

    // Payments' own lost request is asked about, by both its names, and runs again.
    payments_upstream.react(Reaction::Close);
    assert_eq!(ask(&payments, "\"c\"").await.problem(), "upstream-failed");
    payments_upstream.react(Reaction::Send(PAID));
    let questions = eventually("a question", async || {
        let questions = endpoint.questions();
        (!questions.is_empty()).then_some(questions)
    })
    .await;
    assert_eq!(questions[0]["service"], "payments");
    assert_eq!(questions[0]["operation"], "http");
    eventually("payments' answer", async || {
        (ask(&payments, "\"c\"").await.status == 201).then_some(())
    })
    .await;

    // By now the background has looked again and again.
    sleep(Duration::from_millis(500)).await;
    let unknown = ask(&orders, "\"b\"").await;
    assert_eq!(unknown.problem(), "outcome-unknown");
    assert_eq!(orders_upstream.requests().len(), 2);
    let own = payments_upstream.fields("idempotency-id")[2..].concat();
    for question in endpoint.questions() {
        assert!(own.contains(&question["identity"].as_str().unwrap().to_owned()));
    }
}

#[tokio::test]
async fn a_gateway_without_a_service_is_told_where_others_can_share_its_store() {
    const WARNING: &str = "--service";
    let shop = Shop::open().await;
    let directory = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", directory.path().join("records.db").display());
    let file = store_in(directory.path());
    let warnings = |flags: &[&str]| {
        let log = Gateway::start(shop.address, flags).log();
        log.lines().filter(|line| line.contains(WARNING)).count()
    };
    assert_eq!(warnings(&["--store", &sqlite]), 1);
    assert_eq!(warnings(&["--store", &sqlite, "--service", "default"]), 0);
    assert_eq!(warnings(&["--store", &file]), 0);
    assert_eq!(warnings(&["--store", "memory:"]), 0);
}
