//! What a preset says, said otherwise: each setting over each convention.

use axum::Router;
use axum::routing::any;
use http::Method;
use serde_json::json;
use tokio::net::TcpListener;

use crate::conventions::{ROWS, Row, Sent, System as _};
use crate::presets::Behind;
use crate::support::{Answer, Gateway, eventually, request, send};

/// A request as no convention has it.
fn own(row: &Row, path: &str, key: Option<&str>, apples: u32) -> Sent {
    let mut sent = row.post_with(path, None, apples);
    if let Some(key) = key {
        sent = sent.field("x-key", key);
        // Without it a request is not repeatable.
        if row.preset == "oasis" {
            let of_row = row.post(path, 1, 1).fields;
            let first_sent = of_row
                .into_iter()
                .find(|(name, _)| name.ends_with("first-sent"));
            sent.fields.extend(first_sent);
        }
    }
    sent
}

/// Where keys are and which, in which words it refuses, how it marks replays and what it keeps.
#[tokio::test]
async fn each_preset_can_be_overridden() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("semel.toml");
    let text = "key-header = \"X-Key\"\nkey-rule = \"general\"\nkey-syntax = \"lenient\"\n\
                require-key = false\nreplay-header = \"X-Again\"\n\
                [dispositions]\n500 = \"keep\"\n422 = \"release\"\n";
    std::fs::write(&file, text).unwrap();
    let ietf = ROWS.iter().find(|row| row.preset == "ietf").unwrap();
    for row in &ROWS {
        let preset = row.preset;
        // It has no other dialect, and marks replays in their bodies too.
        let is_adcp = preset == "adcp";
        let (words, dialect) = match is_adcp {
            true => (row, "adcp"),
            false => (ietf, "problem"),
        };
        let dialect = format!("--dialect={dialect}");
        let flags = [
            &dialect,
            "--preset",
            preset,
            "--config",
            file.to_str().unwrap(),
        ];
        let behind = Behind::start(&flags).await;
        let ask = |path, key, apples| behind.send(own(row, path, key, apples));
        let first = ask("/orders", Some("k-1"), 1).await;
        assert_eq!(
            (first.status, first.field("x-again")),
            (201, None),
            "{preset}"
        );
        let again = ask("/orders", Some("k-1"), 1).await;
        assert_eq!(again.field("x-again"), Some("true"), "{preset}: {again:?}");
        assert_eq!(again.json()["id"], first.json()["id"], "{preset}");
        assert_eq!(again.body == first.body, !is_adcp, "{preset}");
        let (status, code) = words.says(&ask("/orders", Some("k-1"), 2).await);
        assert_eq!((status, &*code), words.mismatch, "{preset}");
        let (status, code) = words.says(&ask("/orders", Some("k 1"), 1).await);
        assert_eq!((status, &*code), words.invalid, "{preset}");
        let plain = ask("/orders", None, 1).await;
        assert_eq!((plain.status, behind.upstream.runs()), (201, 2), "{preset}");
        let failed = ask("/first-500/3", Some("k-2"), 1).await;
        assert_eq!(failed.status, 500, "{preset}");
        let kept = ask("/first-500/3", Some("k-2"), 1).await;
        assert_eq!(
            (kept.status, kept.field("x-again")),
            (500, Some("true")),
            "{preset}"
        );
        let failed = ask("/first-422/4", Some("k-3"), 1).await;
        assert_eq!(failed.status, 422, "{preset}");
        let released = ask("/first-422/4", Some("k-3"), 1).await;
        assert_eq!(
            (released.status, behind.upstream.runs()),
            (201, 5),
            "{preset}"
        );
    }
}

/// A route says it over what the top says, in whichever place.
#[tokio::test]
async fn the_key_can_be_in_the_body_under_each_preset() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("semel.toml");
    let text = "key-header = \"X-Key\"\n[[routes]]\npath = \"/*\"\n\
                key-member = \"op\"\nkey-rule = \"general\"\nkey-max = 8\n";
    std::fs::write(&file, text).unwrap();
    // The date of OASIS is beside a field.
    for row in ROWS.iter().filter(|row| row.preset != "oasis") {
        let flags = ["--preset", row.preset, "--config", file.to_str().unwrap()];
        let behind = Behind::start(&flags).await;
        let ask = |key: &str, apples| {
            let mut sent = own(row, "/orders", Some("ignored"), apples);
            sent.fields.retain(|(name, _)| name != "x-key");
            sent.body = json!({"op": key, "apples": apples}).to_string();
            behind.send(sent)
        };
        let first = ask("k-1", 1).await;
        assert_eq!(first.status, 201, "{}: {first:?}", row.preset);
        let again = ask("k-1", 1).await;
        assert_eq!(again.json()["id"], first.json()["id"], "{}", row.preset);
        let (status, code) = row.says(&ask("k-1", 2).await);
        assert_eq!((status, &*code), row.mismatch, "{}", row.preset);
        let (status, code) = row.says(&ask("123456789", 1).await);
        assert_eq!((status, &*code), row.invalid, "{}", row.preset);
        assert_eq!(behind.upstream.runs(), 1, "{}", row.preset);
    }
}

