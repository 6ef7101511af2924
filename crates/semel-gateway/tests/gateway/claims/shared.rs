//! A Rust worker and a script on one store.

use semel::guard::{Asked, Done, Guard, Policy};
use semel::store::OnLost;
use semel::{Fingerprint, Identity, Json, Key, Scope, Service};
use semel_stores::SqliteStore;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::api::{Api, said};
use super::nowhere;
use crate::support::Gateway;

fn asked(key: &str) -> Asked {
    let service = Service::new("orders").unwrap();
    let operation = service.operation("ship");
    let identity = Identity::new(Scope::new(["acme"]), &operation, Key::new(key).unwrap());
    Asked::new(identity, Fingerprint::of_json(&payload()).unwrap())
}

fn payload() -> Value {
    json!({"order": 7, "fast": true})
}

fn claim() -> Value {
    json!({"service": "orders", "operation": "ship", "scope": ["acme"], "payload": payload()})
}

async fn guard(directory: &TempDir) -> Guard<SqliteStore> {
    let store = SqliteStore::open(&url(directory)).await.unwrap();
    Guard::new(store, Policy::default().with_on_lost(OnLost::Retry))
}

fn url(directory: &TempDir) -> String {
    format!("sqlite:{}", directory.path().join("records").display())
}

#[tokio::test]
async fn they_meet_on_the_same_record() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(nowhere(), &["--store", &url(&directory)]);
    let api = Api::of(gateway.admin).await;
    let guard = guard(&directory).await;
    // The worker runs, the script gets its result.
    let work = async |_| Ok::<_, std::io::Error>(Json(json!({"parcel": 1})));
    let done = guard.run(asked("a"), work).await.unwrap();
    assert_eq!(done, Done::Fresh(Json(json!({"parcel": 1}))));
    let answer = api.claim("a", claim()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(said(&answer)["outcome"]["text"], r#"{"parcel":1}"#);
    // And the other way around.
    let held = api.acquire("b", claim()).await;
    let running = guard.run(asked("b"), work).await.unwrap_err();
    assert!(running.is_retryable(), "{running}");
    held.told("complete", json!({"outcome": {"json": {"parcel": 2}}}))
        .await;
    let done = guard.run(asked("b"), work).await.unwrap();
    assert_eq!(done, Done::Replayed(Json(json!({"parcel": 2}))));
    // The worker continues after the script's steps.
    let held = api.acquire("c", claim()).await;
    held.told(
        "steps",
        json!({"name": "charge", "result": {"text": "ch_1"}}),
    )
    .await;
    held.told("abandon", json!({})).await;
    let work = async |mut attempt: semel::guard::Attempt<SqliteStore>| {
        let charge: String = attempt
            .step("charge", async |_| Err::<String, _>("charged twice"))
            .await?;
        Ok::<_, semel::guard::StepError<&str>>(charge)
    };
    let done = guard.run(asked("c").in_steps(), work).await.unwrap();
    assert_eq!(done, Done::Fresh("ch_1".to_owned()));
    guard.close().await.unwrap();
}
