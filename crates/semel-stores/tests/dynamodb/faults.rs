//! Cut connections, lost answers, and a server that stops for a while, or for good.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use parking_lot::Mutex;
use semel::StoreErrorKind;
use semel::store::{Fence, StoreExt as _};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{DynamoDb, Server as _};

use super::*;
use crate::servers;

/// A server of one's own, a proxy before it, and a store by way of the proxy.
async fn behind_proxy(timeout: Duration) -> (DynamoDb, Proxy, DynamoDbStore) {
    let server = DynamoDb::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let store = create(options(&url)).await;
    drop(store);
    let store = options(&url).timeout(timeout).open().await.unwrap();
    (server, proxy, store)
}

#[tokio::test]
async fn the_winner_of_a_lost_answer_is_the_winner() {
    let (server, proxy, store) = behind_proxy(Duration::from_secs(4)).await;
    let direct = create(options(&server.url())).await;
    let faults = [
        Fault::CutAnswers,
        Fault::HalveAnswers,
        Fault::SwallowAnswers,
    ];
    servers::lost_answers(&proxy, store, direct, &faults).await;
}

#[tokio::test]
async fn one_cut_is_not_noticed() {
    let (_server, proxy, store) = behind_proxy(Duration::from_secs(30)).await;
    for n in 0..10 {
        let one = identity(&format!("key {n}"));
        let token = acquired(claim(&store, &one, &request(LONG, OnLost::Hold)).await).token;
        proxy.cut();
        complete(&store, &one, &token, DAY).await;
    }
    assert!(proxy.connections() >= 10, "connections were cut");
}

#[tokio::test]
async fn a_reader_knows_that_nothing_happened() {
    let (_server, proxy, store) = behind_proxy(Duration::from_secs(2)).await;
    proxy.set(Fault::Blackhole);
    let error = store.get(identity("one").digest()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
    let error = store
        .claim(&identity("one"), &request(LONG, OnLost::Hold))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    proxy.set(Fault::None);
    store.get(identity("one").digest()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_gone_is_said_and_one_that_forgot_too() {
    let server = DynamoDb::start().unwrap();
    let store = create(options(&server.url())).await;
    let one = identity("one");
    acquired(claim(&store, &one, &request(LONG, OnLost::Hold)).await);
    server.nodes()[0].kill();
    // The first may have met the connection that was open.
    let _ = store.claim(&one, &request(LONG, OnLost::Hold)).await;
    let error = store
        .claim(&one, &request(LONG, OnLost::Hold))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    server.nodes()[0].start().unwrap();
    // This emulator keeps nothing: its table is gone.
    let error = store
        .claim(&one, &request(LONG, OnLost::Hold))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
    assert!(error.to_string().contains("semel migrate"), "{error}");
    create(options(&server.url())).await;
    // The same handle goes on.
    acquired(claim(&store, &one, &request(LONG, OnLost::Hold)).await);
}

/// A server that stands still for longer than a lease, under load of two handles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_longer_than_a_lease() {
    const KEYS: usize = 4;
    let lease = Duration::from_secs(2);
    let server = Arc::new(DynamoDb::start().unwrap());
    create(options(&server.url())).await;
    let stop = Arc::new(AtomicBool::new(false));
    let effects: Arc<[AtomicU64; KEYS]> = Arc::default();
    let winners: Arc<Mutex<HashSet<(usize, Fence)>>> = Arc::default();
    let (mut callers, failures) = (Vec::new(), Arc::new(AtomicU64::new(0)));
    for caller in 0..6 {
        let quick = options(&server.url()).timeout(Duration::from_secs(2));
        // Under load even that takes its time.
        let store = loop {
            match quick.clone().open().await {
                Ok(store) => break store,
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}"),
            }
        };
        let (stop, effects, failures) = (stop.clone(), effects.clone(), failures.clone());
        let winners = winners.clone();
        callers.push(tokio::spawn(async move {
            let mut rounds = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                rounds += 1;
                let key = (caller + rounds) % KEYS;
                let one = identity(&format!("key {key}"));
                match store.claim(&one, &request(lease, OnLost::Retry)).await {
                    Ok(Claim::Acquired(won)) => {
                        let none = Retention::new(Duration::ZERO);
                        // Counted as the effect: the fenced completion that is acknowledged.
                        match store
                            .complete(one.digest(), &won.token, &outcome(), none)
                            .await
                        {
                            Ok(Fenced::Applied) => {
                                effects[key].fetch_add(1, Ordering::Relaxed);
                                let new = winners.lock().insert((key, won.token.fence));
                                assert!(new, "two completions under {:?}", won.token.fence);
                            }
                            Ok(Fenced::Refused(_)) => {}
                            Err(error) => typed(&error, &failures),
                        }
                    }
                    Ok(_) => {}
                    Err(error) => typed(&error, &failures),
                }
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let node = server.nodes()[0];
    node.pause();
    tokio::time::sleep(lease * 3).await;
    let before: Vec<_> = effects.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    node.resume();
    // Every key is settled again, without anything being opened anew.
    let resumed = Instant::now();
    while effects
        .iter()
        .zip(&before)
        .any(|(now, before)| now.load(Ordering::Relaxed) <= *before)
    {
        assert!(
            resumed.elapsed() < Duration::from_secs(60),
            "some key stands still"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!("all keys went on {:?} after the pause", resumed.elapsed());
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(
        failures.load(Ordering::Relaxed) > 0,
        "nobody noticed the pause"
    );

    // And of two handles that claim one fresh identity now, one wins.
    let (left, right) = (
        create(options(&server.url())).await,
        create(options(&server.url())).await,
    );
    let fresh = identity("fresh");
    let (first, second) = (request(LONG, OnLost::Retry), request(LONG, OnLost::Retry));
    let both = tokio::join!(claim(&left, &fresh, &first), claim(&right, &fresh, &second));
    let won = [&both.0, &both.1].map(|c| matches!(c, Claim::Acquired(_)));
    assert_eq!(won.iter().filter(|won| **won).count(), 1);
}

fn typed(error: &semel::StoreError, failures: &AtomicU64) {
    use StoreErrorKind::{Contended, NotApplied, Unknown};
    let right = matches!(error.kind(), NotApplied | Contended | Unknown);
    assert!(right, "{:?}: {error}", error.kind());
    failures.fetch_add(1, Ordering::Relaxed);
}

#[tokio::test]
async fn a_claim_in_doubt_is_not_simply_told_of_another() {
    let (_server, proxy, store) = behind_proxy(Duration::from_secs(30)).await;
    servers::a_claim_in_doubt(&proxy, store).await;
}
