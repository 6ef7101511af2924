//! What compression and encryption add to a completion and to a replay, in process.

use std::time::Instant;

use anyhow::{Context as _, Result};
use semel::memory::{Limits, MemoryStore};
use semel::sealed::{Keys, Sealed};
use semel::store::{Claim, Fenced, Nonce, Retention, Store, StoreExt as _};
use semel::{Fingerprint, Outcome};
use semel_bench_report::Measurement;

use crate::inputs::{identity, request};
use crate::run::{Run, progress};

const KEY: &str = "bench AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const SIZES: [(&str, usize); 3] = [("200-B", 200), ("4-KiB", 4 << 10), ("64-KiB", 64 << 10)];

/// Text gets smaller, from 1 KiB on; noise is encrypted as it is.
type Body = fn(usize) -> Result<Vec<u8>>;
const BODIES: [(&str, Body); 2] = [("text", text), ("noise", noise)];

pub(crate) fn measure(run: &Run) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    for (size_name, size) in SIZES {
        for (body_name, body) in BODIES {
            let names = ["complete", "replay"]
                .map(|operation| format!("sealed/{operation}/{size_name}/{body_name}"));
            if !names.iter().any(|name| run.wants(name)) {
                continue;
            }
            let outcome = Outcome::success(&body(size)?);
            let count = run.size(64 << 20, 8 << 20) / size.max(4 << 10);
            let (mut added, mut plain) = ([vec![], vec![]], [vec![], vec![]]);
            for round in 1..=run.rounds() {
                progress(format_args!(
                    "sealed {size_name} {body_name}: round {round}"
                ));
                let keys = Keys::parse(KEY).context("a key")?;
                let without = runtime.block_on(times(&memory(), &outcome, count))?;
                let with =
                    runtime.block_on(times(&Sealed::new(memory(), keys), &outcome, count))?;
                for place in 0..2 {
                    plain[place].push(without[place]);
                    added[place].push(with[place] - without[place]);
                }
            }
            for (name, (added, plain)) in names.iter().zip(added.into_iter().zip(plain)) {
                if run.wants(name) {
                    Measurement::new(name, "µs added", added)
                        .against("µs without", &plain)
                        .print();
                }
            }
        }
    }
    Ok(())
}

fn memory() -> MemoryStore {
    MemoryStore::new(Limits {
        records: 1 << 24,
        bytes: 1 << 36,
    })
}

/// Of a completion and of a replay, in µs.
async fn times(store: &impl Store, outcome: &Outcome, count: usize) -> Result<[f64; 2]> {
    let fingerprint = Fingerprint::of(b"an order");
    let mut claimed = Vec::with_capacity(count);
    for index in 0..count {
        let identity = identity(index);
        let claim = store.claim(&identity, &request(fingerprint)).await?;
        let Claim::Acquired(acquired) = claim else {
            anyhow::bail!("the key is free, not {claim:?}");
        };
        claimed.push((identity, acquired.token));
    }
    let each = |since: Instant| since.elapsed().as_secs_f64() * 1e6 / count as f64;
    let since = Instant::now();
    for (identity, token) in &claimed {
        let done = store.complete(identity.digest(), token, outcome, Retention::ORDER);
        assert_eq!(done.await?, Fenced::Applied);
    }
    let complete = each(since);
    let since = Instant::now();
    for (identity, _) in &claimed {
        let claim = store.claim(identity, &request(fingerprint)).await?;
        let Claim::Completed { outcome: kept, .. } = claim else {
            anyhow::bail!("the key is completed, not {claim:?}");
        };
        assert_eq!(kept.as_bytes().len(), outcome.as_bytes().len());
    }
    Ok([complete, each(since)])
}

/// Such as services answer.
fn text(size: usize) -> Result<Vec<u8>> {
    let lines = (0..).flat_map(|nth: usize| {
        let price = nth.wrapping_mul(2_654_435_761) % 100_000;
        format!("{{\"item\":{nth},\"price\":{price},\"currency\":\"EUR\"}},\n").into_bytes()
    });
    Ok(lines.take(size).collect())
}

/// What does not get smaller.
fn noise(size: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size + 16);
    while bytes.len() < size {
        bytes.extend_from_slice(Nonce::random()?.as_bytes());
    }
    bytes.truncate(size);
    Ok(bytes)
}
