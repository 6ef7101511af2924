//! Servers and connections that break.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use semel::store::{
    Claim, ClaimRequest, Fence, Fenced, OnLost, Retention, Store as _, StoreExt as _, Token,
};
use semel::{Outcome, StoreError, StoreErrorKind};
use semel_stores::PostgresStore;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Postgres, Server as _};

use super::{acquire, acquire_as, client, complete, identity, open, replayed, request, url};

/// Asks until it works, and wants nothing but errors that say the truth until then.
async fn recovered(store: &PostgresStore) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match store.get(identity("anything").digest()).await {
            Ok(_) => return,
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
                assert!(Instant::now() < end, "not recovered: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Callers that claim and complete, each its own keys, until told to stop. They remember what was
/// acknowledged.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    done: Arc<Mutex<Vec<String>>>,
    errors: Arc<Mutex<HashMap<StoreErrorKind, u64>>>,
    ran: Arc<AtomicU64>,
}

impl Load {
    fn start(store: &Arc<PostgresStore>, callers: usize) -> Self {
        let load = Self {
            stop: Arc::default(),
            tasks: Vec::new(),
            done: Arc::default(),
            errors: Arc::default(),
            ran: Arc::default(),
        };
        let tasks = (0..callers).map(|caller| {
            let (store, stop) = (store.clone(), load.stop.clone());
            let (done, errors, ran) = (load.done.clone(), load.errors.clone(), load.ran.clone());
            tokio::spawn(async move {
                let failed = async |error: StoreError| {
                    *errors.lock().entry(error.kind()).or_default() += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                };
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("key-{caller}-{number}");
                    let request = request();
                    // The same nonce and token until there is an answer.
                    let token = loop {
                        match store.claim(&identity(&key), &request).await {
                            Ok(Claim::Acquired(acquired)) => break acquired.token,
                            Ok(other) => panic!("{key}: {other:?}"),
                            Err(error) => failed(error).await,
                        }
                    };
                    loop {
                        let id = identity(&key);
                        let outcome = Outcome::success(key.as_bytes());
                        let step = store.complete(id.digest(), &token, &outcome, Retention::ORDER);
                        match step.await {
                            Ok(Fenced::Applied) => break,
                            Ok(other) => panic!("{key}: {other:?}"),
                            Err(error) => failed(error).await,
                        }
                    }
                    done.lock().push(key);
                    ran.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        Self {
            tasks: tasks.collect(),
            ..load
        }
    }

    async fn until(&self, more: u64) {
        let wanted = self.ran.load(Ordering::Relaxed) + more;
        let end = Instant::now() + Duration::from_secs(30);
        while self.ran.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < end, "the load stands still");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Every acknowledged completion is replayed.
    async fn check(self, store: &PostgresStore) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let done = self.done.lock().clone();
        println!("{} done, errors {:?}", done.len(), self.errors.lock());
        for kind in self.errors.lock().keys() {
            let right = [
                StoreErrorKind::NotApplied,
                StoreErrorKind::Contended,
                StoreErrorKind::Unknown,
            ];
            assert!(right.contains(kind), "{kind:?}");
        }
        for key in done {
            assert_eq!(replayed(store, &key).await, key.as_bytes());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_keeps_what_it_acknowledged() {
    let server = Postgres::start(&[]).unwrap();
    let store = Arc::new(open(&server.url()).await);
    let load = Load::start(&store, 16);
    for _ in 0..2 {
        load.until(50).await;
        server.nodes()[0].kill();
        server.nodes()[0].start().unwrap();
        load.until(50).await;
    }
    load.check(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_immediate_restart_under_load() {
    let server = Postgres::start(&[]).unwrap();
    let store = Arc::new(open(&server.url()).await);
    let load = Load::start(&store, 16);
    for _ in 0..3 {
        load.until(50).await;
        server.restart_immediately().unwrap();
        load.until(50).await;
    }
    load.check(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_backends_are_replaced() {
    let server = Postgres::start(&[]).unwrap();
    let store = Arc::new(open(&server.url()).await);
    let load = Load::start(&store, 16);
    let admin = client(&server.url()).await;
    let mut ended = 0;
    for _ in 0..5 {
        load.until(30).await;
        let query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE application_name = 'semel'";
        ended += admin.query_one(query, &[]).await.unwrap().get::<_, i64>(0);
    }
    load.until(30).await;
    assert!(ended > 0);
    println!("{ended} backends ended");
    load.check(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_are_made_again() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = Arc::new(open(&server.url_through(proxy.address())).await);
    let load = Load::start(&store, 16);
    for _ in 0..10 {
        load.until(20).await;
        proxy.cut();
    }
    for fault in [Fault::CutAnswers, Fault::HalveAnswers, Fault::Refuse] {
        load.until(20).await;
        let before = proxy.hits();
        proxy.set(fault);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(proxy.hits() > before, "{fault:?} never happened");
        proxy.set(Fault::None);
    }
    load.until(20).await;
    load.check(&store).await;
}

/// The completion is stored, and its answer lost. Before it is sent again, its retention is over and another claim holds
/// the record: to say that the completion was refused would be false.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_others_came_after_is_not_called_refused() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = Arc::new(open(&server.url_through(proxy.address())).await);
    let direct = open(&server.url()).await;
    let token = acquire(&store, "after").await.token;

    proxy.set(Fault::SwallowAnswers);
    let completing = {
        let store = store.clone();
        tokio::spawn(async move {
            let (outcome, brief) = (
                Outcome::success(b"done"),
                Retention::new(Duration::from_millis(50)),
            );
            store
                .complete(identity("after").digest(), &token, &outcome, brief)
                .await
        })
    };
    let next = loop {
        match direct.claim(&identity("after"), &request()).await.unwrap() {
            Claim::Acquired(next) => break next.token,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    proxy.set(Fault::None);
    proxy.cut();
    let error = completing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    assert!(error.to_string().contains("refused now"), "{error}");
    assert_eq!(complete(&direct, "after", &next).await, Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_unknown_and_the_same_step_again_is_right() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let store = open(&format!("{url}?timeout=300ms&listen=off")).await;
    let direct = open(&server.url()).await;
    for fault in [Fault::SwallowAnswers, Fault::CutAnswers] {
        let key = format!("{fault:?}-and-so-on");
        let (id, request) = (identity(&key), request());
        recovered(&store).await;
        proxy.set(fault);
        let error = store.claim(&id, &request).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unknown, "{fault:?}: {error}");
        proxy.set(Fault::None);
        recovered(&store).await;
        let token = acquire_as(&store, &key, &request).await.token;
        assert_eq!(
            direct
                .get(id.digest())
                .await
                .unwrap()
                .unwrap()
                .record
                .attempt,
            1
        );

        proxy.set(fault);
        let outcome = Outcome::success(b"kept");
        let step = || store.complete(id.digest(), &token, &outcome, Retention::ORDER);
        let error = step().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unknown, "{fault:?}: {error}");
        // A read that has no answer changed nothing.
        let error = store.get(id.digest()).await.unwrap_err();
        assert_eq!(
            error.kind(),
            StoreErrorKind::NotApplied,
            "{fault:?}: {error}"
        );
        proxy.set(Fault::None);
        recovered(&store).await;
        assert_eq!(step().await.unwrap(), Fenced::Applied);
        assert_eq!(replayed(&direct, &key).await, "kept");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_reached_did_nothing() {
    let server = Postgres::start(&[]).unwrap();
    let store = open(&format!("{}?listen=off", server.url())).await;
    acquire(&store, "a-key").await;
    server.nodes()[0].kill();
    // A backend without its postmaster may serve one more statement, or break while it does.
    while store.get(identity("a-key").digest()).await.is_ok() {}
    let mut kinds = Vec::new();
    for n in 0..5 {
        let id = identity(&format!("down-{n}"));
        let error = store.claim(&id, &request()).await.unwrap_err();
        kinds.push(error.kind());
    }
    assert_eq!(kinds, [StoreErrorKind::NotApplied; 5]);
    let from = Instant::now();
    for _ in 0..1000 {
        store.get(identity("a-key").digest()).await.unwrap_err();
    }
    assert!(
        from.elapsed() < Duration::from_secs(5),
        "{:?}",
        from.elapsed()
    );
    server.nodes()[0].start().unwrap();
    recovered(&store).await;
    for n in 0..5 {
        acquire(&store, &format!("down-{n}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_paused_past_a_lease_has_one_winner() {
    const LEASE: Duration = Duration::from_millis(500);
    let server = Postgres::start(&[]).unwrap();
    let url = format!("{}?timeout=400ms", server.url());
    let stores = [Arc::new(open(&url).await), Arc::new(open(&url).await)];
    let held: Vec<Token> = {
        let mut held = Vec::new();
        for n in 0..4 {
            let request = ClaimRequest {
                lease: LEASE,
                ..request()
            };
            held.push(
                acquire_as(&stores[0], &format!("held-{n}"), &request)
                    .await
                    .token,
            );
        }
        held
    };
    let load = Load::start(&stores[0], 8);
    load.until(20).await;
    server.nodes()[0].pause();
    // Rivals come while it stands, and go on asking.
    let rivals: Vec<_> = (0..32)
        .map(|n| {
            let store = stores[n % 2].clone();
            tokio::spawn(async move {
                let key = format!("held-{}", n % 4);
                let request = ClaimRequest {
                    on_lost: OnLost::Retry,
                    ..request()
                };
                let end = Instant::now() + Duration::from_secs(30);
                while Instant::now() < end {
                    match store.claim(&identity(&key), &request).await {
                        Ok(Claim::Acquired(acquired)) => return Some((n % 4, acquired.token)),
                        Ok(Claim::InFlight { fence, .. }) if fence != Fence(0) => {
                            let entry = store.get(identity(&key).digest()).await;
                            // Somebody else's second attempt, not the one that was held.
                            if entry.is_ok_and(|e| e.is_some_and(|e| e.record.attempt > 1)) {
                                return None;
                            }
                        }
                        Ok(other) => panic!("{other:?}"),
                        Err(error) => {
                            use StoreErrorKind::{Contended, NotApplied, Unknown};
                            let right = matches!(error.kind(), NotApplied | Contended | Unknown);
                            assert!(right, "{error}");
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                panic!("{key}: no answer in time");
            })
        })
        .collect();
    tokio::time::sleep(LEASE * 3).await;
    server.nodes()[0].resume();
    let mut winners: HashMap<usize, Vec<Token>> = HashMap::new();
    for rival in rivals {
        if let Some((key, token)) = rival.await.unwrap() {
            winners.entry(key).or_default().push(token);
        }
    }
    recovered(&stores[0]).await;
    for (key, old) in held.iter().enumerate() {
        let name = format!("held-{key}");
        assert_eq!(winners[&key].len(), 1, "winners of {name}");
        let late = complete(&stores[0], &name, old).await;
        assert!(matches!(late, Fenced::Refused(_)), "{late:?}");
        let won = complete(&stores[1], &name, &winners[&key][0]).await;
        assert_eq!(won, Fenced::Applied);
    }
    load.until(20).await;
    load.check(&stores[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_record_is_told_and_holds_nobody_else_up() {
    let url = url();
    let store = Arc::new(open(&format!("{url}&timeout=1s&connections=2")).await);
    let token = acquire(&store, "locked").await.token;
    let mut other = client(&url).await;
    let transaction = other.transaction().await.unwrap();
    let table = url.split("table=").nth(1).unwrap();
    let lock = format!("SELECT FROM {table} FOR UPDATE");
    transaction.execute(&lock, &[]).await.unwrap();
    let blocked = {
        let store = store.clone();
        tokio::spawn(async move {
            let (id, outcome) = (identity("locked"), Outcome::void());
            let step = store.complete(id.digest(), &token, &outcome, Retention::ORDER);
            step.await
        })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    for n in 0..10 {
        acquire(&store, &format!("free-{n}")).await;
    }
    let error = blocked.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Contended, "{error}");
    assert!(error.to_string().contains("locked"), "{error}");
    // Reading needs no lock.
    let rival = store.claim(&identity("locked"), &request()).await.unwrap();
    assert!(matches!(rival, Claim::InFlight { .. }));
    transaction.rollback().await.unwrap();
    assert_eq!(complete(&store, "locked", &token).await, Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_with_a_locked_record_loses_nobody() {
    let url = url();
    // One connection: all that comes while it waits for the lock is one group after it.
    let store = Arc::new(open(&format!("{url}&timeout=3s&connections=1")).await);
    let token = acquire(&store, "locked").await.token;
    let mut other = client(&url).await;
    let transaction = other.transaction().await.unwrap();
    let table = url.split("table=").nth(1).unwrap();
    let lock = format!("SELECT FROM {table} FOR UPDATE");
    transaction.execute(&lock, &[]).await.unwrap();
    let slow = store.clone();
    let first = tokio::spawn(async move {
        slow.list(&semel::store::ListQuery::new(semel::StateKind::Unknown))
            .await
    });
    let mut tasks = Vec::new();
    for n in 0..20 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            if n == 10 {
                return complete(&store, "locked", &token).await;
            }
            acquire(&store, &format!("free-{n}")).await;
            Fenced::Applied
        }));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    transaction.rollback().await.unwrap();
    first.await.unwrap().unwrap();
    for task in tasks {
        assert_eq!(task.await.unwrap(), Fenced::Applied);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stricter_isolation_and_deadlocks_are_sent_again() {
    let url = url();
    let options = "options=-c%20default_transaction_isolation%3Dserializable";
    let url = format!("{url}&{options}");
    let stores = [Arc::new(open(&url).await), Arc::new(open(&url).await)];
    for round in 0..20 {
        let tasks: Vec<_> = (0..16)
            .map(|n| {
                let store = stores[n % 2].clone();
                tokio::spawn(async move {
                    let key = format!("round-{round}-and-so-on");
                    store.claim(&identity(&key), &request()).await.unwrap()
                })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            won += usize::from(matches!(task.await.unwrap(), Claim::Acquired(_)));
        }
        assert_eq!(won, 1, "winners of round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_connections_is_not_applied() {
    let server =
        Postgres::start(&["max_connections=6", "superuser_reserved_connections=0"]).unwrap();
    let store = open(&format!("{}?connections=1&listen=off", server.url())).await;
    let mut taken = Vec::new();
    while let Ok((client, connection)) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await
    {
        tokio::spawn(connection);
        taken.push(client);
    }
    let error = store
        .claim(&identity("a-key"), &request())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    drop(taken);
    recovered(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_leave_the_store_usable() {
    let store = Arc::new(open(&format!("{}&connections=2", url())).await);
    for n in 0..200 {
        let key = format!("dropped-{n}");
        let (id, request) = (identity(&key), request());
        let call = store.claim(&id, &request);
        let patience = Duration::from_micros(n * 20);
        let _maybe = tokio::time::timeout(patience, call).await;
        // Done or not, the same nonce gets it.
        acquire_as(&store, &key, &request).await;
    }
}

/// The answer to a claim is lost, and sent again it finds another's attempt: its first sending may arrive after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_doubt_is_not_simply_told_of_another() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = open(&format!(
        "{}?listen=off",
        server.url_through(proxy.address())
    ))
    .await;
    acquire(&store, "key").await;
    recovered(&store).await;
    proxy.once(Fault::CutAnswers);
    let error = store.claim(&identity("key"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    let again = store.claim(&identity("key"), &request()).await.unwrap();
    assert!(matches!(again, Claim::InFlight { .. }), "{again:?}");
}
