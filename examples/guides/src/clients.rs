//! `docs/clients.md`.

use std::error::Error as StdError;

use http::Request;
use http::header::CONTENT_TYPE;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use semel_client::{Error, Intent, Outbox, Retry};

struct Biller {
    client: ClientWithMiddleware,
    outbox: Outbox,
    charges: String,
}

impl Biller {
    async fn start(charges: String, directory: &str) -> Result<Self, Box<dyn StdError>> {
        // Credentials belong here: the outbox keeps none. One `Retry` for each service.
        let plain = reqwest::Client::builder().build()?;
        let client = ClientBuilder::new(plain).with(Retry::new()).build();
        let outbox = Outbox::open(directory).await?;
        let biller = Self {
            client,
            outbox,
            charges,
        };
        // What the process before this one has begun.
        for intent in biller.outbox.pending() {
            if let Err(error) = biller.settle(&intent).await {
                println!("{}: {error}", intent.name());
            }
        }
        Ok(biller)
    }

    async fn charge(&self, invoice: &str, cents: u32) -> Result<(), Box<dyn StdError>> {
        let charge = |_: &_| {
            Request::post(&self.charges)
                .header(CONTENT_TYPE, "application/json")
                .body(format!(r#"{{"invoice": "{invoice}", "cents": {cents}}}"#))
        };
        // On disk, with its key, before anything is sent.
        let name = format!("{invoice}/charge");
        let intent = self.outbox.begin(&name, charge).await?;
        self.settle(&intent).await
    }

    async fn settle(&self, intent: &Intent) -> Result<(), Box<dyn StdError>> {
        match intent.send(&self.client).await {
            Ok(answer) => {
                println!("{}: {}", intent.name(), answer.status());
                // The answer was put to use; only now the intent is over.
                Ok(intent.finish().await?)
            }
            // It stays in the outbox, and its key with it.
            Err(error) if Error::of(&error).is_some_and(Error::is_unknown) => {
                println!("{}: somebody has to look", intent.name());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::routing::post;
    use semel::memory::MemoryStore;
    use semel_tower::IdempotencyLayer;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_was_begun_is_charged_once() {
        let charged = Arc::new(AtomicUsize::new(0));
        let count = charged.clone();
        let charge = post(async move || {
            count.fetch_add(1, Ordering::SeqCst);
            "charged"
        });
        let layer = IdempotencyLayer::new(MemoryStore::default());
        let app = Router::new().route("/charges", charge.layer(layer));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let charges = format!("http://{}/charges", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, app).await.unwrap() });

        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("outbox").display().to_string();
        let biller = Biller::start(charges.clone(), &directory).await.unwrap();
        let request = |_: &_| Request::post(&charges).body("300");
        let begun = biller
            .outbox
            .begin("invoice-4711/charge", request)
            .await
            .unwrap();
        // Sent, and the process died before it knew.
        begun.send(&biller.client).await.unwrap();
        drop((begun, biller));

        let biller = Biller::start(charges, &directory).await.unwrap();
        assert!(biller.outbox.pending().is_empty());
        assert_eq!(charged.load(Ordering::SeqCst), 1);
        biller.charge("invoice-4712", 500).await.unwrap();
        assert_eq!(charged.load(Ordering::SeqCst), 2);
    }
}
