//! Redis: a single server, and a Cluster.

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel::store::Nonce;
use semel_stores::RedisOptions;
use semel_testkit::servers::{self, Kind};

use super::trials;

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("redis", Redis(Kind::Redis));
    all.extend(trials("redis-cluster", Redis(Kind::RedisCluster)));
    all
}

#[derive(Clone, Copy)]
struct Redis(Kind);

impl Factory for Redis {
    async fn open(&self) -> Result<Bench, Failure> {
        let failed = |e: String| Failure::new(e);
        let url = servers::shared(self.0).map_err(|e| failed(format!("{e:#}")))?;
        // Nobody else has this prefix.
        let unique = u128::from_be_bytes(*Nonce::random()?.as_bytes());
        let options = RedisOptions::new()
            .prefix(format!("case:{unique:032x}:"))
            .for_tests();
        let store = options.clone().open(&url).await;
        let store = store.map_err(|e| failed(e.to_string()))?;
        let other = options.open(&url).await;
        let other = other.map_err(|e| failed(e.to_string()))?;
        let bench = Bench::new(store).with_other(other).exclusive();
        Ok(match self.0 {
            // Each master has a clock of its own, and a script sees one master.
            Kind::RedisCluster => bench.sharded(),
            _ => bench,
        })
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}
