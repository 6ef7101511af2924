//! What happens, as it happens, and what lately happened to a record.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PLACED, lose, post, read};
use crate::support::{Gateway, PATIENCE, Script, get, order, order_with};

/// A client of `/api/v1/events`.
struct Listener(Lines<BufReader<TcpStream>>);

impl Listener {
    async fn open(admin: SocketAddr, query: &str, fields: &str) -> Self {
        let mut stream = TcpStream::connect(admin).await.unwrap();
        let request =
            format!("GET /api/v1/events{query} HTTP/1.1\r\nhost: {admin}\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut listener = Self(BufReader::new(stream).lines());
        assert_eq!(listener.line().await.as_deref(), Some("HTTP/1.1 200 OK"));
        loop {
            let line = listener.line().await.unwrap();
            if line.is_empty() {
                return listener;
            }
            if let Some(kind) = line.strip_prefix("content-type: ") {
                assert_eq!(kind, "text/event-stream");
            }
        }
    }

    async fn line(&mut self) -> Option<String> {
        let line = timeout(PATIENCE, self.0.next_line()).await.unwrap();
        line.ok().flatten()
    }

    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            // The last chunk is an empty one.
            let line = self.line().await.filter(|line| line != "0")?;
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(data).unwrap());
            }
        }
    }
}

