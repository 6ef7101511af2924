//! A handler's effects and its answer in one transaction, on PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Router};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use semel::guard::TransactOptions;
use semel::store::{ListQuery, Nonce};
use semel::transaction::Isolation;
use semel::{StateKind, Store as _};
use semel_stores::postgres::tokio_postgres::{Client, Error, NoTls, connect};
use semel_stores::{PostgresOptions, PostgresStore, PostgresTransaction, Schema};
use semel_testkit::servers::{Kind, shared};
use semel_tower::{IdempotencyLayer, InTransaction, RunAgain, TransactionHandle};
use tokio::sync::Barrier;
use tower::ServiceExt as _;

type Tx = InTransaction<PostgresTransaction>;

struct Bench {
    store: Arc<PostgresStore>,
    effects: Arc<str>,
    look: Client,
}

impl Bench {
    async fn new() -> Self {
        let nonce = Nonce::random().unwrap();
        let hex: String = nonce
            .as_bytes()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let server = tokio::task::spawn_blocking(|| shared(Kind::Postgres)).await;
        let server = server.unwrap().unwrap();
        let (look, connection) = connect(&server, NoTls).await.unwrap();
        tokio::spawn(connection);
        let create = format!("CREATE TABLE e_{hex} (what text NOT NULL)");
        look.batch_execute(&create).await.unwrap();
        let options = PostgresOptions::from_url(&format!("{server}?table=t_{hex}")).unwrap();
        let store = options.schema(Schema::Create).for_tests().open().await;
        Self {
            store: Arc::new(store.unwrap()),
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
            let again = tx.info().again;
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
    let keeps = move |Extension(handle): Extension<TransactionHandle<PostgresTransaction>>| async move {
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
    let first = app.clone();
    let first = tokio::spawn(async move { send(&first, "/panics", Some("k")).await });
    assert!(first.await.unwrap_err().is_panic());
    assert_eq!(bench.effects().await, 0);
    assert_eq!(text(send(&app, "/panics", Some("k")).await.2).await, "done");
    assert_eq!(bench.effects().await, 1);
}
