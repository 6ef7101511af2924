//! A payment provider that honours keys, slow and busy as it is told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Json, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

#[derive(Clone, Default)]
pub(crate) struct Provider(Arc<Mutex<Ledger>>);

#[derive(Default)]
pub(crate) struct Ledger {
    /// What each key was answered: the charge, or none where the card was declined.
    pub(crate) by_key: HashMap<String, Option<Value>>,
    /// How often each key was sent, and not answered by 503.
    pub(crate) asked: HashMap<String, u32>,
    /// One answer in so many is 503, with nothing done.
    pub(crate) busy: Option<u32>,
    /// The longest pause, before or after a charge.
    pub(crate) slow: Duration,
    /// Charges, and does not answer, so often.
    pub(crate) silent: u32,
}

impl Provider {
    /// Starts it, and answers the URL of its charges.
    pub(crate) async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/charges", listener.local_addr().unwrap());
        let app = Router::new()
            .route("/charges", post(charge))
            .route("/charges/{key}", get(find))
            .with_state(self.clone());
        tokio::spawn(axum::serve(listener, app).into_future());
        url
    }

    pub(crate) fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.0.lock().unwrap()
    }

    /// The charges that were made, each with its key.
    pub(crate) fn made(&self) -> HashMap<String, Value> {
        let ledger = self.ledger();
        let made = ledger.by_key.iter();
        made.filter_map(|(key, made)| Some((key.clone(), made.clone()?)))
            .collect()
    }

    async fn pause(&self) {
        let slow = self.ledger().slow;
        if !slow.is_zero() {
            tokio::time::sleep(slow.mul_f64(fastrand::f64())).await;
        }
    }

    /// Whether it answers, after it did what is asked once.
    fn work(&self, key: &str, payment: &Value) -> Option<Response> {
        let mut ledger = self.ledger();
        if ledger
            .busy
            .is_some_and(|one_in| fastrand::u32(0..one_in) == 0)
        {
            return Some(StatusCode::SERVICE_UNAVAILABLE.into_response());
        }
        *ledger.asked.entry(key.into()).or_default() += 1;
        let number = ledger.by_key.len();
        let made = || match payment["card"].as_str() {
            Some("tok_declined") => None,
            _ => Some(json!({ "charge": format!("ch_{number}"), "cents": payment["cents"] })),
        };
        let made = ledger.by_key.entry(key.into()).or_insert_with(made).clone();
        if ledger.silent > 0 {
            ledger.silent -= 1;
            return None;
        }
        Some(match made {
            Some(charge) => (StatusCode::CREATED, Json(charge)).into_response(),
            None => StatusCode::PAYMENT_REQUIRED.into_response(),
        })
    }
}

async fn charge(
    State(provider): State<Provider>,
    fields: HeaderMap,
    Json(payment): Json<Value>,
) -> Response {
    let key = fields["idempotency-key"].to_str().unwrap();
    provider.pause().await;
    let answer = provider.work(key, &payment);
    provider.pause().await;
    match answer {
        Some(answer) => answer,
        None => std::future::pending().await,
    }
}

async fn find(State(provider): State<Provider>, Path(key): Path<String>) -> Response {
    match provider.made().get(&key) {
        Some(charge) => Json(charge).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
