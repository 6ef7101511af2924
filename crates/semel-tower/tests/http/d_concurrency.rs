//! D. Concurrency and crash (rows 36 to 43 and 45; 44 belongs to transactional stores).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::response::IntoResponse as _;
use http::StatusCode;
use semel::guard::{Finding, Guard, OnStoreError};
use semel::store::{
    ClaimRequest, Fenced, ListQuery, Nonce, OnLost, Resolution, Retention, Store as _,
    StoreExt as _, Verdict,
};
use semel::{Outcome, OutcomeKind, StateKind};
use semel_tower::{Disposition, IdempotencyLayer, Preset};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::conventions::http_date;
use crate::support::{Answer, App, Call, Memory, clocked, layer, layer_over, order_record, policy};

const SECOND: Duration = Duration::from_secs(1);

/// Orders that take this long.
fn slow(layer: IdempotencyLayer<Memory>, takes: Duration) -> App {
    App::running(layer, move |n| async move {
        sleep(takes).await;
        (StatusCode::CREATED, format!("order {n}")).into_response()
    })
}

/// Duplicates wait this long.
fn waiting(layer: IdempotencyLayer<Memory>, at_most: Duration) -> IdempotencyLayer<Memory> {
    layer.with_policy(policy().with_wait(at_most))
}

async fn all_at_once(apps: [&App; 2], calls: usize) -> Vec<Answer> {
    let mut running = JoinSet::new();
    for n in 0..calls {
        let app = apps[n % 2].clone();
        running.spawn(async move { app.send(Call::order()).await });
    }
    running.join_all().await
}

#[tokio::test(start_paused = true)]
async fn row_36_of_many_at_once_one_runs_and_the_others_are_refused() {
    let store = Memory::default();
    let apps = [(); 2].map(|()| slow(layer_over(&store), SECOND));
    let answers = all_at_once([&apps[0], &apps[1]], 50).await;
    assert_eq!(apps[0].execs() + apps[1].execs(), 1);
    assert_eq!(answers.iter().filter(|a| a.status == 201).count(), 1);
    for answer in answers.iter().filter(|a| a.status != 201) {
        answer.assert_problem(409, "in-flight");
    }
}

#[tokio::test(start_paused = true)]
async fn row_36_or_all_wait_for_the_one_answer() {
    let store = Memory::default();
    let apps = [(); 2].map(|()| slow(waiting(layer_over(&store), 5 * SECOND), SECOND));
    let answers = all_at_once([&apps[0], &apps[1]], 50).await;
    assert_eq!(apps[0].execs() + apps[1].execs(), 1);
    assert_eq!(answers.iter().filter(|a| a.is_replay()).count(), 49);
    assert!(
        answers
            .iter()
            .all(|a| a.status == 201 && a.body == answers[0].body)
    );
}

/// Sends a call, and returns once its handler has started.
async fn start(app: &App, call: Call) -> tokio::task::JoinHandle<Answer> {
    let before = app.execs();
    let running = {
        let app = app.clone();
        tokio::spawn(async move { app.send(call).await })
    };
    while app.execs() == before {
        tokio::task::yield_now().await;
    }
    running
}

#[tokio::test(start_paused = true)]
async fn row_37_in_flight_is_409_with_whole_seconds_to_wait() {
    for lease in [Duration::from_millis(100), 30 * SECOND] {
        let app = slow(layer().with_policy(policy().with_lease(lease)), 5 * SECOND);
        let first = start(&app, Call::order()).await;
        let second = app.send(Call::order()).await;
        second.assert_problem(409, "in-flight");
        assert_eq!(second.header("retry-after"), Some("1"));
        first.await.unwrap().assert_first(201);
    }
}

#[tokio::test(start_paused = true)]
async fn row_38_another_payload_in_flight_is_a_mismatch_at_once() {
    let app = slow(waiting(layer(), 10 * SECOND), 5 * SECOND);
    let first = start(&app, Call::order()).await;
    let asked = Instant::now();
    app.send(Call::order().body("other"))
        .await
        .assert_problem(422, "mismatch");
    assert_eq!(asked.elapsed(), Duration::ZERO);
    first.await.unwrap().assert_first(201);
    assert_eq!(app.execs(), 1);
}

#[tokio::test(start_paused = true)]
async fn row_39_waiting_is_bounded() {
    let app = slow(waiting(layer(), SECOND), 5 * SECOND);
    let first = start(&app, Call::order()).await;
    let asked = Instant::now();
    app.send(Call::order())
        .await
        .assert_problem(409, "in-flight");
    assert!(
        (SECOND..SECOND * 2).contains(&asked.elapsed()),
        "{:?}",
        asked.elapsed()
    );
    first.await.unwrap().assert_first(201);
    assert_eq!(app.execs(), 1);
}

