//! One server, and what goes wrong on the way to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::{Claim, Fenced, Store as _, StoreExt as _};
use semel::{AnyStore, Outcome, StoreErrorKind};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Nats, Server as _};

use super::{LONG, acquire, complete, identity, open, options, request, unique, with_bucket};
use crate::servers;

/// Tries until it works; every failure on the way is a typed one.
async fn until_it_works<T, F>(mut step: impl FnMut() -> F) -> T
where
    F: Future<Output = semel::store::Result<T>>,
{
    let started = Instant::now();
    loop {
        match step().await {
            Ok(done) => return done,
            Err(e) => {
                use StoreErrorKind::{Contended, NotApplied, Unknown};
                let right = matches!(e.kind(), NotApplied | Contended | Unknown);
                assert!(right, "{e}");
                assert!(started.elapsed() < Duration::from_secs(30), "{e}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_a_kill() {
    let server = Nats::start().unwrap();
    let url = with_bucket(&server.url(), &unique("kill")).replace('?', "?timeout=2s&");
    servers::killed(&server, AnyStore::new(open(&url).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_are_unknown_and_repeating_is_right() {
    let server = Nats::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let bucket = unique("lost");
    let url = with_bucket(&server.url_through(proxy.address()), &bucket);
    let store = open(&url.replace('?', "?timeout=600ms&")).await;
    let direct = open(&with_bucket(&server.url(), &bucket)).await;
    servers::lost_answers(&proxy, store, direct, &[Fault::SwallowAnswers]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_others_came_after_is_not_called_refused() {
    let server = Nats::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let bucket = unique("after");
    let store = open(&with_bucket(&server.url_through(proxy.address()), &bucket)).await;
    let direct = open(&with_bucket(&server.url(), &bucket)).await;
    servers::others_came_after(&proxy, store, direct, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_are_made_again() {
    let server = Nats::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = with_bucket(&server.url_through(proxy.address()), &unique("cut"));
    let store = Arc::new(open(&url).await);
    let identity = identity("cut");
    let token = acquire(&store, &identity, LONG).await;
    let waiting = {
        let (store, identity) = (store.clone(), identity.clone());
        tokio::spawn(async move {
            store
                .wait(identity.digest(), token.fence, Duration::from_secs(20))
                .await
        })
    };
    for round in 0..10_u64 {
        proxy.cut();
        // A step on a connection that is lost is made again on the next, in the same call.
        let lease = LONG + Duration::from_secs(round);
        let renewed =
            until_it_works(|| async { store.renew(identity.digest(), &token, lease).await });
        assert_eq!(renewed.await, Fenced::Applied);
    }
    // The step was taken, the answer cut off with its connection.
    proxy.once(Fault::CutAnswers);
    match complete(&store, &identity, &token).await {
        Ok(done) => assert_eq!(done, Fenced::Applied),
        Err(e) => assert_eq!(e.kind(), StoreErrorKind::Unknown),
    }
    let done = until_it_works(|| async { complete(&store, &identity, &token).await }).await;
    assert_eq!(done, Fenced::Applied);
    waiting.await.unwrap().unwrap();
    println!("{} connections", proxy.connections());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_is_not_applied_and_comes_back() {
    let server = Nats::start().unwrap();
    let url = with_bucket(&server.url(), &unique("down")).replace('?', "?timeout=1s&");
    let store = open(&url).await;
    let identity = identity("down");
    server.nodes()[0].kill();
    tokio::time::sleep(Duration::from_millis(200)).await;
    for step in 0..2 {
        let started = Instant::now();
        let error = match step {
            0 => store.claim(&identity, &request(LONG)).await.unwrap_err(),
            _ => store.get(identity.digest()).await.unwrap_err(),
        };
        assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    let unreachable = options(&url).open().await.unwrap_err().to_string();
    assert!(
        unreachable.contains("no NATS server could be reached"),
        "{unreachable}"
    );
    server.nodes()[0].start().unwrap();
    until_it_works(|| async { store.claim(&identity, &request(LONG)).await }).await;
    store.probe().await.unwrap();
}

/// The server stands still for longer than a lease, while holders and rivals ask. Whoever holds a
/// claim afterwards is alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_server_has_one_winner() {
    let server = Nats::start().unwrap();
    let url = with_bucket(&server.url(), &unique("pause")).replace('?', "?timeout=1s&");
    let stores = [Arc::new(open(&url).await), Arc::new(open(&url).await)];
    let lease = Duration::from_millis(500);
    let outcomes: Vec<_> = (0..16)
        .map(|n| {
            let (store, rival) = (stores[n % 2].clone(), stores[(n + 1) % 2].clone());
            let identity = identity(&format!("pause-{n}"));
            tokio::spawn(async move {
                let first = acquire(&store, &identity, lease).await;
                // A rival that takes over as soon as it may.
                let taking = {
                    let identity = identity.clone();
                    tokio::spawn(async move {
                        let asked = request(LONG);
                        until_it_works(|| async {
                            loop {
                                match rival.claim(&identity, &asked).await? {
                                    Claim::InFlight { .. } => {
                                        tokio::time::sleep(Duration::from_millis(20)).await;
                                    }
                                    other => return Ok((other, rival.clone())),
                                }
                            }
                        })
                        .await
                    })
                };
                // The holder's work takes longer than the pause.
                tokio::time::sleep(Duration::from_secs(3)).await;
                let late =
                    until_it_works(|| async { complete(&store, &identity, &first).await }).await;
                let (taken, rival) = taking.await.unwrap();
                match (late, taken) {
                    (Fenced::Applied, Claim::Completed { .. }) => 0,
                    (Fenced::Refused(_), Claim::Acquired(won)) => {
                        let outcome = Outcome::success(b"by the rival");
                        let done = rival.complete(
                            identity.digest(),
                            &won.token,
                            &outcome,
                            semel::store::Retention::new(LONG),
                        );
                        assert_eq!(done.await.unwrap(), Fenced::Applied);
                        1
                    }
                    both => panic!("both or neither: {both:?}"),
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.nodes()[0].pause();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    server.nodes()[0].resume();
    let mut taken_over = 0;
    for outcome in outcomes {
        taken_over += outcome.await.unwrap();
    }
    println!("{taken_over} of 16 taken over after a pause of three leases");
    assert!(taken_over > 0);
}
