//! `semel demo`: a small shop to try the gateway on.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::routing::post;
use clap::ArgMatches;
use serde_json::json;
use tokio::net::TcpListener;

use super::{FAILED, MISUSED, block_on, fail, stop_signal};
use crate::FENCE;
use crate::config::values;

struct Shop {
    delay: Duration,
    orders: Mutex<Orders>,
}

struct Orders {
    count: u64,
    ledger: Option<File>,
}

/// Runs the shop until a signal stops it.
pub fn main(flags: &ArgMatches) -> ExitCode {
    let text = |name| flags.get_one::<String>(name).map(String::as_str);
    let delay = match values::duration(text("delay").unwrap_or("0s")) {
        Ok(delay) => delay,
        Err(error) => return fail(MISUSED, format_args!("error: --delay: {error}")),
    };
    let orders = match text("ledger").map(|path| Orders::open(Path::new(path))) {
        None => Orders {
            count: 0,
            ledger: None,
        },
        Some(Ok(orders)) => orders,
        Some(Err(error)) => return fail(MISUSED, format_args!("error: --ledger: {error}")),
    };
    let shop = Arc::new(Shop {
        delay,
        orders: Mutex::new(orders),
    });
    let address = text("listen").unwrap_or_default().to_owned();
    block_on(async move {
        match run(shop, &address).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(FAILED, format_args!("error: {address}: {error}")),
        }
    })
}

async fn run(shop: Arc<Shop>, address: &str) -> io::Result<()> {
    let stopped = stop_signal()?;
    let listener = TcpListener::bind(address).await?;
    writeln!(
        io::stderr(),
        "a shop listens on http://{}: POST /orders places one, GET /orders counts them",
        listener.local_addr()?
    )?;
    let router = Router::new()
        .route("/orders", post(place).get(count))
        .with_state(shop);
    axum::serve(listener, router)
        .with_graceful_shutdown(stopped)
        .await
}

async fn place(State(shop): State<Arc<Shop>>, headers: HeaderMap) -> Response<Body> {
    tokio::time::sleep(shop.delay).await;
    let fence = headers.get(FENCE).and_then(|fence| fence.to_str().ok());
    let placed = {
        let mut orders = shop.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.place(fence)
    };
    match placed {
        Ok(id) => {
            let mut response = answer(StatusCode::CREATED, &json!({ "id": id, "fence": fence }));
            if let Ok(location) = format!("/orders/{id}").try_into() {
                response.headers_mut().insert(header::LOCATION, location);
            }
            response
        }
        Err(error) => answer(
            StatusCode::INTERNAL_SERVER_ERROR,
            &json!({ "error": error.to_string() }),
        ),
    }
}

async fn count(State(shop): State<Arc<Shop>>) -> Response<Body> {
    let orders = shop.orders.lock().unwrap_or_else(PoisonError::into_inner);
    answer(StatusCode::OK, &json!({ "orders": orders.count }))
}

fn answer(status: StatusCode, value: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{value}\n")));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

impl Orders {
    /// Goes on with the orders that are in the ledger, one per line.
    fn open(path: &Path) -> io::Result<Self> {
        let ledger = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(path)?;
        let count = BufReader::new(&ledger).lines().count() as u64;
        Ok(Self {
            count,
            ledger: Some(ledger),
        })
    }

    fn place(&mut self, fence: Option<&str>) -> io::Result<u64> {
        let id = self.count + 1;
        if let Some(ledger) = &mut self.ledger {
            writeln!(ledger, "{}", json!({ "id": id, "fence": fence }))?;
            ledger.sync_data()?;
        }
        self.count = id;
        Ok(id)
    }
}
