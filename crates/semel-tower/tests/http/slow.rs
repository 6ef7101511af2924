//! A store that takes a second to record, and may fail at first or be away.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::response::IntoResponse as _;
use http::StatusCode;
use http_body_util::BodyExt as _;
use semel::guard::OnStoreError;
use semel::memory::MemoryStore;
use semel::record::Change;
use semel::store::{Claim, ClaimRequest, Fenced, Result, Store};
use semel::{Identity, IdentityDigest, StoreError, StoreErrorKind};
use semel_tower::IdempotencyLayer;
use tower::ServiceExt as _;

use crate::support::{App, Call, pieces, policy};

#[derive(Default)]
struct Slow {
    memory: MemoryStore,
    failures: AtomicUsize,
    away: AtomicBool,
    /// What it answers claims with.
    refuses: Option<StoreErrorKind>,
}

impl Store for Slow {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::NotApplied, "no connection"));
        }
        if let Some(kind) = self.refuses {
            return Err(StoreError::new(kind, "no"));
        }
        self.memory.claim(identity, request).await
    }

    async fn change(&self, id: &IdentityDigest, change: &Change) -> Result<Fenced> {
        if change.outcome().is_some() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let take = |left: usize| left.checked_sub(1);
            if self
                .failures
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_ok()
            {
                return Err(StoreError::new(StoreErrorKind::NotApplied, "try again"));
            }
        }
        self.memory.change(id, change).await
    }

    semel::delegate!(memory: get, list, purge, wait, probe, close);
}

/// R5: whoever has the whole answer finds it recorded.
#[tokio::test(start_paused = true)]
async fn r5_no_answer_ends_before_it_is_recorded() {
    for limit in [100, 2] {
        let layer = IdempotencyLayer::new(Slow::default()).with_max_response_body(limit);
        let app = App::answering(layer, |_| pieces(&["3 ap", "ples"]).into_response());
        app.send(Call::order()).await.assert_first(200);
        assert!(app.send(Call::order()).await.is_replay(), "limit {limit}");
    }
    // Of a large answer nothing comes before, and then all of it at once.
    let layer = IdempotencyLayer::new(Slow::default()).with_max_response_body(2);
    let app = App::answering(layer, |_| pieces(&["3 ap", "ples"]).into_response());
    let began = tokio::time::Instant::now();
    let response = app
        .router
        .clone()
        .oneshot(Call::order().request())
        .await
        .unwrap();
    let recorded = began.elapsed();
    assert!(recorded >= Duration::from_secs(1));
    let mut body = response.into_body();
    for piece in ["3 ap", "ples"] {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), piece);
    }
    assert!(body.frame().await.is_none());
    assert_eq!(began.elapsed(), recorded);
}

#[tokio::test(start_paused = true)]
async fn row_45_a_store_that_fails_for_a_moment_is_asked_again() {
    let store = Slow::default();
    store.failures.store(2, Ordering::SeqCst);
    let app = App::answering(IdempotencyLayer::new(store), |_| {
        StatusCode::CREATED.into_response()
    });
    app.send(Call::order()).await.assert_first(201);
    assert!(app.send(Call::order()).await.is_replay());
    assert_eq!(app.execs(), 1);
}

#[tokio::test(start_paused = true)]
async fn row_45_without_the_store_nothing_runs_unless_the_policy_is_to_run_and_say_so() {
    let away = || Slow {
        away: AtomicBool::new(true),
        ..Slow::default()
    };
    let app = App::orders(IdempotencyLayer::new(away()));
    let answer = app.send(Call::order()).await;
    answer.assert_problem(503, "store-unavailable");
    assert_eq!(app.execs(), 0);
    let open = policy().with_on_store_error(OnStoreError::FailOpen);
    let app = App::orders(IdempotencyLayer::new(away()).with_policy(open));
    for _ in 0..2 {
        let answer = app.send(Call::order()).await;
        answer.assert_first(201);
        assert_eq!(answer.header("idempotency-protected"), Some("false"));
    }
    assert_eq!(app.execs(), 2);
}

/// R9: a store that is full or damaged is not away.
#[tokio::test(start_paused = true)]
async fn row_45_a_store_that_says_no_is_never_passed_by() {
    use StoreErrorKind::{Capacity, Closed, Config, Corrupt};
    let open = policy().with_on_store_error(OnStoreError::FailOpen);
    for (kind, code) in [
        (Capacity, "capacity"),
        (Corrupt, "store-unavailable"),
        (Closed, "store-unavailable"),
        (Config, "store-unavailable"),
    ] {
        let store = Slow {
            refuses: Some(kind),
            ..Slow::default()
        };
        let app = App::orders(IdempotencyLayer::new(store).with_policy(open));
        app.send(Call::order()).await.assert_problem(503, code);
        assert_eq!(app.execs(), 0, "{kind:?}");
    }
}
