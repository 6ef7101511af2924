//! A handler's effects and its answer in one transaction, on PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Router};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use semel::guard::{Policy, TransactOptions};
use semel::store::{ListQuery, Nonce, OnLost};
use semel::transaction::Isolation;
use semel::{StateKind, Store as _};
use semel_stores::postgres::tokio_postgres::{Client, Error, NoTls, connect};
use semel_stores::{PostgresOptions, PostgresStore, PostgresTransaction, Schema};
use semel_testkit::servers::{Kind, shared};
use semel_tower::{CommitFailure, IdempotencyLayer, InTransaction, RunAgain, TransactionHandle};
use tokio::sync::Barrier;
use tower::ServiceExt as _;

type Tx = InTransaction<PostgresTransaction>;
type Handle = Extension<TransactionHandle<PostgresTransaction>>;

struct Bench {
    url: String,
    store: Arc<PostgresStore>,
    records: String,
    effects: Arc<str>,
    look: Client,
}

async fn open(url: &str) -> Arc<PostgresStore> {
    let options = PostgresOptions::from_url(url).unwrap();
    let store = options.schema(Schema::Create).for_tests().open().await;
    Arc::new(store.unwrap())
}

fn offering(store: &Arc<PostgresStore>) -> IdempotencyLayer<Arc<PostgresStore>> {
    IdempotencyLayer::new(Arc::clone(store)).with_transactions(TransactOptions::default())
}

impl Bench {
    async fn new() -> Self {
        let nonce = Nonce::random().unwrap();
        let hex = hex::encode(nonce.as_bytes());
        let server = tokio::task::spawn_blocking(|| shared(Kind::Postgres)).await;
        let server = server.unwrap().unwrap();
        let (look, connection) = connect(&server, NoTls).await.unwrap();
        tokio::spawn(connection);
        let create = format!("CREATE TABLE e_{hex} (what text NOT NULL)");
        look.batch_execute(&create).await.unwrap();
        let url = format!("{server}?table=t_{hex}");
        Self {
            store: open(&url).await,
            url,
            records: format!("t_{hex}"),
            effects: format!("e_{hex}").into(),
            look,
        }
    }

    fn layer(&self, isolation: Isolation) -> IdempotencyLayer<Arc<PostgresStore>> {
        let options = TransactOptions::default().with_isolation(isolation);
        IdempotencyLayer::new(Arc::clone(&self.store)).with_transactions(options)
    }

    fn insert(&self) -> String {
        format!("INSERT INTO {} VALUES ($1)", self.effects)
    }

    async fn effects(&self) -> i64 {
        let sql = format!("SELECT count(*) FROM {}", self.effects);
        self.look.query_one(&sql, &[]).await.unwrap().get(0)
    }

