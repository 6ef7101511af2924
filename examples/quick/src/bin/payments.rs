//! Payments, each charged once: the program of `docs/payments.md`.

use std::{env, sync::Arc, time::Duration};

use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing::post};
use semel::guard::{Answered, Background, Case, Finding, Guard, Policy, Reconciler};
use semel_stores::{SqliteStore, SqliteTransaction, sqlite::rusqlite};
use semel_tower::{Disposition, IdempotencyLayer, OnLost, TransactOptions, TransactionHandle};
use tokio::signal::unix::{SignalKind, signal};
use tower_http::timeout::TimeoutLayer;

#[derive(serde::Serialize, serde::Deserialize)]
struct Payment {
    card: String,
    cents: i64,
}

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Charge {
    charge: String,
    cents: i64,
}

/// Why there is no charge. The status says what becomes of the key.
type Failure = (StatusCode, &'static str);
/// It lasts: kept, and replayed.
const DECLINED: Failure = (StatusCode::PAYMENT_REQUIRED, "the card was declined");
/// Nothing happened: the key is released, and the next request runs.
const BUSY: Failure = (StatusCode::SERVICE_UNAVAILABLE, "busy; try again");
/// Nobody knows: the outcome is unknown, until the policy or the reconciler decides.
const TIMED_OUT: Failure = (StatusCode::GATEWAY_TIMEOUT, "the provider did not answer");

/// The charge is made, and only its row is missing: unknown, and not free for another payment.
const UNWRITTEN: Failure = (StatusCode::INTERNAL_SERVER_ERROR, "paid; ask again");

/// The payment provider: charges once for each `Idempotency-Key`, and says what it did under one.
#[derive(Clone)]
struct Provider {
    http: reqwest::Client,
    charges: String,
    database: String,
}

impl Provider {
    async fn charge(&self, key: &str, payment: &Payment) -> Result<Charge, Failure> {
        let request = self.http.post(&self.charges).json(payment);
        let answer = request.header("Idempotency-Key", key).send().await;
        let answer = answer.map_err(|_| TIMED_OUT)?;
        match answer.status().as_u16() {
            201 => answer.json().await.map_err(|_| TIMED_OUT),
            402 => Err(DECLINED),
            503 => Err(BUSY),
            _ => Err(TIMED_OUT),
        }
    }
}

/// A row for each charge, whoever writes it down.
fn record(database: &rusqlite::Connection, id: &str, made: &Charge) -> rusqlite::Result<()> {
    let sql = "INSERT INTO payments VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    let row = (id, &made.charge, made.cents);
    database.execute(sql, row).map(drop)
}

fn created(made: &Charge) -> Response {
    (StatusCode::CREATED, Json(made)).into_response()
}

async fn pay(
    State(provider): State<Provider>,
    tx: TransactionHandle<SqliteTransaction>,
    Json(payment): Json<Payment>,
) -> Result<Response, Failure> {
    // The operation's name, the same in every attempt, is the provider's key.
    let id = tx.info().id.to_string();
    // First the step elsewhere: no lock is held while it takes its time.
    let made = provider.charge(&id, &payment).await?;
    let answer = created(&made);
    let mut tx = tx.begin().await.map_err(|_| UNWRITTEN)?;
    let recorded = tx.call(move |database| record(database, &id, &made)).await;
    // The layer commits the row together with this answer.
    recorded.map(|()| answer).map_err(|_| UNWRITTEN)
}

/// Finishes payments that nobody asks about any more: the client gave up, and the process died.
impl Reconciler for Provider {
    fn reconcile<'a>(&'a self, case: &'a Case<'_>) -> Answered<'a> {
        Box::pin(async move {
            let id = case.id.to_string();
            let answer = self
                .http
                .get(format!("{}/{id}", self.charges))
                .send()
                .await?;
            if answer.status() == StatusCode::NOT_FOUND {
                return Ok(Finding::StillUnknown.into()); // it may be on its way
            }
            let made: Charge = answer.error_for_status()?.json().await?;
            let (head, body) = created(&made).into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await?;
            let database = self.database.clone();
            let write = move || record(&rusqlite::Connection::open(database)?, &id, &made);
            tokio::task::spawn_blocking(write).await??;
            Ok(Finding::Happened(semel_tower::outcome_of_response(&head, Some(&body))).into())
        })
    }
}

fn setting(name: &str, otherwise: &str) -> String {
    env::var(name).unwrap_or(otherwise.into())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let provider = Provider {
        http: reqwest::Client::builder()
            .timeout(Duration::from_secs(2))
            .build()?,
        charges: setting("PROVIDER", "http://127.0.0.1:9090/charges"),
        database: setting("DATABASE", "payments.db"),
    };
    let database = &provider.database;
    let store = SqliteStore::open(&format!("sqlite:{database}?schema=create")).await?;
    let table =
        "CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, charge TEXT, cents INTEGER)";
    rusqlite::Connection::open(database)?.execute_batch(table)?;

    let lease = Duration::from_secs_f64(setting("LEASE", "30").parse()?);
    let guard = Guard::builder(store)
        // A lost attempt is run again: under the same key the provider charges nothing twice.
        .policy(
            Policy::payment()
                .with_lease(lease)
                .with_on_lost(OnLost::Retry),
        )
        .reconciler(Arc::new(provider.clone()))
        .build();
    guard.spawn_purger();
    let once = IdempotencyLayer::new(guard.clone())
        .with_operation("payment")
        .with_principal_header("x-account") // set by the service outside that authenticates
        .with_principal_required(true)
        .with_disposition(UNWRITTEN.0, Disposition::Unknown)
        .with_transactions(TransactOptions::default());
    let finishing = Background::new(guard.clone(), [("payment", once.policy())]);
    let finishing = tokio::spawn(finishing.run());

    // The time-out is outside the layer: the attempt finishes, and the retry gets its answer.
    let (status, patience) = (StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(10));
    let app = Router::new()
        .route("/payments", post(pay).layer(once))
        .layer(TimeoutLayer::with_status_code(status, patience))
        .with_state(provider);
    let listener = tokio::net::TcpListener::bind(setting("LISTEN", "127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    axum::serve(listener, app)
        .with_graceful_shutdown(async move { terminate.recv().await.unwrap_or_default() })
        .await?;
    finishing.abort();
    Ok(guard.close().await?)
}
