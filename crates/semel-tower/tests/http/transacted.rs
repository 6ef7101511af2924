//! What the layer's transactions come to, on a store whose commits do as they are told.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use semel::guard::{Policy, TransactOptions};
use semel::store::{ListQuery, OnLost, Retention};
use semel::{StateKind, Store as _};
use semel_tower::{Disposition, IdempotencyLayer, TransactionHandle};
use tower::load_shed::error::Overloaded;
use tower::{BoxError, Layer as _, ServiceBuilder, ServiceExt as _, service_fn};

use crate::scripted::{Fate, Scripted, Work};

type Body = Full<Bytes>;
type Shared = Arc<Scripted>;

fn store(fates: &[Fate]) -> Shared {
    Arc::new(Scripted::new(fates))
}

fn layer(store: &Shared) -> IdempotencyLayer<Shared> {
    IdempotencyLayer::new(store.clone()).with_transactions(TransactOptions::default())
}

fn request() -> Request<Body> {
    let request = Request::post("/").header("idempotency-key", "\"k\"");
    request.body(Full::from("x")).unwrap()
}

/// Writes a line in the request's transaction.
async fn write(request: &Request<Body>) -> TransactionHandle<Work> {
    let handle = request
        .extensions()
        .get::<TransactionHandle<Work>>()
        .unwrap();
    handle.begin().await.unwrap().lines.push("written".into());
    handle.clone()
}

fn answer(status: u16) -> Response<Body> {
    let answer = Response::builder().status(status);
    answer.body(Full::from("conflict")).unwrap()
}

async fn count(store: &Shared, state: StateKind) -> usize {
    store
        .list(&ListQuery::new(state))
        .await
        .unwrap()
        .entries
        .len()
}

#[tokio::test]
async fn the_service_that_was_polled_takes_the_call() {
    let inner = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(answer(200)));
    let service = ServiceBuilder::new()
        .layer(layer(&store(&[])))
        .concurrency_limit(1);
    let answered = service.service(inner).oneshot(request()).await.unwrap();
    assert_eq!(answered.status(), 200);
}

#[tokio::test]
async fn a_failure_whose_body_is_not_kept_rolls_back_too() {
    let store = store(&[]);
    let service = layer(&store).with_max_response_body(4).layer(service_fn(
        async |request: Request<Body>| {
            write(&request).await;
            Ok::<_, Infallible>(answer(409))
        },
    ));
    for _ in 0..2 {
        let answered = service.clone().oneshot(request()).await.unwrap();
        assert_eq!(answered.status(), 409);
    }
    assert!(store.ledger.lock().unwrap().is_empty());
    assert_eq!(count(&store, StateKind::Completed).await, 1);
}

/// A time-out of whoever answers is no reason to hold what was rolled back.
#[tokio::test]
async fn a_504_after_the_transaction_was_taken_is_released() {
    let store = store(&[]);
    let service = layer(&store).layer(service_fn(async |request: Request<Body>| {
        let first = write(&request).await.info().number == 1;
        Ok::<_, Infallible>(answer(if first { 504 } else { 201 }))
    }));
    for status in [504, 201] {
        let answered = service.clone().oneshot(request()).await.unwrap();
        assert_eq!(answered.status(), status);
    }
}