#[tokio::test]
async fn what_happens_is_told_at_once() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &["--service", "shop"]);
    let mut all = Listener::open(gateway.admin, "", "").await;
    let mut some = Listener::open(gateway.admin, "?event=action&event=mismatch", "").await;
    assert_eq!(order(gateway.address, "order-4711").await.status, 201);
    let id = upstream.fields("idempotency-id").last().unwrap()[0].clone();
    let mut of_one = Listener::open(gateway.admin, &format!("?id={id}"), "").await;
    for event in ["new", "completed"] {
        let told = all.next().await.unwrap();
        assert_eq!((&told["event"], &told["id"]), (&json!(event), &json!(id)));
        assert_eq!(
            (&told["service"], &told["attempt"]),
            (&json!("shop"), &json!(1))
        );
        assert!(told["at"].as_str().unwrap().ends_with('Z'));
    }
    assert_eq!(order(gateway.address, "order-4712").await.status, 201);
    assert!(order(gateway.address, "order-4711").await.is_replay());
    let told = of_one.next().await.unwrap();
    assert_eq!(
        (&told["event"], &told["id"]),
        (&json!("replayed"), &json!(id))
    );
    assert!(told["waited_ms"].is_number(), "{told}");

    let lost = lose(&upstream, &gateway, "order-4713").await;
    let fence = read(&gateway, &format!("records/{lost}")).await["fence"].clone();
    let release = json!({"fence": fence, "reason": "nothing in the books"});
    let done = post(&gateway, &format!("records/{lost}/release"), &release).await;
    let done: Value = serde_json::from_str(done.text()).unwrap();
    let action = some.next().await.unwrap();
    assert_eq!(
        (&action["event"], &action["action"]),
        (&json!("action"), &json!("release"))
    );
    assert_eq!(
        (&action["id"], &action["result"]),
        (&json!(lost), &json!("done"))
    );
    assert_eq!(action["audit"], done["audit"]);
    loop {
        let told = all.next().await.unwrap();
        // Protocol rule R12.
        assert!(!told.to_string().contains("order-47"), "{told}");
        if told["event"] == "action" {
            break;
        }
    }
    for (query, part) in [
        ("event=lost", "event: there is no `lost`; there are unkeyed"),
        ("id=4711", "id: it is 64 hexadecimal digits"),
        ("key=4711", "key: there is no such filter"),
    ] {
        let answer = get(gateway.admin, &format!("/api/v1/events?{query}")).await;
        assert_eq!(answer.problem(), "invalid-request", "{query}");
        assert!(answer.text().contains(part), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_record_says_what_happened_to_it() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let id = lose(&upstream, &gateway, "order-1").await;
    upstream.react(PLACED);
    for _ in 0..2 {
        assert_eq!(
            order(gateway.address, "order-1").await.problem(),
            "outcome-unknown"
        );
    }
    let events = async || {
        let record = read(&gateway, &format!("records/{id}")).await;
        let events = record["events"].as_array().unwrap().clone();
        let told = events.iter().map(|event| {
            assert!(event["at"].as_str() <= event["last_at"].as_str(), "{event}");
            let by = event["seen_by"].as_str().unwrap().to_owned();
            let name = event["event"].as_str().unwrap().to_owned();
            (name, event["times"].as_u64().unwrap(), by)
        });
        (told.collect::<Vec<_>>(), record["fence"].clone())
    };
    let expected = |all: &[(&str, u64, &str)]| {
        let own =
            |(name, times, by): &(&str, u64, &str)| ((*name).to_owned(), *times, (*by).to_owned());
        all.iter().map(own).collect::<Vec<_>>()
    };
    let before = [
        ("new", 1, "store"),
        ("marked_unknown", 1, "store"),
        ("unknown", 2, "gateway"),
    ];
    let (told, fence) = events().await;
    assert_eq!(told, expected(&before));
    let release = json!({"fence": fence, "reason": "nothing in the books"});
    assert_eq!(
        post(&gateway, &format!("records/{id}/release"), &release)
            .await
            .status,
        200
    );
    assert_eq!(order(gateway.address, "order-1").await.status, 201);
    for _ in 0..3 {
        assert!(order(gateway.address, "order-1").await.is_replay());
    }
    let other = [
        ("idempotency-key", "order-1"),
        ("content-type", "text/plain"),
        ("x", "y"),
    ];
    let put = crate::support::request(http::Method::PUT, gateway.address, "/orders", &other, "2");
    assert_eq!(
        crate::support::send(put).await.unwrap().problem(),
        "mismatch"
    );
    let (told, _) = events().await;
    let after = [
        ("new", 1, "store"),
        // The record has only the latest attempt's end.
        ("marked_unknown", 1, "gateway"),
        ("unknown", 2, "gateway"),
        ("resolved", 1, "store"),
        ("again", 1, "store"),
        ("completed", 1, "store"),
        ("replayed", 3, "gateway"),
        ("mismatch", 1, "gateway"),
    ];
    assert_eq!(told, expected(&after));
}

/// An end of the gateway does not wait for those who listen.
#[tokio::test]
async fn listening_ends_with_the_gateway() {
    let upstream = Script::start(PLACED).await;
    let mut gateway = Gateway::start(upstream.address, &["--drain", "60s"]);
    let mut listener = Listener::open(gateway.admin, "", "").await;
    let begun = std::time::Instant::now();
    gateway.terminate();
    while listener.next().await.is_some() {}
    assert!(gateway.ended().await.success());
    assert!(begun.elapsed() < std::time::Duration::from_secs(40));
}

#[tokio::test]
async fn who_may_no_longer_listen_hears_nothing() {
    const TOKEN: &str = "0123456789abcdef-look";
    let upstream = Script::start(PLACED).await;
    let directory = tempfile::tempdir().unwrap();
    let (file, token) = (
        directory.path().join("semel.toml"),
        directory.path().join("token"),
    );
    std::fs::write(&token, TOKEN).unwrap();
    let config = |role: &str| {
        let token = token.display();
        format!(
            "upstream = \"http://{}\"\n[[tokens]]\nname = \"look\"\nrole = \"{role}\"\ntoken-file = \"{token}\"\n",
            upstream.address
        )
    };
    std::fs::write(&file, config("read-only")).unwrap();
    let gateway = Gateway::start_with(&file, &[]);
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let mut listener = Listener::open(gateway.admin, "", &bearer).await;
    // Another configuration, and still allowed.
    std::fs::write(&file, config("operator")).unwrap();
    gateway.hang_up();
    crate::support::eventually("a reload", async || {
        let metrics = gateway.metrics().await;
        let none = "semel_config_reloads_total{result=\"success\"} 0";
        (!metrics.contains(none)).then_some(())
    })
    .await;
    assert_eq!(
        order_with(gateway.address, &[("idempotency-key", "k-1")])
            .await
            .status,
        201
    );
    assert_eq!(listener.next().await.unwrap()["event"], "new");
    std::fs::write(&token, "another-token-0123456789").unwrap();
    gateway.hang_up();
    while let Some(told) = listener.next().await {
        assert_eq!(told["event"], "completed");
    }
}
