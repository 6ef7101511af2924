//! How much may run and be held at once, and what does not need to wait for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use semel::store::{ListQuery, OnLost, Retention};
use semel::{StateKind, Store as _};
use semel_tower::{IdempotencyLayer, Rate, ScopeLimits};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use crate::support::{Answer, App, Call, Execs, Memory, clocked, layer, layer_over, policy};

const SECOND: Duration = Duration::from_secs(1);

/// Orders that are placed once the gate is opened for them.
fn gated(layer: IdempotencyLayer<Memory>) -> (App, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&gate);
    let app = App::running(layer, move |n| {
        let gate = Arc::clone(&waiting);
        async move {
            gate.acquire().await.unwrap().forget();
            (StatusCode::CREATED, format!("order {n}")).into_response()
        }
    });
    (app, gate)
}

fn with_key(key: &str) -> Call {
    Call::post("/orders").key(key)
}

/// Sends a call, and returns once its handler has started.
async fn start(app: &App, call: Call) -> JoinHandle<Answer> {
    let before = app.execs();
    let running = sent(app, call);
    while app.execs() == before {
        tokio::task::yield_now().await;
    }
    running
}

/// Sends a call, and gives it the time to get somewhere.
fn sent(app: &App, call: Call) -> JoinHandle<Answer> {
    let app = app.clone();
    tokio::spawn(async move { app.send(call).await })
}

