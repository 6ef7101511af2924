//! What the tests of several stores on servers do alike.

#![cfg_attr(
    not(all(feature = "dynamodb", feature = "nats", feature = "redis")),
    allow(dead_code, reason = "not each store needs all")
)]

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel::store::{
    Claim, ClaimRequest, Fence, Fenced, Nonce, Resolution, Result, Retention, Store, StoreExt as _,
    Token, Verdict, Waited,
};
use semel::{AnyStore, Fingerprint, Identity, Key, Outcome, Scope, StoreError, StoreErrorKind};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_hours(1);

fn identity(name: &str) -> Identity {
    Identity::new(Scope::new(["servers"]), "op", Key::new(name).unwrap())
}

fn request() -> ClaimRequest {
    ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b"request"), LONG)
}

/// The token of a first claim.
async fn claimed(store: &impl Store, identity: &Identity) -> Token {
    match store.claim(identity, &request()).await.unwrap() {
        Claim::Acquired(acquired) => acquired.token,
        other => panic!("not acquired: {other:?}"),
    }
}

async fn completed(store: &impl Store, identity: &Identity, token: &Token) {
    let (outcome, retention) = (Outcome::success(b"done"), Retention::ORDER);
    let done = store.complete(identity.digest(), token, &outcome, retention);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
}

#[track_caller]
fn unknown<T: Debug>(result: Result<T>) -> StoreError {
    match result {
        Err(error) if error.kind() == StoreErrorKind::Unknown => error,
        other => panic!("wanted Unknown: {other:?}"),
    }
}

/// Tries until it succeeds.
pub(crate) async fn eventually<T, F: Future<Output = Result<T>>>(
    mut attempt: impl FnMut() -> F,
) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match attempt().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < end, "still failing: {error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Somebody's word that the attempt with this fence had no effect.
pub(crate) fn did_not_happen(fence: Fence) -> Resolution {
    Resolution {
        verdict: Verdict::DidNotHappen,
        by: "test".into(),
        reason: "asked".into(),
        fence,
        nonce: Nonce::random().unwrap(),
    }
}

/// How long after the answer to a completion one who waits is woken, each of so many times, in order. The
/// completion comes a `pause` after the wait.
pub(crate) async fn woken<S: Store>(
    completing: &S,
    waiting: &Arc<S>,
    times: usize,
    pause: Duration,
) -> Vec<Duration> {
    let mut took = Vec::new();
    for n in 0..times {
        let one = identity(&format!("woken-{n}"));
        let token = claimed(completing, &one).await;
        let (store, digest) = (waiting.clone(), *one.digest());
        let waiter = tokio::spawn(async move {
            let waited = store.wait(&digest, token.fence, Duration::from_secs(20));
            assert_eq!(waited.await.unwrap(), Waited::Changed);
            Instant::now()
        });
        sleep(pause).await;
        completed(completing, &one, &token).await;
        let done = Instant::now();
        took.push(waiter.await.unwrap().saturating_duration_since(done));
    }
    took.sort_unstable();
    took
}

pub(crate) async fn closing_ends_waits(store: impl Store) {
    let (store, one) = (Arc::new(store), identity("closing"));
    let token = claimed(&*store, &one).await;
    let (waiting, digest) = (store.clone(), *one.digest());
    let waiter = tokio::spawn(async move { waiting.wait(&digest, token.fence, LONG).await });
    sleep(Duration::from_millis(100)).await;
    let from = Instant::now();
    store.close().await.unwrap();
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Closed);
    assert!(from.elapsed() < Duration::from_secs(5));
}

