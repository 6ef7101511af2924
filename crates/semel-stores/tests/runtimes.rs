//! A store outlives the runtime that it was opened on.

use std::sync::Arc;
use std::time::Duration;

use semel::store::{Claim, ClaimRequest, Fenced, Nonce, Retention, StoreExt as _};
use semel::{AnyStore, Fingerprint, Identity, Key, Outcome, Scope, Store as _};
use semel_stores::{OpenOptions, open};
use tokio::runtime::{Builder, Runtime};

/// More than there are connections.
const AT_ONCE: usize = 200;

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

async fn run(store: &Arc<AnyStore>, keys: &'static str) {
    let scope = hex::encode(Nonce::random().unwrap().as_bytes());
    let attempts = (0..AT_ONCE).map(|n| {
        let key = Key::new(&format!("{keys}-{n}")).unwrap();
        let (store, identity) = (
            store.clone(),
            Identity::new(Scope::new([&scope]), "op", key),
        );
        tokio::spawn(async move {
            let nonce = Nonce::random().unwrap();
            let asked = Fingerprint::of(b"asked");
            let request = ClaimRequest::new(nonce, asked, Duration::from_secs(600));
            let Claim::Acquired(own) = store.claim(&identity, &request).await.unwrap() else {
                panic!("{keys}-{n}");
            };
            let (done, retention) = (Outcome::success(b"done"), Retention::ORDER);
            let done = store.complete(identity.digest(), &own.token, &done, retention);
            assert_eq!(done.await.unwrap(), Fenced::Applied);
        })
    });
    for attempt in attempts.collect::<Vec<_>>() {
        attempt.await.unwrap();
    }
}

fn outlives_it(url: &str) {
    let first = runtime();
    let store = first.block_on(async {
        let store = open(url, &OpenOptions::default()).await.unwrap();
        let store = Arc::new(store);
        run(&store, "first").await;
        store
    });
    drop(first);
    runtime().block_on(async {
        run(&store, "second").await;
        store.close().await.unwrap();
    });
}

#[cfg(feature = "postgres")]
#[test]
fn postgres() {
    outlives_it(&format!("{}&schema=create", crate::postgres::url()));
}

#[cfg(feature = "mysql")]
#[test]
fn mysql() {
    let url = runtime().block_on(crate::mysql::common());
    let separator = if url.contains('?') { '&' } else { '?' };
    outlives_it(&format!("{url}{separator}schema=create"));
}

#[cfg(feature = "redis")]
#[test]
fn redis() {
    use semel_testkit::servers::{Kind, shared};
    outlives_it(&shared(Kind::Redis).unwrap());
    outlives_it(&shared(Kind::RedisCluster).unwrap());
}
