//! What a URL may say.

use semel::{Store as _, StoreErrorKind};
use semel_stores::{OpenError, OpenOptions, Schema, check_url, migrate, open};
use semel_testkit::servers::{self, Kind, Redis, Server as _};

#[test]
fn urls_are_checked_without_a_server() {
    for url in [
        "redis://127.0.0.1",
        "redis://127.0.0.1:6380/3?prefix=a:b:&timeout=500ms&connections=4",
        "redis://user:p%40ss@[::1]:6379/",
        "rediss://:secret@cache.example:6380?ca=/etc/ca.pem",
        "redis://h?wait_replicas=1&wait_timeout=100ms&unsafe=warn",
        "redis://h?wait_aof=yes&unsafe=refuse",
        "redis-cluster://a:7000,b:7001,c",
        "redis-cluster://me:secret@a:7000,b:7001/?prefix=x&tls=yes",
    ] {
        check_url(url).unwrap_or_else(|e| panic!("{url}: {e}"));
    }
}

#[test]
fn what_is_wrong_with_a_url_is_said_without_repeating_it() {
    for (url, says) in [
        ("redis:hunter2", "is followed by `//HOST`"),
        ("redis://:hunter2@a,b", "takes one host"),
        (
            "redis://:hunter2@a/?prefx=x",
            "has no parameter `prefx`; there are `prefix`",
        ),
        ("redis://:hunter2@a/?prefix=", "prefix of 1 to 64"),
        ("redis://:hunter2@a/?prefix={x}", "prefix of 1 to 64"),
        (
            "redis://:hunter2@a/?timeout=5",
            "`timeout` must be a duration",
        ),
        ("redis://:hunter2@a/?timeout=0s", "above zero"),
        ("redis://:hunter2@a/?connections=0", "1 to 64 connections"),
        (
            "redis://:hunter2@a/?unsafe=maybe",
            "`unsafe` must be `refuse` or `warn`",
        ),
        ("redis://:hunter2@a/?wait_timeout=9s", "below the timeout"),
        ("redis://:hunter2@a/hunter2", "/NUMBER"),
        ("redis://:hunter2@a:hunter2", "no URL"),
        ("redis-cluster://:hunter2@a:1,b:hunter2", "HOST"),
        ("redis-cluster://:hunter2@a:1/3", "no databases"),
    ] {
        let message = check_url(url).unwrap_err().to_string();
        assert!(message.contains(says), "{url}: {message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opens_and_migrates_by_url() {
    let url = servers::shared(Kind::Redis).unwrap();
    let (mut options, own) = (OpenOptions::default(), format!("{url}?prefix=by-url:"));
    let store = open(&own, &options).await.unwrap();
    assert_eq!(store.probe().await.unwrap().store, "redis");
    store.close().await.unwrap();
    // There is nothing to prepare, whatever is asked for.
    options.schema = Schema::Migrate;
    for _ in 0..2 {
        assert!(migrate(&url, &options).await.unwrap().done.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_and_prefixes_share_nothing() {
    let server = Redis::start(&[]).unwrap();
    let identity = super::identity("a-key-of-some-length");
    for end in [
        "0?prefix=a:",
        "0?prefix=a:b:",
        "3?prefix=a:",
        "3?prefix=a:b:",
    ] {
        let url = format!("redis://{}/{end}", server.address());
        let store = super::RedisOptions::new().open(&url).await.unwrap();
        super::claim(&store, &identity).await;
        let query = semel::store::ListQuery::new(semel::StateKind::InFlight);
        let listed = store.list(&query).await.unwrap();
        assert_eq!(listed.entries.len(), 1, "{end}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_a_setting_to_mend() {
    let server = Redis::start(&[]).unwrap();
    super::tell(
        server.address(),
        &["CONFIG", "SET", "requirepass", "right-one"],
    )
    .await;
    for login in ["", ":hunter2@", "nobody:hunter2@"] {
        let url = format!("redis://{login}{}", server.address());
        match super::options().open(&url).await {
            Err(OpenError::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
                assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let url = format!("redis://:right-one@{}", server.address());
    let store = super::options().open(&url).await.unwrap();
    super::claim(&store, &super::identity("a-key-of-some-length")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_is_said() {
    match super::options().open("redis://:hunter2@127.0.0.1:1").await {
        Err(OpenError::Store(error)) => {
            assert_eq!(error.kind(), StoreErrorKind::NotApplied);
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
}