#[tokio::test(start_paused = true)]
async fn row_39_waiters_of_a_failure_run_one_at_a_time() {
    let running = Arc::new(AtomicUsize::new(0));
    let app = App::running(waiting(layer(), 60 * SECOND), move |n| {
        let running = Arc::clone(&running);
        async move {
            assert_eq!(
                running.fetch_add(1, Ordering::SeqCst),
                0,
                "two attempts at once"
            );
            sleep(SECOND).await;
            running.fetch_sub(1, Ordering::SeqCst);
            if n < 3 {
                StatusCode::INTERNAL_SERVER_ERROR
            } else {
                StatusCode::CREATED
            }
            .into_response()
        }
    });
    let answers = all_at_once([&app, &app], 50).await;
    assert_eq!(app.execs(), 3);
    assert_eq!(answers.iter().filter(|a| a.status == 500).count(), 2);
    assert_eq!(answers.iter().filter(|a| a.is_replay()).count(), 47);
}

/// An application whose n-th execution waits for a permit of its own.
fn gated<S: semel::Store>(layer: IdempotencyLayer<S>) -> (App, Arc<[Semaphore; 2]>) {
    let gates = Arc::new([Semaphore::new(0), Semaphore::new(0)]);
    let held = Arc::clone(&gates);
    let app = App::running(layer, move |n| {
        let gates = Arc::clone(&held);
        async move {
            drop(gates[n - 1].acquire().await);
            (StatusCode::CREATED, format!("order {n}")).into_response()
        }
    });
    (app, gates)
}

#[tokio::test]
async fn row_40_a_stale_owner_overwrites_nothing_and_replays_the_winner() {
    let (store, clock) = clocked();
    let layer = IdempotencyLayer::new(store).with_policy(policy().with_on_lost(OnLost::Retry));
    let (app, gates) = gated(layer);
    let stale = start(&app, Call::order()).await;
    // The store's clock runs away from the attempt, as after a long pause of its process.
    clock.advance(60 * SECOND);
    gates[1].add_permits(1);
    let winner = app.send(Call::order()).await;
    winner.assert_first(201);
    assert_eq!(winner.text(), "order 2");
    gates[0].add_permits(1);
    stale.await.unwrap().assert_replay_of(&winner);
    app.send(Call::order()).await.assert_replay_of(&winner);
}

#[tokio::test]
async fn row_40_a_stale_owner_that_ends_first_is_told_that_nothing_was_recorded() {
    let (store, clock) = clocked();
    let layer = IdempotencyLayer::new(store).with_policy(policy().with_on_lost(OnLost::Retry));
    let (app, gates) = gated(layer);
    let stale = start(&app, Call::order()).await;
    clock.advance(60 * SECOND);
    let winner = start(&app, Call::order()).await;
    gates[0].add_permits(1);
    stale.await.unwrap().assert_problem(409, "outcome-unknown");
    gates[1].add_permits(1);
    let winner = winner.await.unwrap();
    winner.assert_first(201);
    app.send(Call::order()).await.assert_replay_of(&winner);
}

#[tokio::test]
async fn row_40_a_stale_owner_never_replays_the_answer_to_another_request() {
    let (store, clock) = clocked();
    let (app, gates) = gated(IdempotencyLayer::new(Arc::clone(&store)));
    let stale = start(&app, Call::order()).await;
    clock.advance(60 * SECOND);
    app.send(Call::order())
        .await
        .assert_problem(409, "outcome-unknown");
    let (identity, _) = order_record();
    let entry = store.get(identity.digest()).await.unwrap().unwrap();
    let resolution = Resolution {
        verdict: Verdict::DidNotHappen,
        by: "operator".into(),
        reason: "looked into the ledger too early".into(),
        fence: entry.record.token.fence,
        nonce: Nonce::random().unwrap(),
    };
    let resolved = store.resolve(identity.digest(), &resolution).await.unwrap();
    assert_eq!(resolved, Fenced::Applied);
    gates[1].add_permits(1);
    app.send(Call::order().body("other"))
        .await
        .assert_first(201);
    gates[0].add_permits(1);
    stale.await.unwrap().assert_problem(409, "outcome-unknown");
}

#[tokio::test(start_paused = true)]
async fn row_41_a_long_handler_keeps_its_lease() {
    let policy = policy()
        .with_lease(2 * SECOND)
        .with_retention(Retention::new(SECOND));
    let layer = layer().with_policy(policy);
    let app = slow(layer, 10 * SECOND);
    let first = start(&app, Call::order()).await;
    for wait in [3, 2, 4] {
        sleep(wait * SECOND).await;
        app.send(Call::order())
            .await
            .assert_problem(409, "in-flight");
    }
    let first = first.await.unwrap();
    first.assert_first(201);
    app.send(Call::order()).await.assert_replay_of(&first);
    assert_eq!(app.execs(), 1);
}

