//! Waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::{Fenced, Store as _, Waited};
use semel_stores::PostgresStore;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Postgres, Server as _};

use super::{acquire, client, complete, identity, open, url};
use crate::runtimes::runtime;

const LONG: Duration = Duration::from_secs(30);

/// How long after each completion a waiter on another handle knew.
async fn wakes(completer: &PostgresStore, waiter: &Arc<PostgresStore>, rounds: usize) -> Duration {
    let mut took = Vec::new();
    for round in 0..rounds {
        let key = format!("waited-for-{round}");
        let token = acquire(completer, &key).await.token;
        let waiting = {
            let (store, key) = (waiter.clone(), key.clone());
            tokio::spawn(async move {
                let waited = store.wait(identity(&key).digest(), token.fence, LONG).await;
                (waited.unwrap(), Instant::now())
            })
        };
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert_eq!(complete(completer, &key, &token).await, Fenced::Applied);
        let done = Instant::now();
        let (waited, woken) = waiting.await.unwrap();
        assert_eq!(waited, Waited::Changed);
        took.push(woken.saturating_duration_since(done));
    }
    took.sort_unstable();
    took[rounds / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_woken_soon() {
    let url = url();
    let (one, two) = (open(&url).await, Arc::new(open(&url).await));
    let median = wakes(&one, &two, 50).await;
    println!("pushed, another handle: median {median:?} after the completion's answer");
    assert!(median < Duration::from_secs(2));
    let same = Arc::new(open(&super::url()).await);
    let median = wakes(&same, &same, 50).await;
    println!("the same handle: median {median:?}");
    let url = super::url();
    let one = open(&url).await;
    let polling = Arc::new(open(&format!("{url}&listen=off")).await);
    let median = wakes(&one, &polling, 20).await;
    println!("polled: median {median:?}");
    assert!(median < Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_told_where_nobody_waits() {
    let url = url();
    let store = open(&url).await;
    let listener = url.split('?').next().unwrap();
    let (client, mut connection) = tokio_postgres::connect(listener, tokio_postgres::NoTls)
        .await
        .unwrap();
    let (told, mut tellings) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                Some(Ok(tokio_postgres::AsyncMessage::Notification(n))) => {
                    told.send(n.payload().to_owned()).unwrap();
                }
                Some(Ok(_)) => {}
                _ => return,
            }
        }
    });
    let table = url.split("table=").nth(1).unwrap();
    let listen = format!("LISTEN \"semel_{table}\"");
    client.batch_execute(&listen).await.unwrap();
    for n in 0..20 {
        let key = format!("alone-{n}");
        let token = acquire(&store, &key).await.token;
        assert_eq!(complete(&store, &key, &token).await, Fenced::Applied);
    }
    let token = acquire(&store, "waited-for").await.token;
    let id = identity("waited-for");
    let marked = format!("SELECT count(*) FROM {table} WHERE waited_for IS NOT NULL");
    // A waiter marks the record once its own connection listens.
    loop {
        let waited = store.wait(id.digest(), token.fence, Duration::from_millis(100));
        assert_eq!(waited.await.unwrap(), Waited::TimedOut);
        let row = client.query_one(&marked, &[]).await.unwrap();
        if row.get::<_, i64>(0) == 1 {
            break;
        }
    }
    assert_eq!(
        complete(&store, "waited-for", &token).await,
        Fenced::Applied
    );
    let first = tokio::time::timeout(LONG, tellings.recv()).await.unwrap();
    assert_eq!(first.unwrap(), id.digest().to_string());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(tellings.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_is_lost_is_made_up_for() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let one = open(&server.url()).await;
    let two = Arc::new(open(&server.url_through(proxy.address())).await);
    wakes(&one, &two, 2).await;
    let token = acquire(&one, "lost").await.token;
    let waiting = {
        let store = two.clone();
        let wait = async move {
            let id = identity("lost");
            store.wait(id.digest(), token.fence, LONG).await
        };
        tokio::spawn(wait)
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.set(Fault::Refuse);
    assert_eq!(complete(&one, "lost", &token).await, Fenced::Applied);
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.set(Fault::None);
    let from = Instant::now();
    // An error is an answer too: who waits asks again.
    let mut waited = waiting.await.unwrap();
    while let Err(error) = waited {
        // The connection broke before the question was sent, or after it.
        use semel::StoreErrorKind::{NotApplied, Unknown};
        assert!(matches!(error.kind(), NotApplied | Unknown), "{error}");
        assert!(from.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let id = identity("lost");
        waited = two.wait(id.digest(), token.fence, LONG).await;
    }
    assert_eq!(waited.unwrap(), Waited::Changed);
    assert!(from.elapsed() < Duration::from_secs(10));
    // The listener came back by itself.
    let end = Instant::now() + Duration::from_secs(20);
    let admin = client(&server.url()).await;
    loop {
        let query =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query = ''";
        let row = admin.query_one(query, &[]).await.unwrap();
        if row.get::<_, i64>(0) > 0 {
            break;
        }
        assert!(Instant::now() < end, "nobody listens");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The runtime on which somebody first waited ends, during another's wait.
#[test]
fn another_listens_where_a_runtime_ends() {
    let (url, first, second) = (url(), runtime(), runtime());
    let table = url.split("table=").nth(1).unwrap();
    let listening = format!("LISTEN \"semel_{table}\"");
    let sql = "SELECT pid FROM pg_stat_activity WHERE query = $1 AND pid <> $2";
    // Until there is a listener other than this one.
    let listener = async |admin: &tokio_postgres::Client, other: i32| loop {
        let rows = admin.query(sql, &[&listening, &other]).await.unwrap();
        if let Some(row) = rows.first() {
            break row.get::<_, i32>(0);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let (store, token, before) = first.block_on(async {
        let (store, admin) = (Arc::new(open(&url).await), client(&url).await);
        let token = acquire(&store, "a-key").await.token;
        let id = identity("a-key");
        let waiting = store.wait(id.digest(), token.fence, LONG);
        let before = tokio::select! {
            waited = waiting => panic!("{waited:?}"),
            before = listener(&admin, 0) => before,
        };
        (store, token, before)
    });
    let waiting = second.spawn({
        let store = store.clone();
        async move {
            let id = identity("a-key");
            store.wait(id.digest(), token.fence, LONG).await
        }
    });
    drop(first);
    second.block_on(async {
        let admin = client(&url).await;
        let soon = tokio::time::timeout(LONG, listener(&admin, before));
        soon.await.expect("nobody listens");
        assert_eq!(complete(&store, "a-key", &token).await, Fenced::Applied);
        assert_eq!(waiting.await.unwrap().unwrap(), Waited::Changed);
    });
}

/// A completion was made, but not by this handle as far as it knows: its own waiters hear of it all the same.
#[tokio::test]
async fn a_completion_that_was_made_before_wakes_too() {
    let url = format!("{}&listen=off", url());
    let (one, other) = (Arc::new(open(&url).await), open(&url).await);
    let token = acquire(&one, "a-key").await.token;
    let mut waiting = {
        let store = one.clone();
        tokio::spawn(async move {
            let id = identity("a-key");
            store.wait(id.digest(), token.fence, LONG).await
        })
    };
    let waits = tokio::time::timeout(Duration::from_millis(200), &mut waiting);
    assert!(waits.await.is_err());
    // From here on no waiter looks by itself: while a thread is at work, time stands still.
    tokio::time::pause();
    let (done, at_work) = std::sync::mpsc::channel::<()>();
    let hour = tokio::task::spawn_blocking(move || at_work.recv_timeout(LONG));
    assert_eq!(complete(&other, "a-key", &token).await, Fenced::Applied);
    assert!(!waiting.is_finished());
    assert_eq!(complete(&one, "a-key", &token).await, Fenced::Applied);
    tokio::select! {
        waited = waiting => assert_eq!(waited.unwrap().unwrap(), Waited::Changed),
        _ = hour => panic!("nobody was woken"),
    }
    drop(done);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_waits() {
    let store = Arc::new(open(&url()).await);
    let token = acquire(&store, "a-key").await.token;
    let waiting = {
        let store = store.clone();
        let wait = async move {
            store
                .wait(identity("a-key").digest(), token.fence, LONG)
                .await
        };
        tokio::spawn(wait)
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    store.close().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), semel::StoreErrorKind::Closed);
}
