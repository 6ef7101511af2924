//! `[dispositions]`: what an answer's status means, where the operator knows better.

use std::process::{Command, Stdio};

use crate::support::{Answer, Gateway, Reaction, Script, order};

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

const SETTINGS: &str = r#"
[dispositions]
409 = "keep"
"502" = "release"
504 = "keep"
503 = "release"
"5xx" = "unknown"
202 = "release"
402 = "unknown"
"#;

/// The answers to a first request, which the upstream answers so, and to a second, which it answers
/// with 201; and how often it was asked.
async fn twice(
    gateway: &Gateway,
    upstream: &Script,
    first: &'static str,
) -> (Answer, Answer, usize) {
    let before = upstream.requests().len();
    let key = format!("\"key-{before}\"");
    upstream.react(Reaction::Send(first));
    let one = order(gateway.address, &key).await;
    upstream.react(Reaction::Send(
        "HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n",
    ));
    let two = order(gateway.address, &key).await;
    (one, two, upstream.requests().len() - before)
}

#[tokio::test]
async fn what_a_status_means_can_be_set() {
    let settings = file(SETTINGS);
    let upstream = Script::start(Reaction::Close).await;
    let path = settings.path().to_str().unwrap();
    let gateway = Gateway::start(upstream.address, &["--config", path]);
    for (answer, status) in [
        ("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", 502),
        ("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", 503),
        ("HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", 202),
    ] {
        let (one, two, asked) = twice(&gateway, &upstream, answer).await;
        assert_eq!((one.status.as_u16(), two.status.as_u16()), (status, 201));
        assert_eq!(asked, 2, "{status}");
    }
    for (answer, status) in [
        (
            "HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n",
            504,
        ),
        (
            "HTTP/1.1 409 Conflict\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
            409,
        ),
        ("HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n", 410),
    ] {
        let (one, two, asked) = twice(&gateway, &upstream, answer).await;
        assert_eq!((one.status.as_u16(), two.status.as_u16()), (status, status));
        assert!(two.is_replay(), "{status}");
        assert_eq!(asked, 1, "{status}");
    }
    for answer in [
        "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 599 Oops\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 402 Pay\r\ncontent-length: 0\r\n\r\n",
    ] {
        let (_, two, asked) = twice(&gateway, &upstream, answer).await;
        assert_eq!(two.problem(), "outcome-unknown", "{answer}");
        assert_eq!(asked, 1, "{answer}");
    }
    // The gateway's own answers are not among them: it knows what happened.
    upstream.react(Reaction::Close);
    let lost = order(gateway.address, "\"lost\"").await;
    assert_eq!(lost.problem(), "upstream-failed");
    let again = order(gateway.address, "\"lost\"").await;
    assert_eq!(again.problem(), "outcome-unknown");
}

fn check(text: &str) -> (Option<i32>, String, String) {
    let file = file(text);
    let output = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args([
            "check",
            "--no-open",
            "--upstream",
            "http://127.0.0.1:9",
            "--config",
        ])
        .arg(file.path())
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn what_was_set_is_shown() {
    let (code, shown, _) = check(SETTINGS);
    assert_eq!(code, Some(0));
    for line in ["402: unknown", "409: keep", "502: release", "5xx: unknown"] {
        let has = |shown: &str| shown.starts_with("dispositions") && shown.contains(line);
        assert!(shown.lines().any(has), "{line} in {shown}");
    }
}

#[test]
fn each_wrong_one_has_one_clear_message() {
    for (text, message) in [
        (
            "502 = \"retry\"",
            "dispositions: `retry` is none of keep, release and unknown",
        ),
        ("502 = 1", "dispositions: what 502 means must be a text"),
        (
            "99 = \"keep\"",
            "dispositions: `99` is not a status from 200 to 599, nor 2xx to 5xx",
        ),
        ("600 = \"keep\"", "dispositions: `600` is not a status"),
        ("\"1xx\" = \"keep\"", "dispositions: `1xx` is not a status"),
        ("\"2x\" = \"keep\"", "dispositions: `2x` is not a status"),
        ("bad = \"keep\"", "dispositions: `bad` is not a status"),
    ] {
        let (code, _, error) = check(&format!("[dispositions]\n{text}\n"));
        assert_eq!(code, Some(2), "{text}");
        assert!(error.contains(message), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let (code, _, error) = check("dispositions = \"unknown\"\n");
    assert_eq!(code, Some(2));
    assert!(
        error.contains("`dispositions` must be a section"),
        "{error}"
    );
}
