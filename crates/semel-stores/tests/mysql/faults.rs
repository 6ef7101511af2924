//! The server or the way to it fails under load.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel::store::{Acquired, Claim, Fenced, OnLost, StoreExt as _};
use semel::{Store as _, StoreError, StoreErrorKind};
use semel_stores::MysqlStore;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{MariaDb, Server};
use sqlx::Row as _;
use tokio::task::{JoinSet, spawn_blocking};

use super::{
    LONG, acquire, acquired, ask, claim, complete, identity, link, open, options, own, request,
};

/// What callers met, by kind. Any other kind fails the test.
#[derive(Default, Debug)]
struct Met {
    not_applied: AtomicUsize,
    unknown: AtomicUsize,
}

/// Repeats the same step until it is answered.
async fn until<T, F>(met: &Met, step: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let end = Instant::now() + Duration::from_mins(1);
    loop {
        let error = match step().await {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        match error.kind() {
            StoreErrorKind::NotApplied | StoreErrorKind::Contended => &met.not_applied,
            StoreErrorKind::Unknown => &met.unknown,
            other => panic!("{other:?}: {error}"),
        }
        .fetch_add(1, Ordering::SeqCst);
        assert!(Instant::now() < end, "no recovery: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Claims and completes new keys until told to stop; returns the keys.
async fn work(
    store: Arc<MysqlStore>,
    worker: usize,
    met: Arc<Met>,
    stop: Arc<AtomicBool>,
) -> Vec<String> {
    let mut done = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let key = format!("key-{worker}-{}", done.len());
        let (identity, request) = (identity(&key), request(LONG, OnLost::Hold));
        let claim = until(&met, || store.claim(&identity, &request)).await;
        let Acquired { token, attempt, .. } = acquired(claim);
        // Its own first try, whose answer was lost, is no rival.
        assert_eq!(attempt, 1);
        let applied = until(&met, || complete(&store, &key, &token)).await;
        assert_eq!(applied, Fenced::Applied);
        done.push(key);
    }
    done
}

/// Runs eight workers while `fault` does its worst, and checks that nothing acknowledged is lost.
async fn under_load<F: Future<Output = ()>>(store: &Arc<MysqlStore>, fault: F) -> Arc<Met> {
    let (met, stop) = (Arc::new(Met::default()), Arc::new(AtomicBool::new(false)));
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        workers.spawn(work(store.clone(), worker, met.clone(), stop.clone()));
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    fault.await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    stop.store(true, Ordering::SeqCst);
    let done: Vec<String> = workers.join_all().await.into_iter().flatten().collect();
    println!("{} pairs, {met:?}", done.len());
    assert!(done.len() > 50, "too few: {}", done.len());
    for key in &done {
        let again = until(&met, || claim(store, key)).await;
        let Claim::Completed { outcome, .. } = again else {
            panic!("{key}: {again:?}")
        };
        assert_eq!(outcome.body().unwrap(), key.as_bytes());
    }
    met
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_started_again() {
    let server = Arc::new(own(&[]).await);
    let store = Arc::new(open(&server.url()).await);
    let broken = server.clone();
    let met = under_load(&store, async move {
        for _ in 0..2 {
            let broken = broken.clone();
            spawn_blocking(move || {
                broken.nodes()[0].kill();
                std::thread::sleep(Duration::from_millis(300));
                broken.nodes()[0].start().unwrap();
            })
            .await
            .unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })
    .await;
    assert!(met.unknown.load(Ordering::SeqCst) > 0);
    assert!(met.not_applied.load(Ordering::SeqCst) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_killed_by_the_server() {
    let server = own(&[]).await;
    let store = Arc::new(open(&server.url()).await);
    let mut root = link(&server.url()).await;
    let mut killed = 0;
    let met = under_load(&store, async {
        for _ in 0..20 {
            let list = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
                 WHERE user='semel' AND id<>CONNECTION_ID() LIMIT 3";
            for row in ask(&mut root, list).await {
                let kill = format!("KILL CONNECTION {}", row.get::<i64, _>(0));
                // It may be gone by now.
                if sqlx::raw_sql(sqlx::AssertSqlSafe(kill))
                    .execute(&mut root)
                    .await
                    .is_ok()
                {
                    killed += 1;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    println!("{killed} killed");
    assert!(killed > 10);
    // What was lost is sent again, on another connection; the token makes it the same step.
    assert_eq!(met.not_applied.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_cut_on_the_way() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let store = Arc::new(open(&server.url_through(proxy.address())).await);
    let met = under_load(&store, async {
        for fault in [
            Fault::CutAnswers,
            Fault::HalveAnswers,
            Fault::Refuse,
            Fault::CutAnswers,
        ] {
            proxy.set(fault);
            tokio::time::sleep(Duration::from_millis(150)).await;
            proxy.set(Fault::None);
            tokio::time::sleep(Duration::from_millis(150)).await;
            proxy.cut();
        }
    })
    .await;
    assert!(proxy.hits() > 10);
    assert!(met.unknown.load(Ordering::SeqCst) > 0);
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_the_same_step_again_is_fine() {
    let server = own(&[]).await;
    for fault in [
        Fault::SwallowAnswers,
        Fault::CutAnswers,
        Fault::HalveAnswers,
    ] {
        let proxy = Proxy::start(server.address()).unwrap();
        let quick = options(&server.url_through(proxy.address())).timeout(Duration::from_secs(2));
        let store = quick.open().await.unwrap();
        macro_rules! lost {
            ($step:expr) => {{
                // On a connection that stands: what is made anew would lose its own answers.
                acquire(&store, concat!("warm-", line!())).await;
                proxy.set(fault);
                let lost = $step.await.unwrap_err();
                proxy.set(Fault::None);
                assert_eq!(lost.kind(), StoreErrorKind::Unknown, "{fault:?}: {lost}");
                $step.await.unwrap()
            }};
        }
        let (key, first) = (identity("key"), request(LONG, OnLost::Hold));
        let won = acquired(lost!(store.claim(&key, &first)));
        assert_eq!(won.attempt, 1);
        let token = won.token;
        assert_eq!(
            lost!(store.renew(key.digest(), &token, LONG)),
            Fenced::Applied
        );
        assert_eq!(lost!(complete(&store, "key", &token)), Fenced::Applied);
        let token = acquire(&store, "other").await;
        let other = identity("other");
        assert_eq!(
            lost!(store.mark_unknown(other.digest(), &token)),
            Fenced::Applied
        );
        assert_eq!(
            lost!(store.abandon(other.digest(), &token)),
            Fenced::Applied
        );
        acquire(&store, "warm").await;
        proxy.set(fault);
        let lost = store.get(key.digest()).await.unwrap_err();
        assert_eq!(lost.kind(), StoreErrorKind::NotApplied);
        assert!(proxy.hits() >= 6);
    }
}

#[tokio::test]
async fn nothing_sent_is_not_applied() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let quick = options(&server.url_through(proxy.address())).timeout(Duration::from_secs(1));
    let store = quick.open().await.unwrap();
    proxy.set(Fault::Refuse);
    // The first may go out on a connection that was cut a moment ago.
    claim(&store, "first").await.unwrap_err();
    let refused = claim(&store, "second").await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NotApplied, "{refused}");
    proxy.set(Fault::Blackhole);
    let late = claim(&store, "third").await.unwrap_err();
    assert_eq!(late.kind(), StoreErrorKind::NotApplied, "{late}");
    proxy.set(Fault::None);
    acquire(&store, "fourth").await;
}

/// Eight callers fight for four keys with leases of 400 ms while the server stands still for four
/// of them.
#[tokio::test(flavor = "multi_thread")]
async fn paused_for_longer_than_a_lease() {
    async fn fight(
        store: Arc<MysqlStore>,
        met: Arc<Met>,
        stop: Arc<AtomicBool>,
    ) -> Vec<(usize, Acquired)> {
        let (mut won, mut round) = (Vec::new(), 0_usize);
        while !stop.load(Ordering::SeqCst) {
            round += 1;
            let key = round % 4;
            let (identity, lease) = (identity(&format!("key-{key}")), Duration::from_millis(400));
            let request = request(lease, OnLost::Retry);
            let claim = until(&met, || store.claim(&identity, &request)).await;
            if let Claim::Acquired(acquired) = claim {
                won.push((key, acquired));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        won
    }
    let server: Arc<MariaDb> = Arc::new(own(&[]).await);
    let quick = options(&server.url()).timeout(Duration::from_millis(500));
    let store = Arc::new(quick.open().await.unwrap());
    let (met, stop) = (Arc::new(Met::default()), Arc::new(AtomicBool::new(false)));
    let mut fighters = JoinSet::new();
    for _ in 0..8 {
        fighters.spawn(fight(store.clone(), met.clone(), stop.clone()));
    }
    tokio::time::sleep(Duration::from_millis(1000)).await;
    server.nodes()[0].pause();
    tokio::time::sleep(Duration::from_millis(1600)).await;
    server.nodes()[0].resume();
    tokio::time::sleep(Duration::from_millis(2000)).await;
    stop.store(true, Ordering::SeqCst);
    let won: Vec<(usize, Acquired)> = fighters.join_all().await.into_iter().flatten().collect();
    println!("{} acquired, {met:?}", won.len());
    assert!(met.unknown.load(Ordering::SeqCst) > 0);
    let mut seen: HashMap<usize, HashSet<u64>> = HashMap::new();
    let mut attempts: HashMap<usize, HashSet<u32>> = HashMap::new();
    for (key, Acquired { token, attempt, .. }) in &won {
        assert!(
            seen.entry(*key).or_default().insert(token.fence.0),
            "two winners"
        );
        assert!(
            attempts.entry(*key).or_default().insert(*attempt),
            "two winners"
        );
    }
    assert_eq!(seen.len(), 4);
    assert!(won.len() > 12, "too few: {}", won.len());
}

/// The answer to a claim is lost, and sent again it finds another's attempt: its first sending may arrive after that.
#[tokio::test]
async fn a_claim_in_doubt_is_not_simply_told_of_another() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let store = open(&server.url_through(proxy.address())).await;
    acquire(&store, "key").await;
    proxy.once(Fault::CutAnswers);
    let error = claim(&store, "key").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    let again = claim(&store, "key").await.unwrap();
    assert!(matches!(again, Claim::InFlight { .. }), "{again:?}");
}

/// Idle connections to a server that is gone without a word are given up together, soon enough for another.
#[tokio::test]
async fn idle_connections_that_are_silent_are_left() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let store = Arc::new(open(&server.url_through(proxy.address())).await);
    let mut warm = JoinSet::new();
    for number in 0..4 {
        let store = store.clone();
        warm.spawn(async move { claim(&store, &format!("warm-{number}")).await.unwrap() });
    }
    warm.join_all().await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    // The ping's answer only.
    proxy.once(Fault::SwallowAnswers);
    acquire(&store, "key").await;
    assert_eq!(proxy.hits(), 1);
}
