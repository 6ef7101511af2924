//! What is kept of a request with its record, for operators.

use std::collections::BTreeMap;

use hyper::Method;
use semel::store::{ListQuery, Store as _};
use semel::{Note, StateKind};
use semel_stores::OpenOptions;
use tempfile::TempDir;

use crate::support::{Gateway, Reaction, Script, order_with, request, send};

const DONE: &str = "HTTP/1.1 201 Created\r\ncontent-length: 4\r\n\r\ndone";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn store_in(directory: &TempDir) -> String {
    format!("sqlite:{}", directory.path().join("records.db").display())
}

/// The note of each record, by how its key begins.
async fn notes(store: &str) -> BTreeMap<String, Note> {
    let options = OpenOptions::default();
    let store = semel_stores::open(store, &options).await.unwrap();
    let query = ListQuery::new(StateKind::Completed);
    let page = store.list(&query).await.unwrap();
    let entries = page.entries.into_iter();
    let notes = entries.map(|entry| (entry.label.key_hint.into(), entry.record.note));
    notes.collect()
}

#[tokio::test]
async fn without_routes_it_is_method_path_request_and_trace() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(&directory);
    let upstream = Script::start(Reaction::Send(DONE)).await;
    let gateway = Gateway::start(upstream.address, &["--store", &store]);
    let ask = async |key: &str, more: &[(&str, &str)]| {
        let headers = [&[("idempotency-key", key)], more].concat();
        let answer = order_with(gateway.address, &headers).await;
        assert_eq!(answer.status, 201);
    };
    ask(
        "first-key-4711",
        &[("x-request-id", "r-1"), ("traceparent", TRACE)],
    )
    .await;
    // A retry has an id of its own; the record is that of the attempt.
    ask("first-key-4711", &[("x-request-id", "r-2")]).await;
    // An id that is the key is not kept.
    ask("other-key-4712", &[("x-request-id", "other-key-4712")]).await;
    let notes = notes(&store).await;
    assert_eq!(
        notes["first-k"].as_text(),
        "method=POST\npath=/orders\nrequest-id=r-1\ntrace-id=4bf92f3577b34da6a3ce929d0e0e4736"
    );
    assert_eq!(notes["other-k"].as_text(), "method=POST\npath=/orders");
    assert!(!gateway.log().contains("4bf92f"), "{}", gateway.log());
}

#[tokio::test]
async fn each_route_says_what_it_keeps() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(&directory);
    let upstream = Script::start(Reaction::Send(DONE)).await;
    let file = directory.path().join("semel.toml");
    let routes = r#"
[[routes]]
path = "/patients/{id}/invoices"
[[routes]]
path = "/payments"
name = "pay"
note = ["route", "header:X-Customer", "json:/amount", "json:/to/iban"]
[[routes]]
path = "/silent"
note = []
"#;
    std::fs::write(&file, routes).unwrap();
    let flags = ["--store", &store, "--config", file.to_str().unwrap()];
    let gateway = Gateway::start(upstream.address, &flags);
    let ask = async |key: &str, path: &str| {
        let headers = [("idempotency-key", key), ("x-customer", "c-9")];
        let body = r#"{"amount": "12.50", "to": {"iban": 7}}"#;
        let request = request(Method::POST, gateway.address, path, &headers, body);
        assert_eq!(send(request).await.unwrap().status, 201);
    };
    ask("pattern-key-1", "/patients/meier-1970/invoices?x=1").await;
    ask("fields-key-1", "/payments").await;
    ask("silent-key-1", "/silent").await;
    ask("elsewhere-1", "/elsewhere").await;
    let notes = notes(&store).await;
    assert_eq!(
        notes["patter"].as_text(),
        "method=POST\nroute=any /patients/{id}/invoices"
    );
    assert_eq!(
        notes["fields"].as_text(),
        "route=pay\nx-customer=c-9\n/amount=12.50\n/to/iban=7"
    );
    assert_eq!(notes["silent"], Note::EMPTY);
    assert_eq!(notes["elsew"].as_text(), "method=POST\npath=/elsewhere");
}
