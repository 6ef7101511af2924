//! The operators' listener.

use http::Method;

use crate::routes::file;
use crate::support::{
    Gateway, Reaction, Script, Shop, get, order, order_with, read_head, request, send, send_raw,
};

fn value(text: &str, series: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {text}"))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn it_says_that_it_is_up_and_ready() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    for (path, status, text) in [
        ("/healthz", 200, "up\n"),
        ("/readyz", 200, "ready\n"),
        ("/nowhere", 404, ""),
    ] {
        let answer = get(gateway.admin, path).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (status, text),
            "{path}"
        );
    }
    // The clients' listener has none of it.
    assert!(
        get(gateway.address, "/healthz")
            .await
            .text()
            .starts_with("GET /healthz")
    );
}

#[tokio::test]
async fn requests_are_counted_by_route() {
    let shop = Shop::open().await;
    let broken = Script::start(Reaction::Close).await;
    let text = r#"
        upstream = "{shop}"
        [[routes]]
        name = "payments"
        path = "/payments/*"
        upstream = "{broken}"
        service = "payments"
        [[routes]]
        path = "/pages/*"
        protect = false
    "#;
    let file = file(text, &[("shop", shop.address), ("broken", broken.address)]);
    let gateway = Gateway::start_with(file.path(), &[]);
    let key = [("idempotency-key", "k")];
    for path in [
        "/payments/1",
        "/payments/1",
        "/orders",
        "/orders",
        "/pages/1",
        "/payments/../x",
    ] {
        let request = request(Method::POST, gateway.address, path, &key, "{}");
        send(request).await.unwrap();
    }
    let metrics = gateway.metrics().await;
    let labels = |route, operation| format!("route=\"{route}\",operation=\"{operation}\"");
    let (payments, pages) = (
        labels("payments", "http@payments"),
        labels("any /pages/*", ""),
    );
    let (rest, none) = (labels("default", "http"), labels("", ""));
    for (labels, event, count) in [
        (&payments, "upstream-failed", 1.0),
        (&payments, "outcome-unknown", 1.0),
        (&payments, "ran", 0.0),
        (&rest, "ran", 1.0),
        (&rest, "replayed", 1.0),
        (&pages, "passed_on", 1.0),
        (&none, "ambiguous-path", 1.0),
    ] {
        let series = format!("semel_requests_total{{{labels},event=\"{event}\"}}");
        assert_eq!(value(&metrics, &series), count, "{series}");
    }
    for (labels, count) in [(&payments, 0.0), (&rest, 1.0), (&pages, 1.0)] {
        let series = format!("semel_upstream_duration_seconds_count{{{labels}}}");
        assert_eq!(value(&metrics, &series), count, "{series}");
    }
}

/// A page whose name is made to resolve to this address reads nothing (DNS rebinding).
#[tokio::test]
async fn it_answers_to_its_own_names_only() {
    let shop = Shop::open().await;
    let flags = ["--admin-host", "semel.internal, other.internal"];
    let gateway = Gateway::start(shop.address, &flags);
    let port = gateway.admin.port();
    for (host, status) in [
        (format!("127.0.0.1:{port}"), 200),
        (format!("[::1]:{port}"), 200),
        ("10.1.2.3".to_owned(), 200),
        (format!("LOCALHOST:{port}"), 200),
        ("semel.internal".to_owned(), 200),
        ("other.internal:80".to_owned(), 200),
        (format!("attacker.example:{port}"), 421),
        ("semel.internal.attacker.example".to_owned(), 421),
        ("127.0.0.1.attacker.example".to_owned(), 421),
        ("127.0.0.1:80:80".to_owned(), 421),
    ] {
        for path in ["/metrics", "/readyz", "/healthz", "/nowhere"] {
            let ask = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            let mut stream = send_raw(gateway.admin, &ask).await;
            let head = read_head(&mut stream).await.unwrap();
            let expected = if path == "/nowhere" {
                status.max(404)
            } else {
                status
            };
            assert!(
                head.starts_with(&format!("HTTP/1.1 {expected} ")),
                "{host}{path}: {head}"
            );
        }
    }
    let mut old = send_raw(gateway.admin, "GET /healthz HTTP/1.0\r\n\r\n").await;
    assert!(
        read_head(&mut old)
            .await
            .unwrap()
            .starts_with("HTTP/1.0 200 ")
    );
}

#[tokio::test]
async fn it_counts_what_happens() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    order(gateway.address, "\"a\"").await;
    order(gateway.address, "\"a\"").await;
    order_with(gateway.address, &[]).await;
    order_with(gateway.address, &[("idempotency-key", "\"a")]).await;
    let answer = get(gateway.admin, "/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(
        answer
            .header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    let text = answer.text();
    for (event, count) in [
        ("new", 1.0),
        ("completed", 1.0),
        ("replayed", 1.0),
        ("unkeyed", 1.0),
        ("invalid_key", 1.0),
    ] {
        assert_eq!(
            value(text, &format!("semel_events_total{{event=\"{event}\"}}")),
            count
        );
    }
    for event in semel::guard::Signal::ALL {
        value(
            text,
            &format!("semel_events_total{{event=\"{}\"}}", event.as_str()),
        );
    }
    assert_eq!(value(text, "semel_answers_total{status=\"2xx\"}"), 3.0);
    assert_eq!(value(text, "semel_answers_total{status=\"4xx\"}"), 1.0);
    assert_eq!(value(text, "semel_request_duration_seconds_count"), 4.0);
    assert_eq!(value(text, "semel_requests_in_flight"), 0.0);
    assert_eq!(value(text, "semel_attempts_running"), 0.0);
    assert_eq!(value(text, "semel_purged_records_total"), 0.0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.starts_with("semel_"), "{line}");
    }
}

#[tokio::test]
async fn it_counts_what_the_upstream_does_not_answer() {
    let upstream = Script::start(Reaction::Close).await;
    let gateway = Gateway::start(upstream.address, &[]);
    order(gateway.address, "\"secret-key\"").await;
    order(gateway.address, "\"secret-key\"").await;
    let text = get(gateway.admin, "/metrics").await;
    let text = text.text();
    assert_eq!(
        value(text, "semel_upstream_failures_total{kind=\"unanswered\"}"),
        1.0
    );
    assert_eq!(
        value(text, "semel_events_total{event=\"marked_unknown\"}"),
        1.0
    );
    assert_eq!(value(text, "semel_events_total{event=\"unknown\"}"), 1.0);
    assert!(!text.contains("secret-key") && !gateway.log().contains("secret-key"));
}

/// Records are removed some time after their retention, and the key runs again.
#[tokio::test]
async fn what_expired_runs_again() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--ttl", "200ms"]);
    order(gateway.address, "\"a\"").await;
    crate::support::eventually("the end of retention", || async {
        let again = order(gateway.address, "\"a\"").await;
        (!again.is_replay()).then_some(())
    })
    .await;
    assert_eq!(shop.placed(), 2);
}