#[tokio::test(start_paused = true)]
async fn the_inner_services_room_is_not_held_while_a_body_comes_in() {
    let execs = Execs::default();
    let counting = {
        let execs = execs.clone();
        service_fn(move |_: Request<Body>| {
            execs.add();
            async { Ok::<_, Infallible>(Response::new(Body::empty())) }
        })
    };
    let service = ServiceBuilder::new()
        .layer(layer())
        .concurrency_limit(1)
        .service(counting);
    let (mut rest, slow) = Channel::<Bytes>::new(1);
    let slow = with_key("slow").request_with(Body::new(slow));
    let slow = tokio::spawn(service.clone().oneshot(slow));
    tokio::time::sleep(SECOND).await;
    let other = timeout(SECOND, service.oneshot(with_key("other").request())).await;
    assert_eq!(other.unwrap().unwrap().status(), StatusCode::OK);
    let last = Frame::data(Bytes::from_static(b"3 apples"));
    rest.send(last).await.unwrap();
    drop(rest);
    assert_eq!(slow.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(execs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn nor_while_a_duplicate_waits() {
    let (gate, execs) = (Arc::new(Semaphore::new(0)), Execs::default());
    let waits = layer().with_policy(policy().with_wait(60 * SECOND));
    let gated = {
        let (gate, execs) = (Arc::clone(&gate), execs.clone());
        service_fn(move |request: Request<Body>| {
            let gate = Arc::clone(&gate);
            let first = execs.add() == 1;
            async move {
                drop(request);
                if first {
                    gate.acquire().await.unwrap().forget();
                }
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        })
    };
    let service = ServiceBuilder::new()
        .layer(waits)
        .concurrency_limit(2)
        .service(gated);
    let ask = |key| {
        let answer = service.clone().oneshot(with_key(key).request());
        tokio::spawn(async move { Answer::of(answer.await.unwrap().map(Body::new)).await })
    };
    let first = ask("first");
    tokio::time::sleep(SECOND).await;
    let duplicate = ask("first");
    tokio::time::sleep(SECOND).await;
    timeout(SECOND, ask("other"))
        .await
        .unwrap()
        .unwrap()
        .assert_first(200);
    gate.add_permits(1);
    first.await.unwrap().assert_first(200);
    assert!(duplicate.await.unwrap().is_replay());
    assert_eq!(execs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn at_the_bound_new_keys_are_refused_before_the_claim_and_known_ones_answered() {
    let store = Memory::default();
    let (app, gate) = gated(layer_over(&store).with_max_attempts(1));
    gate.add_permits(1);
    let done = app.send(with_key("done")).await;
    done.assert_first(201);
    let running = start(&app, with_key("running")).await;

    let refused = app.send(with_key("new")).await;
    refused.assert_problem(503, "overloaded");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(
        store
            .list(&ListQuery::new(StateKind::InFlight))
            .await
            .unwrap()
            .entries
            .len(),
        1
    );

    app.send(with_key("done")).await.assert_replay_of(&done);
    let duplicate = app.send(with_key("running")).await;
    duplicate.assert_problem(409, "in-flight");
    for known in ["done", "running"] {
        let other = app.send(with_key(known).body("other")).await;
        other.assert_problem(422, "mismatch");
    }
    // Neither safe methods nor requests without a key are attempts.
    let unkeyed = start(&app, Call::new(http::Method::PUT, "/orders")).await;
    gate.add_permits(2);
    running.await.unwrap().assert_first(201);
    unkeyed.await.unwrap().assert_first(201);
    gate.add_permits(1);
    app.send(with_key("new")).await.assert_first(201);
}

#[tokio::test(start_paused = true)]
async fn at_the_bound_nothing_is_replayed_that_has_expired() {
    let retention = Retention::new(SECOND).with_tombstone(3600 * SECOND);
    let (app, gate) = gated(
        layer()
            .with_policy(policy().with_retention(retention))
            .with_max_attempts(1),
    );
    gate.add_permits(1);
    app.send(with_key("done")).await.assert_first(201);
    tokio::time::sleep(2 * SECOND).await;
    app.send(with_key("done"))
        .await
        .assert_problem(409, "expired");
    let _running = start(&app, with_key("running")).await;
    app.send(with_key("done"))
        .await
        .assert_problem(409, "expired");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_leaves_its_attempt_among_those_that_run() {
    let (app, gate) = gated(layer().with_max_attempts(1));
    let gone = start(&app, with_key("gone")).await;
    gone.abort();
    gone.await.unwrap_err();
    app.send(with_key("new"))
        .await
        .assert_problem(503, "overloaded");
    gate.add_permits(2);
    while app.send(with_key("gone")).await.status != 201 {
        tokio::task::yield_now().await;
    }
    app.send(with_key("new")).await.assert_first(201);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_waits_is_no_attempt() {
    let waits = policy().with_wait(60 * SECOND);
    let (app, gate) = gated(layer().with_policy(waits).with_max_attempts(2));
    let first = start(&app, with_key("first")).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(sent(&app, with_key("first")));
        tokio::time::sleep(SECOND).await;
    }
    let other = start(&app, with_key("other")).await;
    // Of those beyond the bound none waits.
    app.send(with_key("first"))
        .await
        .assert_problem(409, "in-flight");
    gate.add_permits(2);
    first.await.unwrap().assert_first(201);
    other.await.unwrap().assert_first(201);
    for duplicate in waiting {
        assert!(duplicate.await.unwrap().is_replay());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_kept_is_an_attempt_until_its_end() {
    // Too large, and of an operation that did not run.
    for status in [StatusCode::CREATED, StatusCode::SERVICE_UNAVAILABLE] {
        let (mut rest, large) = Channel::<Bytes>::new(1);
        let large = Arc::new(std::sync::Mutex::new(Some(large)));
        let layer = layer().with_max_response_body(2).with_max_attempts(1);
        let app = App::answering(layer, move |_| match large.lock().unwrap().take() {
            Some(body) => (status, Body::new(body)).into_response(),
            None => StatusCode::CREATED.into_response(),
        });
        let piece = || Frame::data(Bytes::from_static(b"3 apples"));
        rest.send(piece()).await.unwrap();
        let response = app.router.clone().oneshot(with_key("large").request());
        let response = response.await.unwrap();
        app.send(with_key("new"))
            .await
            .assert_problem(503, "overloaded");
        let written = tokio::spawn(async move { rest.send(piece()).await.unwrap() });
        response.into_body().collect().await.unwrap();
        written.await.unwrap();
        app.send(with_key("new")).await.assert_first(201);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_of_its_answer_holds_no_slot() {
    let (mut rest, large) = Channel::<Bytes>::new(1);
    let large = Arc::new(std::sync::Mutex::new(Some(large)));
    let layer = layer().with_max_response_body(2).with_max_attempts(1);
    let app = App::answering(layer, move |_| match large.lock().unwrap().take() {
        Some(body) => Body::new(body).into_response(),
        None => StatusCode::CREATED.into_response(),
    });
    let unread = tokio::spawn(app.router.clone().oneshot(with_key("large").request()));
    let writing = tokio::spawn(async move {
        for _ in 0..40 {
            let piece = Frame::data(Bytes::from_static(b"3 apples"));
            rest.send(piece).await.unwrap();
        }
    });
    let unread = unread.await.unwrap().unwrap();
    tokio::time::sleep(30 * SECOND).await;
    let new = || app.send(with_key("new"));
    new().await.assert_problem(503, "overloaded");
    tokio::time::sleep(40 * SECOND).await;
    // The rest is read without it, and it is not told that it got all.
    writing.await.unwrap();
    new().await.assert_first(201);
    let whole = timeout(3600 * SECOND, unread.into_body().collect()).await;
    assert!(whole.is_err());
}

#[tokio::test(start_paused = true)]
async fn at_the_bound_an_unknown_outcome_is_told_where_it_is_held() {
    for (on_lost, code) in [
        (OnLost::Hold, "outcome-unknown"),
        (OnLost::Retry, "overloaded"),
    ] {
        let layer = layer().with_policy(policy().with_on_lost(on_lost));
        let gate = Arc::new(Semaphore::new(0));
        let app = App::running(layer.with_max_attempts(1), move |n| {
            let gate = Arc::clone(&gate);
            async move {
                if n == 1 {
                    return StatusCode::GATEWAY_TIMEOUT.into_response();
                }
                gate.acquire().await.unwrap().forget();
                StatusCode::CREATED.into_response()
            }
        });
        app.send(with_key("lost")).await.assert_first(504);
        let _running = start(&app, with_key("running")).await;
        assert_eq!(app.send(with_key("lost")).await.code(), code);
    }
}

#[tokio::test(start_paused = true)]
async fn small_pieces_make_one_body() {
    let (mut pieces, body) = Channel::<Bytes>::new(1);
    let app = App::orders(layer());
    let call = with_key("pieces").request_with(Body::new(body));
    let answer = tokio::spawn(app.router.clone().oneshot(call));
    for size in [3, 1, 5000, 2, 1, 9000, 1] {
        let piece = Frame::data(Bytes::from(vec![b'x'; size]));
        pieces.send(piece).await.unwrap();
    }
    drop(pieces);
    assert_eq!(answer.await.unwrap().unwrap().status(), StatusCode::CREATED);
    let whole = "x".repeat(3 + 1 + 5000 + 2 + 1 + 9000 + 1);
    let again = app.send(with_key("pieces").body(whole)).await;
    assert!(again.is_replay(), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn bodies_are_held_up_to_a_bound() {
    let (app, gate) = gated(layer().with_max_body_memory(10));
    let running = start(&app, with_key("running").body("3 apples")).await;
    let refused = app.send(with_key("new").body("3 pears")).await;
    refused.assert_problem(503, "overloaded");
    let small = start(&app, with_key("small").body("1")).await;
    gate.add_permits(2);
    running.await.unwrap().assert_first(201);
    small.await.unwrap().assert_first(201);
    gate.add_permits(1);
    app.send(with_key("new").body("3 pears"))
        .await
        .assert_first(201);
    // What nobody waits for is given back.
    let (_rest, endless) = Channel::<Bytes>::new(1);
    let endless = with_key("endless").request_with(Body::new(endless));
    timeout(SECOND, app.router.clone().oneshot(endless))
        .await
        .unwrap_err();
    gate.add_permits(1);
    let whole = app.send(with_key("whole").body("0123456789")).await;
    whole.assert_first(201);
}

fn by(caller: &str, key: &str) -> Call {
    with_key(key).header("authorization", &format!("Bearer {caller}"))
}

#[tokio::test(start_paused = true)]
async fn row_80_new_keys_beyond_the_rate_of_a_scope_are_refused_and_what_is_known_is_answered() {
    let store = Memory::default();
    let limits = ScopeLimits::new().with_new_keys(Rate::per_second(4));
    let app = App::orders(layer_over(&store).with_scope_limits(limits));
    let first = app.send(by("one", "0")).await;
    first.assert_first(201);
    // Duplicates take nothing.
    for _ in 0..100 {
        app.send(by("one", "0")).await.assert_replay_of(&first);
        let other = by("one", "0").body("other");
        app.send(other).await.assert_problem(422, "mismatch");
    }
    for key in ["1", "2", "3"] {
        app.send(by("one", key)).await.assert_first(201);
    }
    for n in 4..10_000 {
        let refused = app.send(by("one", &n.to_string())).await;
        refused.assert_problem(429, "limit");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    assert_eq!((app.execs(), store.len()), (4, 4));
    for _ in 0..100 {
        app.send(by("one", "0")).await.assert_replay_of(&first);
        let other = by("one", "0").body("other");
        app.send(other).await.assert_problem(422, "mismatch");
    }
    app.send(by("two", "4")).await.assert_first(201);
    tokio::time::advance(SECOND / 4).await;
    app.send(by("one", "4")).await.assert_first(201);
    app.send(by("one", "5")).await.assert_problem(429, "limit");
}

/// The store's clock alone knows whether an answer's time is over: it is asked, at the bound too.
#[tokio::test(start_paused = true)]
async fn what_is_known_is_answered_where_tombstones_are_kept() {
    let (store, clock) = clocked();
    let retention = Retention::new(60 * SECOND).with_tombstone(60 * SECOND);
    let limits = ScopeLimits::new().with_new_keys(Rate::new(1, 3600 * SECOND));
    let layer = IdempotencyLayer::new(Arc::clone(&store))
        .with_policy(policy().with_retention(retention))
        .with_scope_limits(limits);
    let app = App::orders(layer);
    let first = app.send(with_key("known")).await;
    first.assert_first(201);
    app.send(with_key("new")).await.assert_problem(429, "limit");
    app.send(with_key("known")).await.assert_replay_of(&first);
    let other = with_key("known").body("other");
    app.send(other).await.assert_problem(422, "mismatch");
    clock.advance(60 * SECOND);
    assert_eq!(app.send(with_key("known")).await.code(), "expired");
    // Then it is new, and limited like others. What was claimed to learn that is given back.
    clock.advance(60 * SECOND);
    app.send(with_key("known"))
        .await
        .assert_problem(429, "limit");
    let held = store.list(&ListQuery::new(StateKind::InFlight)).await;
    assert_eq!((app.execs(), held.unwrap().entries.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn so_many_attempts_of_a_scope_run_at_once() {
    let limits = ScopeLimits::new().with_running(1);
    let waits = policy().with_wait(60 * SECOND);
    let (app, gate) = gated(layer().with_policy(waits).with_scope_limits(limits));
    let running = start(&app, by("one", "running")).await;
    let refused = app.send(by("one", "new")).await;
    refused.assert_problem(429, "limit");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Of those beyond the bound none waits.
    let duplicate = app.send(by("one", "running")).await;
    duplicate.assert_problem(409, "in-flight");
    let other = start(&app, by("two", "new")).await;
    gate.add_permits(3);
    running.await.unwrap().assert_first(201);
    other.await.unwrap().assert_first(201);
    app.send(by("one", "new")).await.assert_first(201);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_released_counts_again_and_what_is_kept_delays_the_next() {
    let kept = Rate::new(1024, 60 * SECOND);
    let limits = ScopeLimits::new()
        .with_new_keys(Rate::new(3, 60 * SECOND))
        .with_kept(kept);
    let app = App::answering(layer().with_scope_limits(limits), |n| match n {
        1 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        2 => StatusCode::CREATED.into_response(),
        _ => (StatusCode::CREATED, vec![b'x'; 2048]).into_response(),
    });
    app.send(with_key("released")).await.assert_first(503);
    app.send(with_key("released")).await.assert_first(201);
    app.send(with_key("large")).await.assert_first(201);
    app.send(with_key("new")).await.assert_problem(429, "limit");
    // One of three is free again after 20 s; what was kept takes longer.
    tokio::time::advance(30 * SECOND).await;
    let refused = app.send(with_key("new")).await;
    refused.assert_problem(429, "limit");
    let wait = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((20..60).contains(&wait), "{wait}");
    tokio::time::advance(Duration::from_secs(wait)).await;
    app.send(with_key("new")).await.assert_first(201);
    assert_eq!(app.execs(), 4);
}

/// However many come at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rate_is_never_exceeded() {
    let limits = ScopeLimits::new().with_new_keys(Rate::new(10, 3600 * SECOND));
    let app = App::orders(layer().with_scope_limits(limits));
    let mut orders = tokio::task::JoinSet::new();
    for n in 0..400 {
        let (app, call) = (app.clone(), by("one", &n.to_string()));
        orders.spawn(async move { app.send(call).await.status });
    }
    let answers = orders.join_all().await;
    assert_eq!(answers.iter().filter(|status| **status == 201).count(), 10);
    assert_eq!(answers.iter().filter(|status| **status == 429).count(), 390);
    assert_eq!(app.execs(), 10);
}