/// AdCP's answers and scopes hold wherever the key is.
#[tokio::test]
async fn what_the_body_says_counts_where_the_key_is_in_a_field() {
    let behind = Behind::start(&["--preset", "adcp", "--key-header", "X-Key"]).await;
    let row = ROWS.iter().find(|row| row.preset == "adcp").unwrap();
    let ask = |account: &str, trace: u32| {
        let mut sent = own(row, "/orders", Some("0123456789abcdef"), 1);
        let body = json!({"account": {"account_id": account}, "context": {"trace": trace}});
        sent.body = body.to_string();
        behind.send(sent)
    };
    let first = ask("a", 1).await.json();
    assert_eq!(first["context"], json!({"trace": 1}));
    let again = ask("a", 2).await.json();
    assert_eq!(
        again,
        json!({"id": 1, "context": {"trace": 2}, "replayed": true})
    );
    assert_eq!(ask("b", 3).await.json()["id"], 2);
}

/// A service that says how often it ran, with a cookie.
async fn service() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let runs = std::sync::atomic::AtomicUsize::new(0);
    let runs = std::sync::Arc::new(runs);
    let answer = move || {
        let ran = runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
        let fields = [("set-cookie", format!("run={ran}"))];
        std::future::ready((fields, ran.to_string()))
    };
    let router = Router::new().fallback(any(answer));
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    address
}

#[tokio::test]
async fn each_of_the_others_holds() {
    let gateway = Gateway::start(
        service().await,
        &[
            "--body-form=raw",
            "--fingerprint-header=X-Version,X-Region",
            "--key-methods=POST,PATCH",
            "--kept-header=Set-Cookie",
            "--scope-target",
            "--replay-header=none",
        ],
    );
    let ask = async |method: Method, path: &str, version: &str, body: &str| -> Answer {
        let fields = [
            ("idempotency-key", "k"),
            ("content-type", "application/json"),
            ("x-version", version),
        ];
        let sent = request(method, gateway.address, path, &fields, body);
        send(sent).await.unwrap()
    };
    let first = ask(Method::POST, "/a", "1", "{\"n\":1}").await;
    let again = ask(Method::POST, "/a", "1", "{\"n\":1}").await;
    assert_eq!(
        (again.text(), again.header("set-cookie")),
        ("1", Some("run=1"))
    );
    assert_eq!(
        again.header("idempotency-replayed"),
        first.header("idempotency-replayed")
    );
    for (version, body) in [("1", "{\"n\":1.0}"), ("2", "{\"n\":1}")] {
        let other = ask(Method::POST, "/a", version, body).await;
        assert_eq!(other.problem(), "mismatch", "{version} {body}");
    }
    // Another path, and a method whose keys do not count.
    assert_eq!(ask(Method::POST, "/b", "1", "{\"n\":1}").await.text(), "2");
    assert_eq!(ask(Method::PUT, "/a", "1", "{\"n\":1}").await.text(), "3");
    assert_eq!(ask(Method::PUT, "/a", "1", "{\"n\":1}").await.text(), "4");
}

#[tokio::test]
async fn an_answer_leaves_a_tombstone() {
    let gateway = Gateway::start(service().await, &["--ttl=1s", "--tombstone=1h"]);
    let ask = async || {
        let fields = [("idempotency-key", "k")];
        send(request(Method::POST, gateway.address, "/a", &fields, "{}"))
            .await
            .unwrap()
    };
    assert_eq!(ask().await.text(), "1");
    let expired = eventually("its retention ends", async || {
        let answer = ask().await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!(expired.problem(), "expired");
}

/// The longest key that is accepted is that of the rule, where it is shorter.
#[tokio::test]
async fn a_key_of_iceberg_is_a_uuid_and_no_more() {
    let behind = Behind::start(&["--preset", "iceberg"]).await;
    let row = ROWS.iter().find(|row| row.preset == "iceberg").unwrap();
    let ask = |key: &str| {
        let sent = row.post_with("/orders", None, 1);
        behind.send(sent.field("idempotency-key", key))
    };
    let uuid = "0192f5a0-7c1e-7abc-8def-0123456789ab";
    assert_eq!(ask(uuid).await.status, 201);
    let (status, code) = row.says(&ask(&format!("{uuid}c")).await);
    assert_eq!((status, &*code), row.invalid);
}
