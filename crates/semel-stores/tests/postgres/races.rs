//! Two handles with connections of their own, and two processes.

use std::sync::Arc;
use std::time::Duration;

use semel::Outcome;
use semel::store::{
    Claim, ClaimRequest, Fenced, OnLost, Refusal, Retention, Store as _, StoreExt as _,
};
use semel_stores::PostgresStore;

use super::{acquire, acquire_as, complete, forged, identity, open, replayed, request, url};

/// The variable by which a child is told the URL.
const CHILD: &str = "SEMEL_TEST_POSTGRES_RACER";

const KEYS: usize = 200;

/// Claims all keys, and says how many it got.
async fn race(store: &PostgresStore) -> Vec<usize> {
    let mut won = Vec::new();
    for key in 0..KEYS {
        let id = identity(&format!("raced-{key}"));
        match store.claim(&id, &request()).await.unwrap() {
            Claim::Acquired(_) => won.push(key),
            Claim::InFlight { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    won
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_and_two_handles_share_the_keys() {
    if let Ok(url) = std::env::var(CHILD) {
        let store = open(&url).await;
        let won = race(&store).await;
        println!("won:{won:?}:");
        return;
    }
    let url = url();
    let stores = [open(&url).await, open(&url).await];
    let this = std::env::current_exe().unwrap();
    let child = std::process::Command::new(this)
        .args(["--exact", "--nocapture"])
        .arg("postgres::races::two_processes_and_two_handles_share_the_keys")
        .env(CHILD, &url)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let tasks = stores.map(|store| tokio::spawn(async move { race(&store).await }));
    let output = tokio::task::spawn_blocking(move || child.wait_with_output());
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    let output = output.await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let theirs = text.split("won:[").nth(1).unwrap();
    let theirs = theirs.split(']').next().unwrap();
    let theirs: Vec<usize> = theirs
        .split(", ")
        .filter(|key| !key.is_empty())
        .map(|key| key.parse().unwrap())
        .collect();
    println!("{} here, {} in the other process", all.len(), theirs.len());
    all.extend(theirs);
    all.sort_unstable();
    assert_eq!(all, (0..KEYS).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_that_everybody_wants() {
    let url = url();
    let stores = [Arc::new(open(&url).await), Arc::new(open(&url).await)];
    let effects = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let (store, effects) = (stores[n % 2].clone(), effects.clone());
            tokio::spawn(async move {
                loop {
                    let claim = store.claim(&identity("wanted"), &request()).await.unwrap();
                    match claim {
                        Claim::Acquired(acquired) => {
                            effects.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            let done = complete(&store, "wanted", &acquired.token).await;
                            assert_eq!(done, Fenced::Applied);
                        }
                        Claim::InFlight { fence, .. } => {
                            let id = identity("wanted");
                            let wait = store.wait(id.digest(), fence, Duration::from_secs(30));
                            wait.await.unwrap();
                        }
                        Claim::Completed { outcome, .. } => {
                            assert_eq!(outcome.body().unwrap(), "wanted");
                            return;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(effects.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn purging_beside_claims_removes_only_what_may_go() {
    let url = url();
    let store = Arc::new(open(&url).await);
    let brief = semel::store::Retention::new(Duration::from_millis(1));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let purging = {
        let (store, stop) = (store.clone(), stop.clone());
        tokio::spawn(async move {
            let mut removed = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                removed += store.purge(7).await.unwrap().removed;
            }
            removed
        })
    };
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let key = format!("again-{n}");
                let mut last = None;
                for _ in 0..50 {
                    let request = ClaimRequest {
                        on_lost: OnLost::Retry,
                        ..request()
                    };
                    let acquired = acquire_as(&store, &key, &request).await;
                    // Whether purged in between or not, fences grow.
                    assert!(last < Some(acquired.token.fence));
                    last = Some(acquired.token.fence);
                    let id = identity(&key);
                    let outcome = semel::Outcome::void();
                    let done = store.complete(id.digest(), &acquired.token, &outcome, brief);
                    assert_eq!(done.await.unwrap(), Fenced::Applied);
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    println!("{} purged beside 400 claims", purging.await.unwrap());
    while store.purge(1000).await.unwrap().more {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_answers_each_step_its_own() {
    let store = Arc::new(open(&format!("{}&connections=1", url())).await);
    let mut tokens = Vec::new();
    for n in 0..60 {
        tokens.push(acquire(&store, &format!("old-{n}")).await.token);
    }
    for (n, token) in tokens.iter().enumerate().take(20) {
        let key = format!("old-{n}");
        assert_eq!(complete(&store, &key, token).await, Fenced::Applied);
    }
    let large = vec![7; 100_000];
    // One connection: what comes while the first is under way is one group.
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..120 {
        let (store, token, large) = (store.clone(), tokens[n / 2], large.clone());
        tasks.spawn(async move {
            let key = format!("old-{}", n / 2);
            match n {
                // New, replayed, in flight.
                _ if n % 2 == 0 => {
                    let new = acquire(&store, &format!("new-{n}")).await;
                    assert_eq!(new.attempt, 1);
                }
                0..40 => assert_eq!(replayed(&store, &key).await, key.as_bytes()),
                40..60 => {
                    let rival = store.claim(&identity(&key), &request()).await.unwrap();
                    assert!(matches!(rival, Claim::InFlight { fence, .. } if fence == token.fence));
                }
                // Applied, refused, and too large to share a statement.
                60..90 => assert_eq!(complete(&store, &key, &token).await, Fenced::Applied),
                90..110 => {
                    let stale = complete(&store, &key, &forged(token.fence.0)).await;
                    assert_eq!(stale, Fenced::Refused(Refusal::Superseded));
                }
                _ => {
                    let outcome = Outcome::success(&large);
                    let id = identity(&key);
                    let done = store.complete(id.digest(), &token, &outcome, Retention::ORDER);
                    assert_eq!(done.await.unwrap(), Fenced::Applied);
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    for n in 30..45 {
        let key = format!("old-{n}");
        assert_eq!(replayed(&store, &key).await, key.as_bytes());
    }
    assert_eq!(replayed(&store, "old-59").await, large);
}
