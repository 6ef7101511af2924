//! A payment service to try the orders API with. It takes no money, but it honours keys: what was
//! charged under a key is in its ledger before it is answered, and is answered again from there.
//!
//! `PUT /faults` makes it slow, makes it refuse, and makes it lose answers.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use clap::Parser;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;

/// A payment service that honours keys, takes no money, and fails when it is told to.
#[derive(Debug, Parser)]
#[command(name = "payments", version, max_term_width = 100)]
struct Args {
    /// Where the shop connects; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9090")]
    listen: String,
    /// Where charges are written down, one a line
    #[arg(long, value_name = "FILE", default_value = "payments.jsonl")]
    ledger: PathBuf,
}

/// Cards of this name have no money.
const DECLINED: &str = "tok_declined";

/// A line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    key: String,
    cents: i64,
    card: String,
    /// `None` where the card was declined.
    payment: Option<String>,
}

/// Every charge there was.
#[derive(Debug)]
struct Ledger {
    file: File,
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
}

impl Ledger {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let mut open = OpenOptions::new();
        let file = open.create(true).append(true).read(true).open(path)?;
        let mut entries = Vec::new();
        for line in BufReader::new(&file).lines() {
            entries.push(serde_json::from_str::<Entry>(&line?)?);
        }
        let keys = entries.iter().map(|entry| entry.key.clone());
        Ok(Self {
            by_key: keys.zip(0..).collect(),
            file,
            entries,
        })
    }

    /// The entry of this key: an earlier one, or this one from now on. And whether it is new.
    fn enter(&mut self, mut entry: Entry) -> anyhow::Result<(Entry, bool)> {
        if let Some(&at) = self.by_key.get(&entry.key) {
            return Ok((self.entries[at].clone(), false));
        }
        let paid = entry.card != DECLINED;
        entry.payment = paid.then(|| format!("pay_{:06}", self.entries.len() + 1));
        writeln!(self.file, "{}", serde_json::to_string(&entry)?)?;
        self.file.sync_data()?;
        self.by_key.insert(entry.key.clone(), self.entries.len());
        self.entries.push(entry.clone());
        Ok((entry, true))
    }
}

/// What goes wrong from now on.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Faults {
    /// How long an answer takes, once the charge is in the ledger.
    delay_ms: u64,
    /// So many requests are refused with 503, and charge nothing.
    fail: u32,
    /// After that the answers to so many new charges are lost on their way.
    drop: u32,
}

#[derive(Debug)]
struct Service {
    ledger: Mutex<Ledger>,
    faults: Mutex<Faults>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there is one left, and takes it.
fn take(count: &mut u32) -> bool {
    let some = *count > 0;
    *count = count.saturating_sub(1);
    some
}

#[derive(Debug, Deserialize)]
struct Charge {
    cents: i64,
    card: String,
}

async fn charge(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Json(charge): Json<Charge>,
) -> Result<Response, Failure> {
    let key = headers.get("idempotency-key").map(|key| key.to_str());
    let Some(Ok(key)) = key else {
        return Ok(refuse(StatusCode::BAD_REQUEST, "missing-key"));
    };
    if take(&mut lock(&service.faults).fail) {
        return Ok(refuse(StatusCode::SERVICE_UNAVAILABLE, "out-of-order"));
    }
    let asked = Entry {
        key: key.trim_matches('"').to_owned(),
        cents: charge.cents,
        card: charge.card,
        payment: None,
    };
    let (entry, new) = lock(&service.ledger).enter(asked.clone())?;
    if (entry.cents, &entry.card) != (asked.cents, &asked.card) {
        return Ok(refuse(StatusCode::UNPROCESSABLE_ENTITY, "mismatch"));
    }
    let delay = lock(&service.faults).delay_ms;
    tokio::time::sleep(Duration::from_millis(delay)).await;
    if new && take(&mut lock(&service.faults).drop) {
        let lost = std::io::Error::other("the answer is lost");
        let nothing = futures_util::stream::iter([Err::<&[u8], _>(lost)]);
        return Ok(Body::from_stream(nothing).into_response());
    }
    Ok(match entry.payment {
        Some(id) => {
            let paid = json!({ "id": id, "cents": entry.cents });
            (StatusCode::CREATED, Json(paid)).into_response()
        }
        None => refuse(StatusCode::PAYMENT_REQUIRED, "declined"),
    })
}

fn refuse(status: StatusCode, code: &str) -> Response {
    let body = json!({ "status": status.as_u16(), "code": code }).to_string();
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    (status, kind, body).into_response()
}

/// What went wrong unasked.
struct Failure(anyhow::Error);

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        tracing::error!("{:#}", self.0);
        refuse(StatusCode::INTERNAL_SERVER_ERROR, "ledger")
    }
}

async fn charges(State(service): State<Arc<Service>>) -> Json<Vec<Entry>> {
    Json(lock(&service.ledger).entries.clone())
}

async fn faults(State(service): State<Arc<Service>>, Json(faults): Json<Faults>) -> StatusCode {
    *lock(&service.faults) = faults;
    StatusCode::NO_CONTENT
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let ledger = Ledger::open(&args.ledger).context("--ledger")?;
    ensure!(
        ledger.by_key.len() == ledger.entries.len(),
        "--ledger: a key is in it twice"
    );
    let service = Service {
        ledger: Mutex::new(ledger),
        faults: Mutex::default(),
    };
    let router = Router::new()
        .route("/charges", post(charge))
        .route("/charges", get(charges))
        .route("/faults", put(faults))
        .with_state(Arc::new(service));
    let listener = TcpListener::bind(&args.listen).await.context("--listen")?;
    tracing::info!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}
