//! Three nodes: leaders killed, nodes restarted and paused while callers go on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use semel::store::{Claim, Fenced, OnLost, Retention, Store as _, StoreExt as _, Token};
use semel::{Identity, Outcome, StoreErrorKind};
use semel_stores::NatsStore;
use semel_testkit::servers::{Nats, Node, Server as _};

use super::{LONG, identity, open, request, unique, with_bucket};

/// A fence and a nonce.
type Held = (u64, [u8; 16]);

/// What callers saw, checked as they go.
#[derive(Default)]
struct Ledger {
    /// Who acquired what, by identity, with fences.
    fences: Mutex<HashMap<usize, Vec<Held>>>,
    /// Completions that were acknowledged.
    done: Mutex<HashMap<usize, Vec<u8>>>,
    errors: Mutex<HashMap<String, usize>>,
}

impl Ledger {
    fn acquired(&self, n: usize, token: &Token) {
        let held = (token.fence.0, *token.nonce.as_bytes());
        let mut fences = self.fences.lock();
        let fences = fences.entry(n).or_default();
        if !fences.contains(&held) {
            assert!(
                fences.iter().all(|(fence, _)| *fence != held.0),
                "one fence, two holders"
            );
            fences.push(held);
        }
    }

    fn completed(&self, n: usize, outcome: &[u8]) {
        let earlier = self.done.lock().insert(n, outcome.to_vec());
        assert!(
            earlier.is_none_or(|e| e == outcome),
            "two completions of {n}"
        );
    }

    fn failed(&self, step: &str, kind: StoreErrorKind) {
        use StoreErrorKind::{Contended, NotApplied, Unknown};
        let typed = matches!(kind, NotApplied | Contended | Unknown);
        assert!(typed, "{step} failed with {kind:?}");
        *self
            .errors
            .lock()
            .entry(format!("{step} {kind:?}"))
            .or_default() += 1;
    }
}