#[tokio::test(start_paused = true)]
async fn row_42_a_client_that_goes_away_stops_nothing() {
    let layer = layer();
    let app = slow(layer.clone(), 5 * SECOND);
    let gone = start(&app, Call::order()).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    app.send(Call::order())
        .await
        .assert_problem(409, "in-flight");
    layer.drain().await;
    let retry = app.send(Call::order()).await;
    assert!(retry.is_replay());
    assert_eq!((retry.text(), app.execs()), ("order 1", 1));
}

/// A claim of a process that crashed: nobody settles it.
async fn crashed(store: &Memory) {
    let (identity, fingerprint) = order_record();
    let request = ClaimRequest::new(Nonce::random().unwrap(), fingerprint, 30 * SECOND);
    store.claim(&identity, &request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn row_43_after_a_crash_the_outcome_is_unknown_and_nothing_runs() {
    let store = Memory::default();
    crashed(&store).await;
    let app = App::orders(layer_over(&store));
    app.send(Call::order())
        .await
        .assert_problem(409, "in-flight");
    sleep(31 * SECOND).await;
    for _ in 0..2 {
        app.send(Call::order())
            .await
            .assert_problem(409, "outcome-unknown");
    }
    app.send(Call::order().body("other"))
        .await
        .assert_problem(422, "mismatch");
    assert_eq!(app.execs(), 0);
}

#[tokio::test(start_paused = true)]
async fn row_43_unless_the_policy_is_to_run_again() {
    let store = Memory::default();
    crashed(&store).await;
    let app = App::orders(layer_over(&store).with_policy(policy().with_on_lost(OnLost::Retry)));
    sleep(31 * SECOND).await;
    app.send(Call::order()).await.assert_first(201);
    assert!(app.send(Call::order()).await.is_replay());
    assert_eq!(app.execs(), 1);
}

struct AskTheLedger;

impl semel::guard::Reconciler for AskTheLedger {
    fn reconcile<'a>(&'a self, _: &'a semel::guard::Case<'_>) -> semel::guard::Answered<'a> {
        let outcome = Outcome::builder(OutcomeKind::Success)
            .code(201)
            .body(b"order 7");
        Box::pin(std::future::ready(Ok(Finding::Happened(outcome).into())))
    }
}

#[tokio::test(start_paused = true)]
async fn row_43_or_to_ask_a_reconciler() {
    let store = Memory::default();
    crashed(&store).await;
    let guard = Guard::builder(Arc::clone(&store))
        .policy(policy().with_on_lost(OnLost::Reconcile))
        .reconciler(Arc::new(AskTheLedger));
    let app = App::orders(IdempotencyLayer::new(guard.build()));
    sleep(31 * SECOND).await;
    let answer = app.send(Call::order()).await;
    assert_eq!(
        (answer.status, answer.text(), answer.is_replay()),
        (201, "order 7", true)
    );
    assert_eq!(app.execs(), 0);
}

/// With a convention that takes requests from clocks that are ahead, for as long as an answer that came by
/// itself.
#[tokio::test]
async fn row_43_what_a_reconciler_knows_outlasts_its_requests() {
    let store = Memory::default();
    let guard = Guard::builder(Arc::clone(&store))
        .policy(policy().with_on_lost(OnLost::Reconcile))
        .reconciler(Arc::new(AskTheLedger))
        .build();
    let layer = IdempotencyLayer::new(guard).with_preset(Preset::Oasis);
    let app = App::answering(layer, |_| {
        axum::Extension(Disposition::Unknown).into_response()
    });
    let now = http_date(Duration::ZERO);
    let send = || {
        let call = Call::new(http::Method::POST, "/orders")
            .header("repeatability-request-id", "order-4711")
            .header("repeatability-first-sent", &now);
        app.send(call)
    };
    send().await.assert_first(200);
    let answer = send().await;
    assert_eq!((answer.status, answer.text()), (201, "order 7"));
    let page = store.list(&ListQuery::new(StateKind::Completed)).await;
    let record = &page.unwrap().entries[0].record;
    let kept = record.settled_at.unwrap().until(record.expires_at);
    let ahead = Duration::from_mins(5);
    assert_eq!(kept, policy().retention().replay + ahead);
}

/// Says what it was asked about, and nothing of what happened.
#[derive(Default)]
struct Clueless(std::sync::Mutex<Vec<Option<String>>>);

