//! `docs/versioned.md`.

use std::error::Error;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use semel::Scope;
use semel::guard::{Asked, Guard, TransactOptions};
use semel::versioned::{
    Expected, NaturalKey, Retries, Versioned, VersionedIn as _, VersionedStore, WriteError, update,
};
use semel_stores::PostgresStore;
use semel_tower::precondition::{ETag, Precondition, Rejection};

#[derive(Debug, thiserror::Error)]
#[error("the balance is too low")]
struct MyError;

fn next(found: Option<&Versioned>) -> Result<Bytes, MyError> {
    found.map(|found| found.value.clone()).ok_or(MyError)
}

fn deposit(found: Option<&Versioned>) -> Bytes {
    found.map_or_else(|| "100".into(), |found| found.value.clone())
}

async fn shown(store: impl VersionedStore) -> Result<(), Box<dyn Error>> {
    let pump = NaturalKey::new(Scope::new(["tenant-1", "assets"]), "pump-7");

    // An upsert: whatever is there.
    store.write(&pump, Expected::Any, "running".into()).await?;
    // Only if nobody wrote since this was read.
    let read = store.read(&pump).await?.ok_or("it was just written")?;
    let expected = Expected::Version(read.version);
    store.write(&pump, expected, "stopped".into()).await?;

    // Reads, changes and writes; starts over, a bounded number of times, on a conflict.
    update(&store, &pump, Retries::default(), next).await?;
    Ok(())
}

async fn inside(
    guard: Guard<Arc<PostgresStore>>,
    asked: Asked,
    account: NaturalKey,
) -> Result<String, Box<dyn Error>> {
    let store = guard.store().clone();
    let options = TransactOptions::default();
    let done = guard
        .transact(asked, options, move |_, mut tx| {
            let (store, account) = (store.clone(), account.clone());
            async move {
                let found = store.read_in(&mut tx, &account).await?; // locked until the end
                let expected = match &found {
                    Some(found) => Expected::Version(found.version),
                    None => Expected::Absent,
                };
                let value = deposit(found.as_ref());
                store.write_in(&mut tx, &account, expected, value).await?;
                Ok::<_, WriteError>("deposited".to_owned())
            }
        })
        .await?;
    Ok(done.into_inner())
}

async fn put(
    Path(id): Path<String>,
    precondition: Precondition,
    State(store): State<Arc<PostgresStore>>,
    body: Bytes,
) -> Result<ETag, Rejection> {
    let key = NaturalKey::new(Scope::new(["notes"]), &id);
    Ok(ETag(precondition.write(&*store, &key, body).await?))
}

#[tokio::test]
async fn it_runs() {
    let store = semel::versioned::MemoryVersioned::default();
    shown(store).await.unwrap();
}
