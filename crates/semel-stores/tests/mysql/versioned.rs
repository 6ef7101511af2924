//! Versioned records: what they cost, and inside transactions.

use std::sync::Arc;
use std::time::Duration;

use semel::Scope;
use semel::guard::{Guard, TransactOptions};
use semel::transaction::{Isolation, Lent, Transactional as _};
use semel::versioned::{
    Expected, NaturalKey, Version, Versioned, VersionedIn as _, VersionedStore as _, WriteError,
};
use semel::{Fingerprint, StoreErrorKind};
use semel_stores::MysqlTransaction;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::Server as _;
use tokio::sync::Barrier;

use super::{ask, common, identity, link, open, options, own};

fn key(name: &str) -> NaturalKey {
    NaturalKey::new(Scope::new(["tests"]), name)
}

fn at(version: u64) -> Expected {
    Expected::Version(Version(version))
}

fn number(found: Option<&Versioned>) -> u64 {
    found.map_or(0, |found| {
        String::from_utf8_lossy(&found.value).parse().unwrap()
    })
}

#[tokio::test]
async fn each_change_is_one_round_trip() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let store = open(&server.url_through(proxy.address())).await;
    let key = key("a");
    macro_rules! trips {
        ($trips:literal, $step:expr) => {{
            // One on a connection that lay for a second asks whether it lives.
            store.read(&key).await.unwrap();
            let before = proxy.round_trips();
            let answer = $step.await;
            let taken = proxy.round_trips() - before;
            assert_eq!(taken, $trips, "{}", stringify!($step));
            answer
        }};
    }
    trips!(1, store.write(&key, Expected::Absent, "1".into())).unwrap();
    trips!(1, store.write(&key, at(1), "2".into())).unwrap();
    trips!(1, store.write(&key, Expected::Any, "3".into())).unwrap();
    trips!(1, store.write(&key, at(1), "no".into())).unwrap_err();
    trips!(1, store.write(&key, Expected::Absent, "no".into())).unwrap_err();
    trips!(1, store.read(&key)).unwrap();
    trips!(1, store.delete(&key, at(3))).unwrap();
    let mut tx = store.begin(Isolation::ReadCommitted).await.unwrap();
    trips!(
        1,
        store.write_in(&mut tx, &key, Expected::Absent, "5".into())
    )
    .unwrap();
    trips!(1, store.write_in(&mut tx, &key, at(5), "6".into())).unwrap();
    trips!(1, store.read_in(&mut tx, &key)).unwrap();
    // What is there has to be read.
    trips!(2, store.write_in(&mut tx, &key, at(1), "no".into())).unwrap_err();
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn a_lost_answer_is_an_open_question_that_the_nonce_answers() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let store = open(&server.url_through(proxy.address())).await;
    let key = key("a");
    store
        .write(&key, Expected::Absent, "1".into())
        .await
        .unwrap();
    for version in 2..6 {
        let writer = semel::store::Nonce::random().unwrap();
        let expected = if version % 2 == 0 {
            at(version - 1)
        } else {
            Expected::Any
        };
        store.read(&key).await.unwrap();
        proxy.set(Fault::CutAnswers);
        match store.write_as(&key, expected, "again".into(), writer).await {
            Err(WriteError::Store(e)) => assert_eq!(e.kind(), StoreErrorKind::Unknown, "{e}"),
            other => panic!("{other:?}"),
        }
        proxy.set(Fault::None);
        let again = store.write_as(&key, expected, "again".into(), writer).await;
        assert_eq!(again.unwrap(), Version(version));
    }
}

/// Adds in both orders, in transactions that meet: what the database rolls back is run again.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_meet_lose_nothing() {
    let store = Arc::new(open(&common().await).await);
    for isolation in [
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ] {
        let names = [format!("a {isolation:?}"), format!("b {isolation:?}")];
        let keys = names.map(|name| key(&name));
        for key in &keys {
            store
                .write(key, Expected::Absent, "0".into())
                .await
                .unwrap();
        }
        const CROWD: usize = 6;
        let start = Arc::new(Barrier::new(CROWD));
        let tasks: Vec<_> = (0..CROWD)
            .map(|n| {
                let (store, start, mut keys) = (store.clone(), start.clone(), keys.clone());
                if n % 2 == 0 {
                    keys.reverse();
                }
                tokio::spawn(async move {
                    let guard = Guard::from(store.clone());
                    start.wait().await;
                    let options = TransactOptions::default()
                        .with_isolation(isolation)
                        .with_retries(50);
                    let work = move |_, mut tx: Lent<MysqlTransaction>| {
                        let (store, keys) = (store.clone(), keys.clone());
                        async move {
                            for key in &keys {
                                let found = store.read_in(&mut tx, key).await?;
                                let sum = (number(found.as_ref()) + 1).to_string();
                                let expected = Expected::Version(found.unwrap().version);
                                store.write_in(&mut tx, key, expected, sum.into()).await?;
                                // Others come in between.
                                tokio::time::sleep(Duration::from_millis(5)).await;
                            }
                            Ok::<_, WriteError>(())
                        }
                    };
                    let id = identity(&format!("{isolation:?}-{n}"));
                    guard
                        .transact((&id, Fingerprint::of(b"")), options, work)
                        .await
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        for key in &keys {
            let found = store.read(key).await.unwrap().unwrap();
            assert_eq!(number(Some(&found)), CROWD as u64, "{isolation:?}");
            assert_eq!(found.version, Version(1 + CROWD as u64));
        }
    }
}

#[tokio::test]
async fn people_can_read_them() {
    use sqlx::Row as _;
    let url = common().await;
    let table = super::table();
    let store = options(&url).table(&table).unwrap().open().await.unwrap();
    store
        .write(&key("ümläut"), Expected::Any, "1".into())
        .await
        .unwrap();
    let sql = format!("SELECT scope,name FROM {table}_versioned");
    let row = &ask(&mut link(&url).await, sql).await[0];
    assert_eq!(row.get::<String, _>(0), r#"["tests"]"#);
    assert_eq!(row.get::<String, _>(1), "ümläut");
}