impl semel::guard::Reconciler for Clueless {
    fn reconcile<'a>(&'a self, case: &'a semel::guard::Case<'_>) -> semel::guard::Answered<'a> {
        self.0.lock().unwrap().push(case.about.map(str::to_owned));
        Box::pin(std::future::ready(Ok(Finding::StillUnknown.into())))
    }
}

#[tokio::test(start_paused = true)]
async fn row_43_who_may_not_know_either() {
    let store = Memory::default();
    crashed(&store).await;
    let clueless = Arc::new(Clueless::default());
    let options = semel::guard::ReconcileOptions::in_line().with_attempts(2);
    let guard = Guard::builder(Arc::clone(&store))
        .policy(policy().with_on_lost(OnLost::Reconcile))
        .reconciler(clueless.clone())
        .reconcile_options(options);
    let app = App::orders(IdempotencyLayer::new(guard.build()));
    sleep(31 * SECOND).await;
    let answer = app.send(Call::order()).await;
    answer.assert_problem(409, "outcome-unknown");
    let asked = clueless.0.lock().unwrap().clone();
    assert_eq!(asked, [(); 2].map(|()| Some("POST /orders".to_owned())));
    assert_eq!(app.execs(), 0);
}

#[tokio::test]
async fn row_43_a_handler_may_say_that_it_does_not_know() {
    let app = App::answering(layer(), |_| {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            axum::Extension(Disposition::Unknown),
        )
            .into_response()
    });
    app.send(Call::order()).await.assert_first(500);
    app.send(Call::order())
        .await
        .assert_problem(409, "outcome-unknown");
    assert_eq!(app.execs(), 1);
}

#[tokio::test]
async fn row_45_without_the_store_nothing_runs() {
    let store = Memory::default();
    store.close().await.unwrap();
    let app = App::orders(layer_over(&store));
    let answer = app.send(Call::order()).await;
    answer.assert_problem(503, "store-unavailable");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(app.execs(), 0);
    // Un-keyed requests do not need it.
    app.send(Call::new(http::Method::PUT, "/orders"))
        .await
        .assert_first(201);
}

/// It answers: that it takes no more.
#[tokio::test]
async fn row_45_a_closed_store_refuses_whatever_the_policy_is() {
    let store = Memory::default();
    store.close().await.unwrap();
    let app = App::orders(
        layer_over(&store).with_policy(policy().with_on_store_error(OnStoreError::FailOpen)),
    );
    let answer = app.send(Call::order()).await;
    answer.assert_problem(503, "store-unavailable");
    assert_eq!(app.execs(), 0);
}

/// The store fails between the claim and the completion.
fn losing_the_store(store: &Memory, layer: IdempotencyLayer<Memory>) -> App {
    let store = Arc::clone(store);
    App::running(layer, move |n| {
        let store = Arc::clone(&store);
        async move {
            store.close().await.unwrap();
            (StatusCode::CREATED, format!("order {n}")).into_response()
        }
    })
}

#[tokio::test]
async fn row_45_an_answer_that_was_not_recorded_is_never_passed_off_as_recorded() {
    let store = Memory::default();
    let app = losing_the_store(&store, layer_over(&store));
    let answer = app.send(Call::order()).await;
    answer.assert_problem(503, "store-unavailable");
    assert!(
        answer.text().contains("The operation ran"),
        "{}",
        answer.text()
    );
    let store = Memory::default();
    let app = losing_the_store(
        &store,
        layer_over(&store).with_policy(policy().with_on_store_error(OnStoreError::FailOpen)),
    );
    let answer = app.send(Call::order()).await;
    answer.assert_first(201);
    assert_eq!(answer.header("idempotency-protected"), Some("false"));
}

#[tokio::test]
async fn the_handler_knows_its_attempt() {
    use axum::extract::Extension;
    use axum::routing::post;
    use semel::Identity;
    use semel_tower::AttemptInfo;
    let app = App::routing(|execs| {
        let execs = execs.clone();
        let handler = async move |Extension(attempt): Extension<AttemptInfo>,
                                  Extension(identity): Extension<Identity>| {
            let status = if execs.add() == 1 { 503 } else { 200 };
            let status = StatusCode::from_u16(status).unwrap();
            let (number, fence, digest) = (attempt.number, attempt.fence, identity.digest());
            (status, format!("{number} {fence} {digest}")).into_response()
        };
        axum::Router::new()
            .route("/orders", post(handler))
            .layer(layer())
    });
    let numbers: Vec<_> = [app.send(Call::order()).await, app.send(Call::order()).await]
        .iter()
        .map(|a| a.text().split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert_eq!((&*numbers[0][0], &*numbers[1][0]), ("1", "2"));
    let fence = |of: usize| numbers[of][1].parse::<u64>().unwrap();
    assert!(fence(0) < fence(1));
    assert_eq!(numbers[0][2], numbers[1][2]);
}
