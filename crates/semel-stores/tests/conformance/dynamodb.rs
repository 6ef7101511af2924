//! DynamoDB, played by an emulator. Each case has a table of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel_stores::dynamodb::Purging;
use semel_stores::{DynamoDbOptions, DynamoDbStore, Schema};
use semel_testkit::servers::{Kind, shared};
use tempfile::TempDir;

use super::trials;

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("dynamodb", DynamoDb(Purging::Scan));
    // As it is unless asked for: DynamoDB removes records itself, some day.
    let mut by_ttl = trials("dynamodb/ttl", DynamoDb(Purging::Ttl));
    by_ttl.retain(|trial| trial.name().contains("::expiry::"));
    all.extend(by_ttl);
    all.extend(super::versioned::trials("dynamodb", versioned));
    all
}

#[derive(Clone, Copy)]
struct DynamoDb(Purging);

async fn versioned() -> Result<(DynamoDbStore, Option<TempDir>), Failure> {
    let options = DynamoDb(Purging::Ttl).options()?;
    Ok((options.schema(Schema::Create).open().await?, None))
}

impl DynamoDb {
    fn options(self) -> Result<DynamoDbOptions, Failure> {
        static TABLES: AtomicU64 = AtomicU64::new(0);
        let url = shared(Kind::DynamoDb).map_err(|e| Failure::new(format!("{e:#}")))?;
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        let table = format!("case-{}-{number}", std::process::id());
        let url = url.replacen("dynamodb://semel?", &format!("dynamodb://{table}?"), 1);
        let options = DynamoDbOptions::from_url(&url)
            .map_err(|e| Failure::new(e.to_string()))?
            .purging(self.0)
            // The emulator is slow, and has this machine's cores to share.
            .timeout(Duration::from_secs(30))
            .for_tests();
        Ok(options)
    }
}

impl Factory for DynamoDb {
    async fn open(&self) -> Result<Bench, Failure> {
        let options = self.options()?;
        let store = options.clone().schema(Schema::Create).open().await?;
        let other = options.open().await?;
        Ok(Bench::new(store)
            .with_other(other)
            // Time for the requests between a claim and the end of its lease.
            .with_short(Duration::from_millis(400))
            .with_rounds(3)
            .with_patience(Duration::from_secs(30))
            .exclusive())
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}
