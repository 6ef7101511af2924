//! Versioned records: what they cost, and what a lost answer does.

use semel::StoreErrorKind;
use semel::versioned::{Expected, NaturalKey, Version, VersionedStore as _, WriteError};
use semel_stores::{OpenOptions, migrate};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{DynamoDb, Server as _};

use super::*;

fn key(name: &str) -> NaturalKey {
    NaturalKey::new(Scope::new(["test"]), name)
}

fn at_version(version: u64) -> Expected {
    Expected::Version(Version(version))
}

#[tokio::test]
async fn every_change_is_one_request() {
    let server = DynamoDb::start().unwrap();
    let store = create(options(&server.url())).await;
    let key = key("a");
    macro_rules! one {
        ($step:expr) => {{
            let before = taken(server.address(), None);
            let answer = $step.await;
            let requests = taken(server.address(), None) - before;
            assert_eq!(requests, 1, "{}", stringify!($step));
            answer
        }};
    }
    one!(store.write(&key, Expected::Absent, "1".into())).unwrap();
    one!(store.write(&key, at_version(1), "2".into())).unwrap();
    one!(store.write(&key, Expected::Any, "3".into())).unwrap();
    one!(store.write(&key, at_version(1), "no".into())).unwrap_err();
    one!(store.write(&key, Expected::Absent, "no".into())).unwrap_err();
    assert_eq!(one!(store.read(&key)).unwrap().unwrap().version, Version(3));
    one!(store.delete(&key, at_version(3))).unwrap();
}

#[tokio::test]
async fn a_table_without_the_other_says_what_to_run() {
    let url = url();
    let store = create(options(&url)).await;
    let name = url
        .trim_start_matches("dynamodb://")
        .split('?')
        .next()
        .unwrap();
    let gone = super::schema::client(&url).await.delete_table();
    gone.table_name(format!("{name}-versioned"))
        .send()
        .await
        .unwrap();
    for answer in [
        store.read(&key("a")).await.map(drop),
        match store.write(&key("a"), Expected::Any, "1".into()).await {
            Err(WriteError::Store(error)) => Err(error),
            other => panic!("{other:?}"),
        },
    ] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Config);
        let told = error.to_string();
        assert!(told.contains(&format!("`{name}-versioned`")), "{told}");
        assert!(told.contains("semel migrate"), "{told}");
    }
    let done = migrate(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!(done.done.len(), 1, "{done:?}");
    store
        .write(&key("a"), Expected::Absent, "1".into())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_asked_for_again_and_found() {
    let server = DynamoDb::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = create(options(&server.url_through(proxy.address()))).await;
    let key = key("a");
    store
        .write(&key, Expected::Absent, "1".into())
        .await
        .unwrap();
    for version in 2..6 {
        let expected = match version % 2 {
            0 => at_version(version - 1),
            _ => Expected::Any,
        };
        let before = proxy.hits();
        proxy.once(Fault::CutAnswers);
        let written = store.write(&key, expected, "again".into()).await;
        assert_eq!(written.unwrap(), Version(version));
        assert_eq!(proxy.hits(), before + 1);
    }
}
