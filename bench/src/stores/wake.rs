//! How long a waiter on another connection learns of a completion after it was acknowledged.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use semel::store::{Claim, Fenced, Retention, StoreExt as _, Waited};
use semel::{Fingerprint, Store as _};
use semel_bench_report::{Goal, Measurement, Spread};
use semel_testkit::servers::{Kind, start};

use super::open;
use crate::inputs::{identity, outcome, request};
use crate::run::{Run, progress};

pub(super) fn measure(run: &Run) -> Result<()> {
    // Those that push: the goal is theirs.
    for (kind, goal) in [
        (Kind::Postgres, Some(20.0)),
        (Kind::Redis, Some(20.0)),
        (Kind::RedisCluster, Some(20.0)),
        (Kind::Nats, Some(20.0)),
        (Kind::NatsCluster, Some(20.0)),
        (Kind::MariaDb, None),
    ] {
        let name = format!("stores/{}/wake", kind.name());
        if !run.wants(&name) {
            continue;
        }
        progress(&name);
        let server = start(kind)?;
        let runtime = semel_bench_load::workers();
        let times = runtime.block_on(wakes(&server.url(), run.size(60, 30)))?;
        // A round is some of them: one by itself says little.
        let rounds = times.chunks(times.len() / run.rounds());
        let medians = rounds.map(|round| Spread::of(round).median).collect();
        Measurement::new(&name, "ms", medians)
            .goal(goal.map(Goal::ValueBelow))
            .print();
    }
    Ok(())
}

async fn wakes(url: &str, rounds: usize) -> Result<Vec<f64>> {
    let (store, other) = (open(url).await?, open(url).await?);
    let mut times = Vec::new();
    for index in 0..rounds {
        let identity = identity(index);
        let claim = store
            .claim(&identity, &request(Fingerprint::of(b"an order")))
            .await?;
        let Claim::Acquired(acquired) = claim else {
            bail!("the key is not free");
        };
        let (waiting, digest) = (other.clone(), *identity.digest());
        let waiter = tokio::spawn(async move {
            let fence = acquired.token.fence;
            let waited = waiting
                .wait(&digest, fence, Duration::from_secs(30))
                .await?;
            ensure!(waited == Waited::Changed, "the waiter was not woken");
            Ok(Instant::now())
        });
        // By then it waits; and a poll's first, quick looks are over.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let outcome = outcome(index);
        let (digest, token) = (identity.digest(), &acquired.token);
        let done = store.complete(digest, token, &outcome, Retention::ORDER);
        ensure!(
            done.await? == Fenced::Applied,
            "the attempt is not completed"
        );
        let acknowledged = Instant::now();
        let woken = waiter.await??;
        times.push(woken.saturating_duration_since(acknowledged).as_secs_f64() * 1000.0);
    }
    store.close().await?;
    other.close().await?;
    Ok(times)
}
