//! Services inside the layer that fail, give up or panic: only where it is known that they did nothing
//! is the key released.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse as _;
use axum::routing::post;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use semel::guard::OnPanic;
use semel_tower::{Disposition, IdempotencyLayer};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::{Service, ServiceBuilder, ServiceExt as _, service_fn};
use tower_http::timeout::TimeoutLayer;

use crate::support::{Answer, App, Call, Execs, Memory, layer, policy};

const SECOND: Duration = Duration::from_secs(1);

type BoxError = Box<dyn Error + Send + Sync>;
type Answered = Response<Full<Bytes>>;

/// Calls a service that may fail.
async fn ask<S>(service: S, key: &str) -> Result<Answer, S::Error>
where
    S: Service<Request<Full<Bytes>>, Response = Response<semel_tower::Body<Full<Bytes>>>>,
{
    let request = Request::post("/orders")
        .header("idempotency-key", key)
        .body(Full::default())
        .unwrap();
    let response = service.oneshot(request).await?;
    Ok(Answer::of(response.map(Body::new)).await)
}

#[tokio::test(start_paused = true)]
async fn a_timeout_after_the_effect_leaves_it_unknown() {
    let effects = Execs::default();
    let slow = {
        let effects = effects.clone();
        service_fn(move |_: Request<Full<Bytes>>| {
            effects.add();
            async {
                sleep(5 * SECOND).await;
                Ok::<_, Infallible>(Answered::default())
            }
        })
    };
    let service = ServiceBuilder::new()
        .layer(layer())
        .timeout(SECOND)
        .service(slow);
    let error = ask(service.clone(), "k").await.unwrap_err();
    assert!(error.is::<Elapsed>(), "{error}");
    for _ in 0..2 {
        let answer = ask(service.clone(), "k").await.unwrap();
        answer.assert_problem(409, "outcome-unknown");
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn shed_load_is_released() {
    let (execs, gate) = (Execs::default(), Arc::new(Semaphore::new(0)));
    let gated = {
        let (execs, gate) = (execs.clone(), Arc::clone(&gate));
        service_fn(move |_: Request<Full<Bytes>>| {
            execs.add();
            let gate = Arc::clone(&gate);
            async move {
                drop(gate.acquire().await);
                Ok::<_, Infallible>(Answered::default())
            }
        })
    };
    let service = ServiceBuilder::new()
        .layer(layer())
        .load_shed()
        .concurrency_limit(1)
        .service(gated);
    let first = tokio::spawn(ask(service.clone(), "first"));
    while execs.count() == 0 {
        tokio::task::yield_now().await;
    }
    let error = ask(service.clone(), "second").await.unwrap_err();
    assert!(error.is::<Overloaded>(), "{error}");
    gate.add_permits(1);
    first.await.unwrap().unwrap().assert_first(200);
    let answer = ask(service.clone(), "second").await.unwrap();
    answer.assert_first(200);
    assert!(ask(service, "second").await.unwrap().is_replay());
    assert_eq!(execs.count(), 2);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChargeError {
    NotSent,
    NoAnswer,
}

/// Whether a second call runs after the first one failed with this error.
async fn runs_again(layer: IdempotencyLayer<Memory>, error: ChargeError) -> bool {
    let execs = Execs::default();
    let fails_once = {
        let execs = execs.clone();
        service_fn(move |_: Request<Full<Bytes>>| {
            let answer = match execs.add() {
                1 => Err(error),
                _ => Ok(Answered::default()),
            };
            async { answer }
        })
    };
    let service = ServiceBuilder::new().layer(layer).service(fails_once);
    assert_eq!(ask(service.clone(), "k").await.unwrap_err(), error);
    let second = ask(service, "k").await.unwrap();
    match execs.count() {
        1 => second.assert_problem(409, "outcome-unknown"),
        _ => second.assert_first(200),
    }
    execs.count() == 2
}

#[tokio::test]
async fn an_error_is_unknown_unless_the_application_says_that_nothing_ran() {
    use ChargeError::{NoAnswer, NotSent};
    assert!(!runs_again(layer(), NotSent).await);
    let classified = || {
        layer().with_error_classifier(|error: &ChargeError| match error {
            NotSent => Disposition::Release,
            NoAnswer => Disposition::Unknown,
        })
    };
    assert!(runs_again(classified(), NotSent).await);
    assert!(!runs_again(classified(), NoAnswer).await);
    // There is no answer that could be kept.
    let kept = layer().with_error_classifier(|_: &ChargeError| Disposition::KeepFailure);
    assert!(!runs_again(kept, NotSent).await);
    // What is said of another type does not count.
    let other = layer().with_error_classifier(|_: &BoxError| Disposition::Release);
    assert!(!runs_again(other, NotSent).await);
}

#[tokio::test(start_paused = true)]
async fn row_62_a_timeout_that_answers_408_after_the_effect_leaves_it_unknown() {
    let app = App::routing(|execs| {
        let execs = execs.clone();
        let slow = async move || {
            execs.add();
            sleep(5 * SECOND).await;
        };
        let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, SECOND);
        Router::new()
            .route("/orders", post(slow))
            .layer(timeout)
            .layer(layer())
    });
    app.send(Call::order()).await.assert_first(408);
    let second = app.send(Call::order()).await;
    second.assert_problem(409, "outcome-unknown");
    assert_eq!(app.execs(), 1);
}

async fn panics(app: &App) -> bool {
    let app = app.clone();
    let call = tokio::spawn(async move { app.send(Call::order()).await });
    call.await.is_err_and(|e| e.is_panic())
}

#[tokio::test]
async fn a_panic_reaches_the_caller_and_is_unknown_unless_the_policy_says_otherwise() {
    let failing = |n: usize| {
        assert!(n > 1, "the first execution fails");
        StatusCode::CREATED.into_response()
    };
    let app = App::answering(layer(), failing);
    assert!(panics(&app).await);
    for _ in 0..2 {
        let answer = app.send(Call::order()).await;
        answer.assert_problem(409, "outcome-unknown");
    }
    assert_eq!(app.execs(), 1);
    let released = layer().with_policy(policy().with_on_panic(OnPanic::Release));
    let app = App::answering(released, failing);
    assert!(panics(&app).await);
    app.send(Call::order()).await.assert_first(201);
}
