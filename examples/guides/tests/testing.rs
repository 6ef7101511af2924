//! `docs/testing.md`: tests of one's own handlers and workers.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::{Router, routing::post};
use http::{Request, Response, StatusCode};
use semel::guard::{Asked, Begin, Done, Guard, Policy, RunError};
use semel::memory::{Limits, MemoryStore};
use semel::store::OnLost;
use semel::{Fingerprint, Identity, Key, ManualClock, Scope, Timestamp};
use semel_tower::IdempotencyLayer;
use tower::ServiceExt as _;

type Charges = Arc<AtomicU32>;

async fn charge(charges: Charges) -> Result<String, Infallible> {
    Ok(format!(
        "charge {}",
        charges.fetch_add(1, Ordering::SeqCst) + 1
    ))
}

fn asked(key: &str) -> Asked {
    let key = Key::new(key).unwrap();
    let identity = Identity::new(Scope::new(["shop-1"]), "charge", key);
    Asked::new(identity, Fingerprint::of(b"300 cents"))
}

type Store = Arc<MemoryStore<Arc<ManualClock>>>;

/// A store whose time stands still until the test moves it.
fn store() -> (Store, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp::default()));
    let store = MemoryStore::with_clock(Limits::default(), clock.clone());
    (Arc::new(store), clock)
}

#[tokio::test]
async fn asked_twice_it_charges_once() {
    let (store, clock) = store();
    let guard = Guard::from(store);
    let charges = Charges::default();
    for _ in 0..2 {
        let work = charge(charges.clone());
        let done = guard.run(asked("order-1"), |_| work).await.unwrap();
        assert_eq!(done.into_inner(), "charge 1");
    }

    // Once the retention (24 h) is over, the key is new.
    clock.advance(Duration::from_hours(24));
    let work = charge(charges.clone());
    let done = guard.run(asked("order-1"), |_| work).await.unwrap();
    assert_eq!(done, Done::Fresh("charge 2".to_owned()));
}

/// An attempt that dies between its effect and its record.
async fn crash_after_charging(guard: &Guard<Store>, charges: &Charges) {
    let Begin::Acquired(mut held) = guard.begin(&asked("order-1")).await.unwrap() else {
        panic!("it ran before");
    };
    let _info = held.info(); // the work has begun
    charge(charges.clone()).await.unwrap();
    held.let_lapse(); // as a killed process leaves it: neither renewed nor settled
}

#[tokio::test]
async fn a_crash_after_the_effect_is_held() {
    let (store, clock) = store();
    let guard = Guard::from(store);
    let charges = Charges::default();
    crash_after_charging(&guard, &charges).await;

    let work = charge(charges.clone());
    let answer = guard.run(asked("order-1"), |_| work).await;
    assert!(matches!(answer, Err(RunError::InFlight { .. })));

    clock.advance(Duration::from_secs(31)); // the lease is over
    let work = charge(charges.clone());
    let answer = guard.run(asked("order-1"), |_| work).await;
    assert!(matches!(answer, Err(RunError::Unknown)));
    assert_eq!(charges.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn under_retry_it_runs_again_with_a_higher_fence() {
    let (store, clock) = store();
    let policy = Policy::default().with_on_lost(OnLost::Retry);
    let guard = Guard::new(store, policy);
    let charges = Charges::default();
    crash_after_charging(&guard, &charges).await;

    clock.advance(Duration::from_secs(31));
    let number = |attempt: semel::guard::Attempt<Store>| async move {
        Ok::<_, Infallible>(attempt.number.to_string())
    };
    let done = guard.run(asked("order-1"), number).await.unwrap();
    assert_eq!(done, Done::Fresh("2".to_owned()));
}

async fn pay(State(charges): State<Charges>) -> (StatusCode, String) {
    (StatusCode::CREATED, charge(charges).await.unwrap())
}

fn app(store: Store, charges: Charges) -> Router {
    Router::new()
        .route("/payments", post(pay))
        .with_state(charges)
        .layer(IdempotencyLayer::new(store))
}

async fn post_payment(app: &Router, body: &'static str) -> Response<Body> {
    let request = Request::post("/payments")
        .header("idempotency-key", "\"order-1\"")
        .body(Body::from(body))
        .unwrap();
    app.clone().oneshot(request).await.unwrap()
}

#[tokio::test]
async fn the_handler_behind_the_layer_charges_once() {
    let (store, _) = store();
    let charges = Charges::default();
    let app = app(store, charges.clone());

    let first = post_payment(&app, "300 cents").await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let again = post_payment(&app, "300 cents").await;
    assert_eq!(again.status(), StatusCode::CREATED);
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    let other = post_payment(&app, "700 cents").await;
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(charges.load(Ordering::SeqCst), 1);
}
