//! Versioned records beside the records, and inside transactions.

use std::sync::Arc;

use semel::guard::{Guard, TransactOptions};
use semel::store::Store as _;
use semel::versioned::{
    Expected, NaturalKey, Retries, Version, VersionedIn as _, VersionedStore as _, WriteError,
    update,
};
use semel::{Fingerprint, Scope, StoreErrorKind};
use semel_stores::{Schema, SqliteOptions};

use super::{acquire, complete, file, foreign, identity, open, replayed};

fn key(name: &str) -> NaturalKey {
    NaturalKey::new(Scope::new(["tests"]), name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_committed_with_its_operation() {
    let (_directory, path) = file();
    let store = Arc::new(open(&path));
    let guard = Guard::from(store.clone());
    let add = |fails: bool| {
        let store = store.clone();
        move |_, mut tx: semel::transaction::Lent<semel_stores::SqliteTransaction>| {
            let store = store.clone();
            async move {
                let written = store
                    .write_in(&mut tx, &key("a"), Expected::Absent, "in".into())
                    .await?;
                if fails {
                    store
                        .delete_in(&mut tx, &key("a"), Expected::Absent)
                        .await?;
                }
                Ok::<_, WriteError>(written.to_string())
            }
        }
    };
    let (id, asked, options) = (
        identity("once"),
        Fingerprint::of(b""),
        TransactOptions::default(),
    );
    guard
        .transact((&id, asked), options, add(true))
        .await
        .unwrap_err();
    assert_eq!(store.read(&key("a")).await.unwrap(), None);
    for _ in 0..2 {
        guard
            .transact((&id, asked), options, add(false))
            .await
            .unwrap();
    }
    let found = store.read(&key("a")).await.unwrap().unwrap();
    assert_eq!((found.version, &*found.value), (Version(1), &b"in"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_handles_lose_no_update() {
    let (_directory, path) = file();
    let stores = [Arc::new(open(&path)), Arc::new(open(&path))];
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let store = stores[n % 2].clone();
            tokio::spawn(async move {
                update(&*store, &key("sum"), Retries::default(), |found| {
                    let sum =
                        found.map_or(0, |f| String::from_utf8_lossy(&f.value).parse().unwrap());
                    Ok::<_, std::convert::Infallible>((sum + 1).to_string().into())
                })
                .await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let found = stores[0].read(&key("sum")).await.unwrap().unwrap();
    assert_eq!((found.version, &*found.value), (Version(16), &b"16"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_is_there_after_opening_again() {
    let (_directory, path) = file();
    let store = open(&path);
    store
        .write(&key("a"), Expected::Any, "1".into())
        .await
        .unwrap();
    store
        .write(&key("b"), Expected::Any, "1".into())
        .await
        .unwrap();
    store.delete(&key("b"), Expected::Any).await.unwrap();
    store.close().await.unwrap();
    let store = open(&path);
    assert_eq!(store.read(&key("a")).await.unwrap().unwrap().value, "1");
    let again = store.write(&key("b"), Expected::Absent, "2".into()).await;
    assert_eq!(again.unwrap(), Version(3));
    // As people read it.
    let rows: i64 = foreign(&path)
        .query_row(
            "SELECT count(*) FROM semel_versioned WHERE scope = '[\"tests\"]' AND name IN ('a', 'b')",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(rows, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_file_takes_no_new_record_and_changes_those_that_are_there() {
    let (_directory, path) = file();
    let store = open(&path);
    store
        .write(&key("a"), Expected::Any, "1".into())
        .await
        .unwrap();
    store.close().await.unwrap();
    let store = super::options().max_bytes(1).open(&path).unwrap();
    match store.write(&key("b"), Expected::Any, "1".into()).await {
        Err(WriteError::Store(e)) => assert_eq!(e.kind(), StoreErrorKind::Capacity),
        other => panic!("{other:?}"),
    }
    store
        .write(&key("a"), Expected::Any, "2".into())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_the_table_is_told_to_migrate() {
    let (_directory, path) = file();
    let store = open(&path);
    let token = acquire(&store, "kept").await.token;
    complete(&store, "kept", &token, b"kept").await;
    store.close().await.unwrap();
    foreign(&path)
        .execute_batch("DROP TABLE semel_versioned")
        .unwrap();
    for schema in [Schema::Expect, Schema::Create] {
        let error = SqliteOptions::new().schema(schema).open(&path).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Config);
        assert!(error.to_string().contains("semel migrate"), "{error}");
    }
    SqliteOptions::new().migrate(&path).unwrap();
    let store = open(&path);
    assert_eq!(replayed(&store, "kept").await, "kept");
    store
        .write(&key("a"), Expected::Any, "1".into())
        .await
        .unwrap();
}
