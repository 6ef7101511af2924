//! The claim API beside the library on a store of the same kind, and how soon those who wait are told.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use semel::store::{Nonce, Retention};
use semel::{AnyStore, Store as _};
use semel_bench_load::{key, workers};
use semel_bench_report::{Goal, Measurement};
use semel_testkit::servers::{Kind, start};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::semel::{self as program, Semel};
use crate::callers::rate;
use crate::client::{Target, Wire};
use crate::disk;
use crate::run::{Run, progress};
use crate::server::{Application, Server};
use crate::stores;

const CALLERS: [(&str, usize); 2] = [("1-caller", 1), ("32-callers", 32)];
const WAITERS: usize = 1000;

pub(super) fn measure(run: &Run) -> Result<()> {
    for store in ["file", "postgres"] {
        let pairs =
            CALLERS.map(|(name, callers)| (format!("gateway/claims/{store}/{name}"), callers));
        let wake = format!("gateway/claims/{store}/wake-{WAITERS}");
        if !run.wants(&wake) && !pairs.iter().any(|(name, _)| run.wants(name)) {
            continue;
        }
        let (folder, beside) = (disk::directory()?, disk::directory()?);
        // Of its own for each: a `file:` store is open in one process.
        let (server, urls) = match store {
            "postgres" => {
                let server = start(Kind::Postgres)?;
                let url = server.url();
                (Some(server), [url.clone(), url])
            }
            _ => {
                let url = |folder: &tempfile::TempDir| {
                    format!("file:{}", folder.path().join("semel").display())
                };
                (None, [url(&folder), url(&beside)])
            }
        };
        let upstream = Server::start(Application::Plain)?;
        let gateway = Semel::start(&program::program()?, upstream.address, &urls[0], &[])?;
        let api = Target::plain(gateway.admin);
        let runtime = workers();
        let library = runtime.block_on(stores::open(&urls[1]))?;
        let next = Cell::new(0);
        for (name, callers) in pairs.iter().filter(|(name, _)| run.wants(name)) {
            let (mut ours, mut reference) = (Vec::new(), Vec::new());
            for round in 1..=run.rounds() {
                progress(format_args!("{name}: round {round}"));
                let mut from = next.get();
                ours.push(runtime.block_on(through(&api, *callers, run.turn(), &mut from))?);
                reference.push(runtime.block_on(within(
                    &library,
                    *callers,
                    run.turn(),
                    &mut from,
                ))?);
                next.set(from);
            }
            Measurement::new(name, "claims and completions/s", ours)
                .against("the library", &reference)
                .print();
        }
        if run.wants(&wake) {
            let rounds = 1..=run.rounds();
            let times = rounds.map(|round| {
                progress(format_args!("{wake}: round {round}"));
                runtime.block_on(woken(&api, &format!("waited-for-{round}")))
            });
            Measurement::new(&wake, "ms", times.collect::<Result<_>>()?)
                .goal(Some(Goal::ValueBelow(100.0)))
                .print();
        }
        runtime.block_on(library.close())?;
        drop((gateway, server));
    }
    Ok(())
}

/// Callers who each claim and complete over a connection of their own.
async fn through(api: &Target, callers: usize, time: Duration, next: &mut usize) -> Result<f64> {
    let mut wires = Vec::new();
    for _ in 0..callers {
        wires.push(Mutex::new(Wire::open(api).await?));
    }
    let wires: Arc<[_]> = wires.into();
    rate(callers, time, next, move |caller, index| {
        let wires = Arc::clone(&wires);
        async move {
            let mut wire = wires[caller].lock().await;
            let (id, token) = acquire(&mut wire, &key(index)).await?;
            complete(&mut wire, &id, &token).await
        }
    })
    .await
}

async fn within(store: &AnyStore, callers: usize, time: Duration, next: &mut usize) -> Result<f64> {
    let store = store.clone();
    rate(callers, time, next, move |_, index| {
        let store = store.clone();
        async move { stores::pair(&store, index, Retention::ORDER).await }
    })
    .await
}

/// Milliseconds from the moment a completion is sent until the last of those who wait for it has its
/// outcome.
async fn woken(api: &Target, key: &str) -> Result<f64> {
    let mut holder = Wire::open(api).await?;
    let (id, token) = acquire(&mut holder, key).await?;
    let mut waiters = Vec::new();
    for _ in 0..WAITERS {
        let mut wire = Wire::open(api).await?;
        let request = claim(key, "1m");
        waiters.push(tokio::spawn(async move {
            wire.post("/v1/claims", &request).await?;
            anyhow::Ok(Instant::now())
        }));
    }
    // All of them wait by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    complete(&mut holder, &id, &token).await?;
    let mut last = began;
    for waiter in waiters {
        last = last.max(waiter.await??);
    }
    Ok((last - began).as_secs_f64() * 1000.0)
}

fn claim(key: &str, wait: &str) -> String {
    json!({"operation": "place_order", "key": key, "payload": "an order", "wait": wait}).to_string()
}

/// As clients do: with a nonce.
async fn acquire(wire: &mut Wire, key: &str) -> Result<(String, String)> {
    let nonce = Nonce::random()?;
    let nonce: String = nonce
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let request =
        json!({"operation": "place_order", "key": key, "payload": "an order", "nonce": nonce})
            .to_string();
    let told: Value = serde_json::from_slice(wire.post("/v1/claims", &request).await?)?;
    let member = |name: &str| {
        let member = told[name].as_str().map(str::to_owned);
        member.with_context(|| format!("no {name} in {told}"))
    };
    Ok((member("id")?, member("token")?))
}

async fn complete(wire: &mut Wire, id: &str, token: &str) -> Result<()> {
    let answer = String::from_utf8(semel_bench_load::answer(0))?;
    let request = json!({"token": token, "outcome": {"text": answer}}).to_string();
    wire.post(&format!("/v1/claims/{id}/complete"), &request)
        .await?;
    Ok(())
}