#[tokio::test]
async fn what_the_application_says_of_an_error_counts_in_a_transaction_too() {
    let store = store(&[]);
    let unknown = |_: &io::Error| Disposition::Unknown;
    let service = layer(&store)
        .with_error_classifier(unknown)
        .layer(service_fn(async |request: Request<Body>| {
            write(&request).await;
            Err::<Response<Body>, _>(io::Error::other("the bank timed out"))
        }));
    service.oneshot(request()).await.unwrap_err();
    assert_eq!(count(&store, StateKind::Unknown).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_the_commit_is_settled_once_the_store_answers() {
    for committed in [false, true] {
        let store = store(&[Fate::Lost { committed }]);
        let told = store.clone();
        let service = layer(&store).layer(service_fn(move |request: Request<Body>| {
            let told = told.clone();
            async move {
                let handle = write(&request).await;
                told.deaf.store(handle.info().number == 1, SeqCst);
                Ok::<_, Infallible>(answer(200))
            }
        }));
        let first = service.clone().oneshot(request()).await.unwrap();
        // Given up at once, or known to be done no more than that.
        assert_eq!(first.status(), if committed { 409 } else { 503 });
        store.deaf.store(false, SeqCst);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let second = service.clone().oneshot(request()).await.unwrap();
        assert_eq!(second.status(), 200);
        let replayed = second.headers().contains_key("idempotency-replayed");
        assert_eq!(replayed, committed);
        assert_eq!(store.ledger.lock().unwrap().len(), 1);
    }
}

/// Only where the application says that there may be effects elsewhere is it left open.
#[tokio::test(start_paused = true)]
async fn a_lost_commit_that_is_not_found_is_given_up_unless_attempts_are_held() {
    let cases = [
        (None, 503, StateKind::Released),
        (Some(OnLost::Retry), 503, StateKind::Released),
        (Some(OnLost::Hold), 409, StateKind::Unknown),
    ];
    for (on_lost, status, state) in cases {
        let store = store(&[Fate::Lost { committed: false }]);
        let policy = Policy::default();
        let policy = on_lost.map_or(policy, |on_lost| policy.with_on_lost(on_lost));
        let service = layer(&store).with_policy(policy).layer(service_fn(
            |request: Request<Body>| async move {
                write(&request).await;
                Ok::<_, Infallible>(answer(200))
            },
        ));
        let lost = service.oneshot(request()).await.unwrap();
        assert_eq!(lost.status(), status, "{on_lost:?}");
        assert_eq!(count(&store, state).await, 1, "{on_lost:?}");
    }
}

#[tokio::test]
async fn a_service_that_was_refused_elsewhere_may_have_run() {
    let shed = |outermost: bool| {
        service_fn(move |_: Request<Body>| async move {
            let overloaded = Overloaded::new();
            Err::<Response<Body>, BoxError>(match outermost {
                true => Box::new(overloaded),
                false => Box::new(io::Error::other(overloaded)),
            })
        })
    };
    for (outermost, state) in [(true, StateKind::Released), (false, StateKind::Unknown)] {
        let store = store(&[]);
        let service = IdempotencyLayer::new(store.clone()).layer(shed(outermost));
        service.oneshot(request()).await.unwrap_err();
        assert_eq!(count(&store, state).await, 1, "{outermost}");
    }
}

/// Its status stands in the body, which nobody reads here.
#[tokio::test]
async fn grpc_web_counts_by_the_status_of_http() {
    let store = store(&[]);
    let service =
        IdempotencyLayer::new(store.clone()).layer(service_fn(async |_: Request<Body>| {
            let answer = Response::builder().header("content-type", "application/grpc-web+proto");
            Ok::<_, Infallible>(answer.body(Body::from("frames")).unwrap())
        }));
    service.oneshot(request()).await.unwrap();
    assert_eq!(count(&store, StateKind::Completed).await, 1);
}

#[tokio::test]
async fn an_answer_in_a_transaction_may_say_how_long_it_is_kept() {
    let store = store(&[Fate::Commits]);
    let work = service_fn(async |request: Request<Body>| {
        write(&request).await;
        let mut answer = answer(201);
        answer.extensions_mut().insert(Retention::API);
        Ok::<_, Infallible>(answer)
    });
    let answer = layer(&store).layer(work).oneshot(request()).await.unwrap();
    assert_eq!(answer.status(), 201);
    let kept = store.list(&ListQuery::new(StateKind::Completed)).await;
    let record = &kept.unwrap().entries[0].record;
    let kept_for = record.expires_at.as_micros() - record.settled_at.unwrap().as_micros();
    assert_eq!(u128::from(kept_for), Retention::API.replay.as_micros());
}
