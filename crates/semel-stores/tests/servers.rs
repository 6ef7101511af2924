//! What the tests of several stores on servers do alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::{
    Claim, ClaimRequest, Fence, Fenced, Nonce, Resolution, Retention, Store, StoreExt as _, Token,
    Verdict, Waited,
};
use semel::{Fingerprint, Identity, Key, Outcome, Scope, StoreErrorKind};
use semel_testkit::proxy::{Fault, Proxy};
use tokio::time::sleep;

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
    let next = loop {
        match direct.claim(&one, &request()).await.unwrap() {
            Claim::Acquired(next) => break next.token,
            _ => sleep(Duration::from_millis(10)).await,
        }
    };
    proxy.set(Fault::None);
    if cut {
        proxy.cut();
    }
    let error = completing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    assert!(error.to_string().contains("refused now"), "{error}");
    completed(&direct, &one, &next).await;
}