    /// The transactions that wrote the rows of a table.
    async fn writers(&self, table: &str) -> Vec<String> {
        let sql = format!("SELECT xmin::text FROM {table}");
        let rows = self.look.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn records(&self, state: StateKind) -> usize {
        let page = self.store.list(&ListQuery::new(state)).await.unwrap();
        page.entries.len()
    }
}

async fn send(app: &Router, path: &str, key: Option<&str>) -> (StatusCode, bool, Response) {
    let mut request = Request::post(path);
    if let Some(key) = key {
        request = request.header("Idempotency-Key", format!("\"{key}\""));
    }
    let request = request.body(Body::from("3 apples")).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let replayed = response.headers().contains_key("idempotency-replayed");
    let (head, body) = response.into_parts();
    (
        head.status,
        replayed,
        Response::from_parts(head, Body::new(body)),
    )
}

async fn text(response: Response) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.into()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_is_committed_with_the_effect() {
    let bench = Bench::new().await;
    let insert = bench.insert();
    let order = move |tx: Tx| async move {
        tx.execute(&insert, &[&"apples"]).await.unwrap();
        (StatusCode::CREATED, "order 1")
    };
    let fails = {
        let insert = bench.insert();
        move |tx: Tx| async move {
            tx.execute(&insert, &[&"apples"]).await.unwrap();
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    let app: Router = Router::new()
        .route("/orders", post(order))
        .route("/fails", post(fails))
        .route("/plain", post(|| async { "no transaction" }))
        .layer(bench.layer(Isolation::default()));
    for seen in [false, true] {
        let (status, replayed, answer) = send(&app, "/orders", Some("order")).await;
        assert_eq!((status, replayed), (StatusCode::CREATED, seen));
        assert_eq!(text(answer).await, "order 1");
        assert_eq!(bench.effects().await, 1);
    }
    for _ in 0..2 {
        let (status, replayed, _) = send(&app, "/fails", Some("fails")).await;
        assert_eq!(
            (status, replayed),
            (StatusCode::INTERNAL_SERVER_ERROR, false)
        );
    }
    assert_eq!(bench.effects().await, 1);
    assert_eq!(bench.records(StateKind::Released).await, 1);
    for seen in [false, true] {
        let (status, replayed, answer) = send(&app, "/plain", Some("plain")).await;
        assert_eq!((status, replayed), (StatusCode::OK, seen));
        assert_eq!(text(answer).await, "no transaction");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_in_conflict_run_again() {
    let bench = Bench::new().await;
    let (count, insert) = (
        format!("SELECT count(*) FROM {}", bench.effects),
        bench.insert(),
    );
    let met = Arc::new(Barrier::new(2));
    let order = move |tx: Tx| {
        let (count, insert, met) = (count.clone(), insert.clone(), Arc::clone(&met));
        async move {
            let again = tx.info().retry;
            let work = async {
                let seen: i64 = tx.query_one(&count, &[]).await?.get(0);
                if again == 0 {
                    met.wait().await;
                }
                if seen == 0 {
                    tx.execute(&insert, &[&"the only one"]).await?;
                }
                Ok::<_, Error>(seen)
            };
            match work.await {
                Ok(seen) => format!("{seen} {again}").into_response(),
                Err(error) if error.code().is_some_and(|code| code.code() == "40001") => {
                    (Extension(RunAgain), StatusCode::SERVICE_UNAVAILABLE).into_response()
                }
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }
    };
    let app: Router = Router::new()
        .route("/orders", post(order))
        .layer(bench.layer(Isolation::Serializable));
    let (a, b) = tokio::join!(
        send(&app, "/orders", Some("a")),
        send(&app, "/orders", Some("b"))
    );
    let mut answers = [text(a.2).await, text(b.2).await];
    answers.sort();
    assert_eq!(answers[0], "0 0");
    assert!(
        answers[1].starts_with("1 ") && answers[1] != "1 0",
        "{answers:?}"
    );
    assert_eq!(bench.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_transaction_and_a_second_one_are_refused() {
    let bench = Bench::new().await;
    let insert = bench.insert();
    let kept = Arc::new(std::sync::Mutex::new(None));
    let keep = Arc::clone(&kept);
    let keeps = move |Extension(handle): Handle| async move {
        let tx = handle.begin().await.unwrap();
        assert!(handle.begin().await.is_err());
        tx.execute(&insert, &[&"apples"]).await.unwrap();
        *keep.lock().unwrap() = Some(tx);
        "done"
    };
    let app: Router = Router::new()
        .route("/keeps", post(keeps))
        .layer(bench.layer(Isolation::default()));
    let (status, _, answer) = send(&app, "/keeps", Some("k")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text(answer).await.contains("Nothing was committed"));
    drop(kept.lock().unwrap().take());
    assert_eq!(bench.effects().await, 0);
    assert_eq!(bench.records(StateKind::Released).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_too_large_to_keep_is_committed_before_it_goes_out() {
    let bench = Bench::new().await;
    let insert = bench.insert();
    let large = move |tx: Tx| async move {
        tx.execute(&insert, &[&"apples"]).await.unwrap();
        drop(tx);
        "x".repeat(100_000)
    };
    let app: Router = Router::new().route("/large", post(large)).layer(
        bench
            .layer(Isolation::default())
            .with_max_response_body(1000),
    );
    let (status, _, answer) = send(&app, "/large", Some("k")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        (
            bench.records(StateKind::Completed).await,
            bench.effects().await
        ),
        (1, 1)
    );
    assert_eq!(text(answer).await.len(), 100_000);
    let (_, replayed, answer) = send(&app, "/large", Some("k")).await;
    assert!(replayed && answer.headers().contains_key("idempotency-body-omitted"));
}

async fn call_panics(app: &Router, path: &'static str) -> bool {
    let app = app.clone();
    let call = tokio::spawn(async move { send(&app, path, Some("k")).await });
    call.await.is_err_and(|error| error.is_panic())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_rolls_back_and_without_a_key_there_is_no_transaction() {
    let bench = Bench::new().await;
    let (insert, runs) = (bench.insert(), Arc::new(AtomicU32::new(0)));
    let panics = move |tx: Option<Tx>| async move {
        let Some(tx) = tx else { return "no key" };
        tx.execute(&insert, &[&"apples"]).await.unwrap();
        assert!(runs.fetch_add(1, Ordering::Relaxed) > 0, "in the middle");
        "done"
    };
    let app: Router = Router::new()
        .route("/panics", post(panics))
        .layer(bench.layer(Isolation::default()));
    assert_eq!(text(send(&app, "/panics", None).await.2).await, "no key");
    assert!(call_panics(&app, "/panics").await);
    assert_eq!(bench.effects().await, 0);
    assert_eq!(text(send(&app, "/panics", Some("k")).await.2).await, "done");
    assert_eq!(bench.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_releases_where_the_transaction_was_begun() {
    // Nothing was lost: what the policy says of that does not count.
    let hold = Policy::default().with_on_lost(OnLost::Hold);
    let mut seen = Vec::new();
    for policy in [Policy::default(), hold] {
        let bench = Bench::new().await;
        let (insert, runs) = (bench.insert(), Arc::new(AtomicU32::new(0)));
        let begins = move |tx: Tx| async move {
            tx.execute(&insert, &[&"apples"]).await.unwrap();
            assert!(runs.fetch_add(1, Ordering::Relaxed) > 0, "in the middle");
        };
        let app: Router = Router::new()
            .route("/begins", post(begins))
            .layer(offering(&bench.store).with_policy(policy));
        assert!(call_panics(&app, "/begins").await);
        assert_eq!(bench.effects().await, 0);
        let released = bench.records(StateKind::Released).await;
        let (status, ..) = send(&app, "/begins", Some("k")).await;
        seen.push((released, status, bench.effects().await));
    }
    assert_eq!(seen, [(1, StatusCode::OK, 1); 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_unknown_where_the_transaction_was_not_begun() {
    let bench = Bench::new().await;
    let runs = Arc::new(AtomicU32::new(0));
    let ran = Arc::clone(&runs);
    let elsewhere = move |_: Handle| async move {
        ran.fetch_add(1, Ordering::Relaxed);
        panic!("after an effect elsewhere");
        #[expect(unreachable_code, reason = "says what is answered")]
        ""
    };
    let app: Router = Router::new()
        .route("/elsewhere", post(elsewhere))
        .layer(offering(&bench.store));
    assert!(call_panics(&app, "/elsewhere").await);
    for _ in 0..2 {
        let (status, _, answer) = send(&app, "/elsewhere", Some("k")).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(text(answer).await.contains("outcome-unknown"));
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_failure_rolls_back_and_is_replayed() {
    let bench = Bench::new().await;
    let runs = Arc::new(AtomicU32::new(0));
    let refuse = |status: StatusCode| {
        let (insert, runs) = (bench.insert(), Arc::clone(&runs));
        move |tx: Tx| async move {
            let run = runs.fetch_add(1, Ordering::Relaxed);
            tx.execute(&insert, &[&"apples"]).await.unwrap();
            (status, format!("refused in run {run}"))
        }
    };
    let app: Router = Router::new()
        .route("/409", post(refuse(StatusCode::CONFLICT)))
        .route("/422", post(refuse(StatusCode::UNPROCESSABLE_ENTITY)))
        .layer(bench.layer(Isolation::default()));
    for (nth, path) in ["/409", "/422"].into_iter().enumerate() {
        for seen in [false, true] {
            let (status, replayed, answer) = send(&app, path, Some(path)).await;
            assert_eq!(status.as_str(), &path[1..]);
            assert_eq!(replayed, seen);
            assert_eq!(text(answer).await, format!("refused in run {nth}"));
            assert_eq!(bench.effects().await, 0);
        }
        assert_eq!(bench.records(StateKind::Completed).await, nth + 1);
    }
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_says_so_is_committed_with_its_effects() {
    let bench = Bench::new().await;
    let insert = bench.insert();
    let refuses = move |tx: Tx| async move {
        tx.execute(&insert, &[&"a try to count"]).await.unwrap();
        (StatusCode::CONFLICT, Extension(CommitFailure), "sold out")
    };
    let app: Router = Router::new()
        .route("/orders", post(refuses))
        .layer(bench.layer(Isolation::default()));
    for seen in [false, true] {
        let (status, replayed, answer) = send(&app, "/orders", Some("k")).await;
        assert_eq!((status, replayed), (StatusCode::CONFLICT, seen));
        assert_eq!(text(answer).await, "sold out");
        assert_eq!(bench.effects().await, 1);
        assert_eq!(bench.records(StateKind::Completed).await, 1);
    }
    // By one transaction.
    let effects = bench.writers(&bench.effects).await;
    assert_eq!(effects, bench.writers(&bench.records).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_with_a_transaction_refuses_a_request_without_a_key() {
    let bench = Bench::new().await;
    let runs = Arc::new(AtomicU32::new(0));
    let ran = Arc::clone(&runs);
    let handler = move |_: Tx| async move {
        ran.fetch_add(1, Ordering::Relaxed);
    };
    let plain: Router = Router::new().route("/orders", post(handler));
    let app = plain.clone().layer(bench.layer(Isolation::default()));
    let (status, replayed, answer) = send(&app, "/orders", None).await;
    assert_eq!((status, replayed), (StatusCode::BAD_REQUEST, false));
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&text(answer).await).unwrap();
    assert_eq!(problem["code"], "missing-key");
    let (status, ..) = send(&plain, "/orders", Some("k")).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    assert_eq!(
        send(&app, "/orders", Some("k")).await.0,
        StatusCode::OK,
        "with a key it runs"
    );
}

/// Handlers that begin a transaction or do not, and do not end: the process does.
fn hanging(bench: &Bench, store: &Arc<PostgresStore>, begun: mpsc::Sender<()>) -> Router {
    let insert = bench.insert();
    let first = begun.clone();
    let takes = move |tx: Tx| async move {
        tx.execute(&insert, &[&"lost"]).await.unwrap();
        first.send(()).unwrap();
        std::future::pending::<()>().await;
    };
    let leaves = move |_: Handle| async move {
        begun.send(()).unwrap();
        std::future::pending::<()>().await;
    };
    Router::new()
        .route("/takes", post(takes))
        .route("/leaves", post(leaves))
        .layer(offering(store).with_policy(short()))
}

fn short() -> Policy {
    Policy::default().with_lease(Duration::from_millis(300))
}

/// Asks until the lease of the lost attempt is over, by the server's clock.
async fn after_the_lease(app: &Router, path: &str) -> (StatusCode, String) {
    loop {
        let (status, _, answer) = send(app, path, Some(path)).await;
        let answer = text(answer).await;
        if !answer.contains("in-flight") {
            return (status, answer);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn of_what_died_with_its_process_only_a_begun_transaction_runs_again() {
    let looking = tokio::runtime::Runtime::new().unwrap();
    let bench = looking.block_on(Bench::new());
    let dying = tokio::runtime::Runtime::new().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let app = dying.block_on(async { hanging(&bench, &open(&bench.url).await, begun) });
    for path in ["/takes", "/leaves"] {
        let app = app.clone();
        dying.spawn(async move { drop(send(&app, path, Some(path)).await) });
        has_begun.recv_timeout(Duration::from_secs(30)).unwrap();
    }
    drop(app);
    // Its tasks end wherever they are, and its connections with them.
    dying.shutdown_background();

    let left = Arc::new(AtomicU32::new(0));
    let (insert, leaving) = (bench.insert(), Arc::clone(&left));
    let takes = move |tx: Tx| async move {
        tx.execute(&insert, &[&"apples"]).await.unwrap();
        "order 1"
    };
    let leaves = move |_: Handle| async move {
        leaving.fetch_add(1, Ordering::Relaxed);
    };
    let app: Router = Router::new()
        .route("/takes", post(takes))
        .route("/leaves", post(leaves))
        .layer(offering(&bench.store).with_policy(short()));
    looking.block_on(async {
        let ran = after_the_lease(&app, "/takes").await;
        assert_eq!(ran, (StatusCode::OK, "order 1".to_owned()));
        let (_, replayed, _) = send(&app, "/takes", Some("/takes")).await;
        assert!(replayed);
        assert_eq!(bench.effects().await, 1);
        for _ in 0..2 {
            let (status, answer) = after_the_lease(&app, "/leaves").await;
            assert_eq!(status, StatusCode::CONFLICT);
            assert!(answer.contains("outcome-unknown"), "{answer}");
        }
        assert_eq!(left.load(Ordering::Relaxed), 0);
    });
}
