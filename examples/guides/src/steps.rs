//! `docs/steps.md`.

use std::error::Error;

use semel::guard::{Asked, Attempt, Done, Guard, RunError, StepError, StepKey, TransactOptions};
use semel::store::Store;
use semel::{Fingerprint, Identity};
use semel_stores::PostgresStore;

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct MyError(#[from] tokio_postgres::Error);

#[derive(Clone)]
struct Payments;

impl Payments {
    async fn charge(&self, key: StepKey, cents: u32) -> Result<String, MyError> {
        Ok(format!("{cents} under {key}"))
    }
}

#[derive(Clone)]
struct Parcels;

impl Parcels {
    async fn send(&self, key: StepKey, charge: &str) -> Result<String, MyError> {
        Ok(format!("{charge}, sent under {key}"))
    }
}

type Answer = Result<Done<String>, RunError<StepError<MyError>>>;

async fn in_steps<S: Store>(
    guard: Guard<S>,
    identity: Identity,
    fingerprint: Fingerprint,
    payments: Payments,
    parcels: Parcels,
) -> Answer {
    let asked = Asked::new(identity, fingerprint).in_steps();
    let work = |mut attempt: Attempt<S>| async move {
        let charge: String = attempt
            .step("charge", |key| payments.charge(key, 300))
            .await?;
        let parcel: String = attempt
            .step("ship", |key| parcels.send(key, &charge))
            .await?;
        Ok::<_, StepError<MyError>>(parcel)
    };
    guard.run(asked, work).await
}

async fn in_a_transaction(
    guard: Guard<PostgresStore>,
    asked: Asked,
    payments: Payments,
) -> Result<String, Box<dyn Error>> {
    let work = |mut attempt: Attempt<PostgresStore>| async move {
        let options = TransactOptions::default();
        let shelf: String = attempt
            .transact("reserve", options, |_, tx| async move {
                let sql = "UPDATE stock SET left = left - 1 WHERE what = $1 RETURNING shelf";
                Ok::<_, MyError>(tx.query_one(sql, &[&"apples"]).await?.get(0))
            })
            .await?;
        let charge: String = attempt
            .step("charge", |key| payments.charge(key, 300))
            .await?;
        Ok::<_, StepError<MyError>>(format!("{shelf} {charge}"))
    };
    let done = guard.run(asked.in_steps(), work).await?;
    Ok(done.into_inner())
}

#[tokio::test]
async fn it_runs() {
    use semel::memory::MemoryStore;
    use semel::{Key, Scope};

    let guard = Guard::from(MemoryStore::default());
    let identity = Identity::new(Scope::new(["t"]), "order", Key::new("order-1").unwrap());
    let print = Fingerprint::of(b"apples");
    let first = in_steps(guard.clone(), identity.clone(), print, Payments, Parcels).await;
    let Done::Fresh(parcel) = first.unwrap() else {
        panic!("it ran before")
    };
    let again = in_steps(guard, identity, print, Payments, Parcels).await;
    assert_eq!(again.unwrap(), Done::Replayed(parcel));
}