/// Claims and completes one identity, repeating what failed, until somebody's outcome is seen.
async fn once(store: &NatsStore, n: usize, identity: &Identity, ledger: &Ledger, on: &AtomicBool) {
    let mut asked = semel::store::ClaimRequest {
        on_lost: OnLost::Hold,
        ..request(LONG)
    };
    while on.load(Ordering::SeqCst) {
        match store.claim(identity, &asked).await {
            Ok(Claim::Acquired(won)) => {
                ledger.acquired(n, &won.token);
                let body = won.token.fence.0.to_be_bytes();
                let outcome = Outcome::success(&body);
                loop {
                    let retention = Retention::new(LONG);
                    let done = store.complete(identity.digest(), &won.token, &outcome, retention);
                    match done.await {
                        Ok(Fenced::Applied) => {
                            ledger.completed(n, &body);
                            return;
                        }
                        Ok(Fenced::Refused(refusal)) => panic!("a holder was refused: {refusal}"),
                        Err(e) => ledger.failed("complete", e.kind()),
                    }
                    if !on.load(Ordering::SeqCst) {
                        return;
                    }
                }
            }
            Ok(Claim::Completed { outcome, .. }) => {
                let body = outcome.body().unwrap();
                if let Some(kept) = ledger.done.lock().get(&n) {
                    assert_eq!(kept[..], body[..], "a replay of something else");
                }
                return;
            }
            Ok(Claim::InFlight { .. }) => {
                asked.nonce = semel::store::Nonce::random().unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(other) => panic!("{other:?}"),
            // The same claim again, under its own nonce.
            Err(e) => ledger.failed("claim", e.kind()),
        }
    }
}

async fn leader<'a>(cluster: &'a Nats, bucket: &str) -> &'a Node {
    let hosts: Vec<String> = cluster
        .nodes()
        .iter()
        .map(|n| n.address().to_string())
        .collect();
    let started = Instant::now();
    loop {
        let client = async_nats::connect(hosts.clone()).await.unwrap();
        let context = async_nats::jetstream::new(client);
        if let Ok(mut stream) = context.get_stream(format!("KV_{bucket}")).await
            && let Ok(info) = stream.info().await
            && let Some(name) = info.cluster.as_ref().and_then(|c| c.leader.as_ref())
        {
            let number: usize = name.strip_prefix("node").unwrap().parse().unwrap();
            return cluster.nodes()[number];
        }
        assert!(started.elapsed() < Duration::from_secs(30), "no leader");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Callers in pairs on every identity, through two handles, while `breaking` breaks the cluster.
async fn under_load(what: &str, breaking: impl AsyncFn(&Nats, &str)) {
    let cluster = Nats::start_cluster().unwrap();
    let bucket = unique(what);
    let url = with_bucket(&cluster.url(), &bucket).replace('?', "?timeout=2s&");
    let stores = [Arc::new(open(&url).await), Arc::new(open(&url).await)];
    let ledger = Arc::new(Ledger::default());
    let (on, next) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(Mutex::new(0_usize)),
    );
    let stopping = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..16)
        .map(|caller| {
            let (store, ledger) = (stores[caller % 2].clone(), ledger.clone());
            let (on, next, stopping) = (on.clone(), next.clone(), stopping.clone());
            tokio::spawn(async move {
                while !stopping.load(Ordering::SeqCst) {
                    let n = {
                        let mut next = next.lock();
                        *next += 1;
                        // Two callers an identity.
                        *next / 2
                    };
                    once(&store, n, &identity(&format!("cluster-{n}")), &ledger, &on).await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = ledger.done.lock().len();
    breaking(&cluster, &bucket).await;
    let broken = ledger.done.lock().len();
    let started = Instant::now();
    // Goes on by itself.
    while ledger.done.lock().len() < broken + 50 {
        assert!(
            started.elapsed() < Duration::from_secs(40),
            "it did not go on by itself"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let recovered = started.elapsed();
    stopping.store(true, Ordering::SeqCst);
    let ended = tokio::time::timeout(Duration::from_secs(30), async {
        for caller in callers {
            caller.await.unwrap();
        }
    });
    ended.await.expect("every key settles");
    on.store(false, Ordering::SeqCst);
    // Everything acknowledged is there, on all that is left.
    let (mut lost, done) = (0, ledger.done.lock().clone());
    for (n, body) in &done {
        let identity = identity(&format!("cluster-{n}"));
        match stores[0].claim(&identity, &request(LONG)).await.unwrap() {
            Claim::Completed { outcome, .. } => assert_eq!(outcome.body().unwrap()[..], body[..]),
            other => {
                println!("{n}: {other:?}");
                lost += 1;
            }
        }
    }
    let twice = ledger
        .fences
        .lock()
        .values()
        .filter(|f| f.len() > 1)
        .count();
    println!(
        "{what}: {before} completed before, {} in all; went on {recovered:.1?} after; acquired \
         twice: {twice}, lost: {lost}; errors: {:?}",
        done.len(),
        ledger.errors.lock()
    );
    assert_eq!((twice, lost), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_is_killed() {
    under_load("killed", async |cluster, bucket| {
        for _ in 0..2 {
            let leader = leader(cluster, bucket).await;
            leader.kill();
            tokio::time::sleep(Duration::from_secs(6)).await;
            leader.start().unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_is_paused() {
    under_load("paused", async |cluster, bucket| {
        let leader = leader(cluster, bucket).await;
        leader.pause();
        tokio::time::sleep(Duration::from_secs(12)).await;
        leader.resume();
        tokio::time::sleep(Duration::from_secs(1)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_restarted_one_after_the_other() {
    under_load("restarted", async |cluster, _| {
        for node in cluster.nodes() {
            node.kill();
            tokio::time::sleep(Duration::from_millis(500)).await;
            node.start().unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
}
