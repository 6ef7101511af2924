//! URLs: what is taken, and what is said about the others.

use semel_stores::{NatsOptions, check_url};

#[test]
fn what_is_taken() {
    for url in [
        "nats://localhost/semel",
        "nats://localhost:4222/semel?schema=migrate&replicas=3&storage=file&timeout=500ms",
        "nats://a:1,b:2,[::1]:3/semel",
        "nats://user:p%40ss@a,b/bucket-1_x?tls=on&max_bytes=1000000",
        "nats://atoken@localhost/semel",
        "nats://localhost/semel?token=s%26cret",
    ] {
        check_url(url).unwrap_or_else(|e| panic!("{url}: {e}"));
    }
}

#[test]
fn what_is_refused_is_explained_without_secrets() {
    for (url, wanted) in [
        ("nats://localhost", "needs a bucket"),
        ("nats://localhost/", "needs a bucket"),
        ("nats://localhost/a.b", "needs a bucket"),
        ("nats:///semel", "needs a host"),
        ("nats://localhost/semel?replicas=2", "1, 3 or 5"),
        ("nats://localhost/semel?storage=tape", "`file` or `memory`"),
        (
            "nats://localhost/semel?schema=drop",
            "`expect`, `create` or `migrate`",
        ),
        ("nats://localhost/semel?timeout=soon", "`500ms` or `5s`"),
        ("nats://localhost/semel?timeout=1ms", "at least 50ms"),
        (
            "nats://localhost/semel?color=red",
            "schema, timeout, replicas",
        ),
        ("nats://u:sesame@a,v:sesame@b/semel", "takes one user"),
        (
            "nats://u:sesame@localhost/semel?token=sesame",
            "either a user and password",
        ),
        (
            "nats://u:sesame%of@localhost/semel",
            "percent-encoded where",
        ),
        ("nats://u:sesame@local host/semel", "followed by no URL"),
    ] {
        let error = check_url(url).expect_err(url).to_string();
        assert!(error.contains(wanted), "{url}: {error}");
        assert!(!error.contains("sesame"), "{error}");
    }
    let options = NatsOptions::from_url("nats://u:sesame@localhost/semel").unwrap();
    assert!(!format!("{options:?}").contains("sesame"));
}
