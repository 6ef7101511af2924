//! Steps of more than one trip: an error of a later trip never makes an earlier one undone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::{Claim, Fenced, Retention, Store as _, StoreExt as _, Token};
use semel::{Outcome, State, StoreErrorKind};
use semel_stores::PostgresStore;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Postgres, Server as _};

use super::{identity, open, request};

/// The first sending of a completion commits and its answer is lost; sent again it finds nothing to
/// write; and the read that is to say why gets no answer, or any trip before it: in each place once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_not_to_be_done_was_not_done() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let through = server.url_through(proxy.address());
    let store = Arc::new(open(&format!("{through}?timeout=500ms&connections=1&listen=off")).await);
    let direct = open(&server.url()).await;
    let mut in_doubt = 0;
    // It takes about ten, with those of a new connection.
    for trips in 1..40 {
        let key = format!("cut-after-{trips}-trips");
        let token = acquire_in_time(&store, &key).await;
        let hits = proxy.hits();
        proxy.set(Fault::CutAnswers);
        let completing = {
            let (store, id) = (store.clone(), identity(&key));
            tokio::spawn(async move {
                let outcome = Outcome::success(b"kept");
                let done = store.complete(id.digest(), &token, &outcome, Retention::ORDER);
                done.await
            })
        };
        let end = Instant::now() + Duration::from_secs(10);
        let until = async |is_so: &dyn Fn() -> bool| {
            while !is_so() && !completing.is_finished() {
                assert!(Instant::now() < end, "stuck at {key}");
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        };
        until(&|| proxy.hits() > hits).await;
        // Slow enough to see each trip begin, and to lose its answer.
        let before = proxy.round_trips();
        proxy.set(Fault::Delay(Duration::from_millis(2)));
        until(&|| proxy.round_trips() >= before + trips).await;
        proxy.set(Fault::SwallowAnswers);
        let told = completing.await.unwrap();
        // In this order: a connection that is begun in between loses no answer.
        proxy.set(Fault::None);
        proxy.cut();
        let is_done = || async {
            let entry = direct.get(identity(&key).digest()).await.unwrap().unwrap();
            matches!(entry.record.state, State::Completed(_))
        };
        match told {
            // Nothing was left to lose.
            Ok(Fenced::Applied) => {
                assert!(in_doubt > 2, "{in_doubt}");
                return;
            }
            Err(error) if error.kind() == StoreErrorKind::Unknown => in_doubt += 1,
            other => assert!(!is_done().await, "{key}: {other:?}, and it was done"),
        }
    }
    panic!("it never ends well");
}

/// A busy machine may begin a connection more slowly than the short time-out here allows.
async fn acquire_in_time(store: &PostgresStore, key: &str) -> Token {
    let end = Instant::now() + Duration::from_secs(20);
    let request = request();
    loop {
        match store.claim(&identity(key), &request).await {
            Ok(Claim::Acquired(acquired)) => return acquired.token,
            Err(_) if Instant::now() < end => {}
            other => panic!("{key}: {other:?}"),
        }
    }
}
