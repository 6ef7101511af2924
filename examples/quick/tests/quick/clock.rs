//! A test of one's own handler, on a clock that the test moves: nothing sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::guard::Begin;
use semel::memory::Limits;
use semel::{ManualClock, Timestamp, prelude::*};

/// What is tested: an application's function.
async fn charge<S: Store>(guard: &Guard<S>, order: &str, charges: &Arc<AtomicU32>) -> Answer {
    let charges = Arc::clone(charges);
    let work = move |_| async move { Ok::<_, String>(charges.fetch_add(1, Ordering::Relaxed) + 1) };
    guard
        .run(asked(order), |attempt| async {
            Ok(Json(work(attempt).await?))
        })
        .await
}

type Answer = Result<Done<Json<u32>>, RunError<String>>;

fn asked(order: &str) -> Asked {
    let key = Key::new(order).unwrap();
    let identity = Identity::new(Scope::new(["acme"]), "charge", key);
    Asked::new(identity, Fingerprint::of(order.as_bytes()))
}

#[tokio::test]
async fn an_order_is_charged_once_until_its_retention_ends() {
    let clock = Arc::new(ManualClock::new(Timestamp::default()));
    let store = MemoryStore::with_clock(Limits::default(), clock.clone());
    let guard = Guard::new(store, Policy::order());
    let charges = Arc::default();

    assert_eq!(
        charge(&guard, "order-1", &charges).await.unwrap(),
        Done::Fresh(Json(1))
    );
    assert_eq!(
        charge(&guard, "order-1", &charges).await.unwrap(),
        Done::Replayed(Json(1))
    );
    clock.advance(Duration::from_hours(24));
    assert_eq!(
        charge(&guard, "order-1", &charges).await.unwrap(),
        Done::Fresh(Json(2))
    );
}

#[tokio::test]
async fn after_a_crash_nobody_charges_again() {
    let clock = Arc::new(ManualClock::new(Timestamp::default()));
    let store = MemoryStore::with_clock(Limits::default(), clock.clone());
    let guard = Guard::new(store, Policy::order().with_wait(Duration::ZERO));
    // The process dies in the middle.
    let Begin::Acquired(held) = guard.begin(&asked("order-1")).await.unwrap() else {
        panic!("somebody has it");
    };
    held.let_lapse();
    let charges = Arc::default();
    let retry = charge(&guard, "order-1", &charges).await;
    assert!(retry.unwrap_err().is_retryable(), "it may be running");
    clock.advance(Duration::from_secs(30));
    let retry = charge(&guard, "order-1", &charges).await;
    assert!(matches!(retry, Err(RunError::Unknown)));
    assert_eq!(charges.load(Ordering::Relaxed), 0);
}
