//! Payments, made by a service elsewhere that honours keys.

use std::time::Duration;

use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde_json::json;

/// How often a payment is asked for before the attempt is given up.
const TRIES: u32 = 3;
/// How long the service may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// What the payment service said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// Paid, under this number.
    Paid(String),
    Declined,
}

/// Whether it was paid is not known. Asking again with the same key tells.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the payment service did not answer")]
    Lost(#[from] reqwest::Error),
    #[error("the payment service answered {0}")]
    Refused(StatusCode),
}

/// The way to the payment service.
#[derive(Debug, Clone)]
pub(crate) struct Payments {
    http: Client,
    charges: Url,
}

impl Payments {
    /// The service at `base`, as in `http://127.0.0.1:9090`.
    pub(crate) fn new(base: &Url) -> anyhow::Result<Self> {
        Ok(Self {
            http: Client::builder().timeout(PATIENCE).build()?,
            charges: base.join("/charges")?,
        })
    }

    /// Charges a card once, however often it is called with this key.
    pub(crate) async fn charge(&self, key: &str, cents: i64, card: &str) -> Result<Charge, Error> {
        let mut tries = 1;
        loop {
            match self.ask(key, cents, card).await {
                Ok(charge) => return Ok(charge),
                Err(error) if tries == TRIES => return Err(error),
                Err(error) => tracing::warn!(tries, "asking for the payment again: {error}"),
            }
            tokio::time::sleep(PAUSE * 2_u32.pow(tries)).await;
            tries += 1;
        }
    }

    async fn ask(&self, key: &str, cents: i64, card: &str) -> Result<Charge, Error> {
        #[derive(Deserialize)]
        struct Payment {
            id: String,
        }
        let request = self.http.post(self.charges.clone());
        let request = request.header("Idempotency-Key", format!("\"{key}\""));
        let charge = json!({ "cents": cents, "card": card });
        let answer = request.json(&charge).send().await?;
        match answer.status() {
            StatusCode::CREATED => Ok(Charge::Paid(answer.json::<Payment>().await?.id)),
            StatusCode::PAYMENT_REQUIRED => Ok(Charge::Declined),
            status => Err(Error::Refused(status)),
        }
    }
}
