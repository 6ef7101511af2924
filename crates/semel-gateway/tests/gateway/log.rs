//! What stands in the log of each request, and what never does.

use std::collections::HashMap;

use serde_json::Value;

use crate::routes::file;
use crate::support::{Gateway, Reaction, Script, Shop, eventually, get, order_with, send_raw};

/// The lines about requests.
fn lines(gateway: &Gateway) -> Vec<Value> {
    let log = gateway.log();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .filter(|line: &Value| line["message"] == "request")
        .collect()
}

fn events(gateway: &Gateway) -> Vec<String> {
    let lines = lines(gateway);
    let events = lines.iter().map(|line| line["event"].as_str().unwrap());
    events.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_failure_of_the_upstream_is_told_with_its_operation() {
    let upstream = Script::start(Reaction::Close).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let headers = [("idempotency-key", "\"secret-key\"")];
    order_with(gateway.address, &headers).await;
    let (log, warning) = eventually("the warning", async || {
        let log = gateway.log();
        let mut lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
        let warning = lines.find(|line: &Value| line["level"] == "WARN")?;
        Some((log, warning))
    })
    .await;
    let sent = upstream.requests()[0].to_lowercase();
    let id = warning["id"].as_str().unwrap();
    assert!(
        sent.contains(&format!("idempotency-id: {id}")),
        "{log}{sent}"
    );
    assert_eq!(
        (&warning["method"], &warning["path"]),
        (&"POST".into(), &Value::Null)
    );
    assert!(!log.contains("secret"), "{log}");
}

#[tokio::test]
async fn a_line_says_what_happened_and_of_which_operation() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--log-level", "debug"]);
    let secrets = [
        ("idempotency-key", "\"secret-key\""),
        ("authorization", "Bearer secret-token"),
        ("x-secret", "secret-field"),
    ];
    order_with(gateway.address, &secrets).await;
    order_with(gateway.address, &secrets).await;
    order_with(gateway.address, &[("idempotency-key", "\"secret-key")]).await;
    order_with(gateway.address, &[]).await;
    get(gateway.address, "/orders/1?secret=query").await;
    let keyed = "PUT /orders/secret-key/notes HTTP/1.1\r\nhost: orders\r\nidempotency-key: \"secret-key\"\r\n\
                 content-length: 0\r\n\r\n";
    let _open = send_raw(gateway.address, keyed).await;
    let events = eventually("the lines", async || {
        Some(events(&gateway)).filter(|events| events.len() == 6)
    })
    .await;
    assert_eq!(
        events,
        [
            "ran",
            "replayed",
            "invalid-key",
            "passed_on",
            "passed_on",
            "ran"
        ]
    );
    let lines = lines(&gateway);
    let of: HashMap<_, _> = ["method", "path", "status"]
        .map(|f| (f, &lines[0][f]))
        .into();
    assert_eq!(*of["method"], "POST");
    assert_eq!(*of["path"], "/orders");
    assert_eq!(*of["status"], 201);
    assert!(lines[0]["ms"].as_f64().unwrap() > 0.0);
    assert_eq!(lines[4]["path"], "/orders/1");
    assert_eq!(lines[5]["path"], "/orders/*/notes");
    let id = lines[0]["id"].as_str().unwrap();
    assert_eq!((id.len(), &lines[1]["id"]), (64, &lines[0]["id"]));
    assert!(lines[3]["id"].is_null());
    assert!(!gateway.log().contains("secret"), "{}", gateway.log());
}

/// With what others call the request, unless that is its key.
#[tokio::test]
async fn the_access_log_is_on_by_a_setting() {
    let shop = Shop::open().await;
    let text = r#"
        access-log = true
        [[routes]]
        name = "orders"
        path = "/orders/*"
        upstream = "{shop}"
        [[routes]]
        path = "/plain/*"
        upstream = "{shop}"
        protect = false
    "#;
    let file = file(text, &[("shop", shop.address)]);
    let gateway = Gateway::start_with(file.path(), &[]);
    let secret = ("idempotency-key", "secret-key");
    for id in ["7f3a", "secret-key"] {
        order_with(gateway.address, &[secret, ("x-request-id", id)]).await;
    }
    get(gateway.address, "/plain/page").await;
    get(gateway.address, "/nowhere").await;
    let lines = eventually("the lines", async || {
        Some(lines(&gateway)).filter(|lines| lines.len() == 4)
    })
    .await;
    let of = |name: &str| -> Vec<&Value> { lines.iter().map(|line| &line[name]).collect() };
    let null = &Value::Null;
    assert_eq!(of("event"), ["ran", "replayed", "passed_on", "no-route"]);
    let routes = ["orders", "orders", "any /plain/*"].map(Value::from);
    assert_eq!(of("route"), [&routes[0], &routes[1], &routes[2], null]);
    let id = &Value::from("7f3a");
    assert_eq!(of("request_id"), [id, null, null, null]);
    assert_eq!(of("attempt"), [&Value::from(1), null, null, null]);
    assert_eq!(of("trace_id"), [null; 4]);
    for (line, is_sent) in lines.iter().zip([true, false, true, false]) {
        assert_eq!(line["upstream_ms"].is_number(), is_sent, "{line}");
    }
    assert!(!gateway.log().contains("secret"), "{}", gateway.log());
}

#[tokio::test]
async fn the_name_is_the_one_that_the_upstream_gets() {
    let upstream = Script::start(Reaction::Close).await;
    let gateway = Gateway::start(upstream.address, &["--log-level", "debug"]);
    let key = [("idempotency-key", "\"k\"")];
    order_with(gateway.address, &key).await;
    order_with(gateway.address, &key).await;
    let line = eventually("the lines", async || lines(&gateway).get(1).cloned()).await;
    assert_eq!(line["event"], "outcome-unknown");
    assert_eq!(lines(&gateway)[0]["event"], "upstream-failed");
    let sent = upstream.fields("idempotency-id");
    assert_eq!(sent, [[line["id"].as_str().unwrap()]]);
}

/// It is nobody's fault but the client's, and clients do not fill the log with warnings.
#[tokio::test]
async fn a_client_that_goes_away_is_no_warning() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--log-level", "debug"]);
    for field in ["idempotency-key: \"gone\"\r\n", "x-no-key: 1\r\n"] {
        let head = format!(
            "POST /orders HTTP/1.1\r\nhost: x\r\nx-delay: 1000\r\n{field}content-length: 10\r\n\r\n{{}}        "
        );
        let before = shop.received();
        let gone = send_raw(gateway.address, &head).await;
        eventually("the order", async || {
            (shop.received() > before).then_some(())
        })
        .await;
        drop(gone);
    }
    eventually("the lines", async || {
        (events(&gateway) == ["client_gone", "client_gone"]).then_some(())
    })
    .await;
    assert!(!gateway.log().contains("WARN"), "{}", gateway.log());
}
