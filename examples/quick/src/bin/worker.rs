//! Charges the jobs on standard input, a line of JSON each, at a provider that honours keys:
//! `echo '{"id":"job-1","card":"tok_1","cents":900}' | cargo run -p quick --bin quick-worker -- URL`.

use std::time::Duration;

use reqwest::{Client, RequestBuilder};
use semel::prelude::*;
use semel_stores::SqliteStore;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(serde::Serialize, serde::Deserialize)]
struct Job {
    id: String,
    card: String,
    cents: u64,
}

/// The key is the same in every attempt at a job: the provider charges once.
async fn charge(to: RequestBuilder, key: String, job: Job) -> Result<String, reqwest::Error> {
    let request = to.header("Idempotency-Key", key).json(&job);
    request.send().await?.error_for_status()?.text().await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let provider = std::env::args().nth(1).ok_or("the provider's URL?")?;
    // A provider that is silent must not hold a job for ever.
    let http = Client::builder().timeout(Duration::from_secs(30)).build()?;
    let store = SqliteStore::open("sqlite:worker.db?schema=create").await?;
    let guard = Guard::new(store, Policy::payment());
    guard.spawn_purger();
    for line in std::io::stdin().lines() {
        let job: Job = serde_json::from_str(&line?)?;
        let identity = Identity::new(Scope::new(["billing"]), "charge", Key::new(&job.id)?);
        let asked = Asked::new(identity, Fingerprint::of_json(&job)?).in_steps();
        let (id, to) = (job.id.clone(), http.post(&provider));
        let work = |mut attempt: Attempt<_>| async move {
            attempt
                .step("charge", |key| charge(to, key.to_string(), job))
                .await
        };
        match guard.run(asked, work).await {
            Ok(Done::Replayed(receipt)) => println!("{id}: charged before, {receipt}"),
            Ok(done) => println!("{id}: charged, {}", done.into_inner()),
            Err(error) if error.is_retryable() => println!("{id}: later: {error}"),
            Err(error) => println!("{id}: failed: {error}"),
        }
    }
    Ok(guard.close().await?)
}
