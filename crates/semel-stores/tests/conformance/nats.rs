//! A bucket of its own for every case, on one node and on three.

use std::time::Duration;

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel::store::Nonce;
use semel_stores::{NatsOptions, Schema};
use semel_testkit::servers::{Kind, shared};

use super::trials;

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("nats", Nats(Kind::Nats));
    all.extend(trials("nats/cluster", Nats(Kind::NatsCluster)));
    all
}

#[derive(Clone, Copy)]
struct Nats(Kind);

impl Factory for Nats {
    async fn open(&self) -> Result<Bench, Failure> {
        let url = shared(self.0).map_err(|e| Failure::new(format!("{e:#}")))?;
        let name = hex::encode(Nonce::random()?.as_bytes());
        let url = url.replace("/semel?", &format!("/case_{name}?"));
        let options = NatsOptions::from_url(&url).map_err(|e| Failure::new(e.to_string()))?;
        let options = options.schema(Schema::Create).for_tests();
        let open = async || {
            let store = options.open().await;
            store.map_err(|e| Failure::new(e.to_string()))
        };
        let (store, other) = (open().await?, open().await?);
        let bench = Bench::new(store).with_other(other).exclusive();
        Ok(match self.0 {
            // A handle takes its time to be earlier by as long as its first answer took, which in a
            // cluster are several trips between busy nodes.
            Kind::NatsCluster => bench.with_margin(Duration::from_millis(200)),
            _ => bench,
        })
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}