/// The completion is stored, and its answer lost. Before it is sent or asked for again (`cut`: over another
/// connection), its retention is over and another claim holds the record: to say that the completion was refused
/// would be false.
pub(crate) async fn others_came_after<S: Store>(proxy: &Proxy, store: S, direct: S, cut: bool) {
    let one = identity("after");
    let token = claimed(&store, &one).await;
    proxy.set(Fault::SwallowAnswers);
    let digest = *one.digest();
    let completing = tokio::spawn(async move {
        let outcome = Outcome::success(b"done");
        let brief = Retention::new(Duration::from_millis(50));
        store.complete(&digest, &token, &outcome, brief).await
    });
    let coming = async {
        loop {
            match direct.claim(&one, &request()).await.unwrap() {
                Claim::Acquired(next) => break next.token,
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let next = timeout(Duration::from_secs(30), coming).await;
    let next = next.expect("the completion arrives, and its retention ends");
    proxy.set(Fault::None);
    if cut {
        proxy.cut();
    }
    let error = unknown(completing.await.unwrap());
    assert!(error.to_string().contains("refused now"), "{error}");
    completed(&direct, &one, &next).await;
}

/// A step is done, and its answer is lost: nobody says that it was not, and to ask again is right.
pub(crate) async fn lost_answers(
    proxy: &Proxy,
    store: impl Store,
    direct: impl Store,
    faults: &[Fault],
) {
    for (n, fault) in faults.iter().enumerate() {
        let [one, released, other] =
            ["done", "released", "other"].map(|name| identity(&format!("{name}-{n}")));
        let (asked, hits) = (request(), proxy.hits());
        // A standing connection: the step goes out, and only its answer is lost.
        eventually(|| store.claim(&other, &asked)).await;

        proxy.set(*fault);
        unknown(store.claim(&one, &asked).await);
        // It happened: another sees it.
        let rival = direct.claim(&one, &request()).await.unwrap();
        assert!(matches!(rival, Claim::InFlight { .. }), "{rival:?}");
        proxy.set(Fault::None);
        let won = match eventually(|| store.claim(&one, &asked)).await {
            Claim::Acquired(won) => won,
            lost => panic!("{fault:?}: lost to its own claim: {lost:?}"),
        };
        assert_eq!((won.token.nonce, won.attempt), (asked.nonce, 1));

        proxy.set(*fault);
        let (digest, outcome) = (one.digest(), Outcome::success(b"done"));
        let complete = || store.complete(digest, &won.token, &outcome, Retention::ORDER);
        unknown(complete().await);
        proxy.set(Fault::None);
        assert_eq!(eventually(complete).await, Fenced::Applied);
        let replay = store.claim(&one, &request()).await.unwrap();
        assert!(matches!(replay, Claim::Completed { .. }), "{replay:?}");

        let token = claimed(&store, &released).await;
        proxy.set(*fault);
        let abandon = || store.abandon(released.digest(), &token);
        unknown(abandon().await);
        proxy.set(Fault::None);
        assert_eq!(eventually(abandon).await, Fenced::Applied);
        assert!(proxy.hits() > hits, "{fault:?} did not happen");
    }
}

/// The answer to a claim is lost, and sent again it finds another's attempt: its first sending may arrive after that.
pub(crate) async fn a_claim_in_doubt(proxy: &Proxy, store: impl Store) {
    let (key, asked) = (identity("doubt"), request());
    claimed(&store, &key).await;
    proxy.once(Fault::CutAnswers);
    unknown(store.claim(&key, &asked).await);
    let again = store.claim(&key, &asked).await.unwrap();
    assert!(matches!(again, Claim::InFlight { .. }), "{again:?}");
}

/// Callers that claim and complete until they are stopped. Counts what was done, and keeps those
/// whose completion was acknowledged.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    callers: JoinSet<Vec<Identity>>,
}

impl Load {
    pub(crate) fn start(store: &AnyStore, callers: usize) -> Self {
        let mut load = Self {
            stop: Arc::default(),
            done: Arc::default(),
            callers: JoinSet::new(),
        };
        for caller in 0..callers {
            let (store, stop, done) = (store.clone(), load.stop.clone(), load.done.clone());
            load.callers.spawn(async move {
                let mut kept = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let one = identity(&format!("load-{caller}-{}", kept.len()));
                    let asked = request();
                    let Claim::Acquired(own) = eventually(|| store.claim(&one, &asked)).await
                    else {
                        panic!("nobody else claims it");
                    };
                    let outcome = Outcome::success(b"done");
                    let complete =
                        || store.complete(one.digest(), &own.token, &outcome, Retention::ORDER);
                    assert_eq!(eventually(complete).await, Fenced::Applied);
                    done.fetch_add(1, Ordering::Relaxed);
                    kept.push(one);
                }
                kept
            });
        }
        load
    }

    /// Lets it run until this many more are done.
    pub(crate) async fn more(&self, count: usize) {
        let wanted = self.done.load(Ordering::Relaxed) + count;
        let end = Instant::now() + Duration::from_secs(60);
        while self.done.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < end, "nothing goes on");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Every acknowledged completion is replayed.
    pub(crate) async fn check(self, store: &AnyStore) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let mut count = 0;
        for identity in self.callers.join_all().await.into_iter().flatten() {
            let asked = request();
            let again = eventually(|| store.claim(&identity, &asked)).await;
            assert!(matches!(again, Claim::Completed { .. }), "{again:?}");
            count += 1;
        }
        count
    }
}

/// A server that is killed, again and again, under load.
pub(crate) async fn killed(server: &impl Server, store: AnyStore) {
    let load = Load::start(&store, 16);
    for _ in 0..3 {
        load.more(50).await;
        server.nodes()[0].kill();
        sleep(Duration::from_millis(100)).await;
        server.nodes()[0].start().unwrap();
    }
    load.more(50).await;
    assert!(load.check(&store).await >= 200);
}
