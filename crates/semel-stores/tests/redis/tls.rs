//! TLS with an authority of one's own.

use semel::{Store as _, StoreErrorKind};
use semel_stores::OpenError;

use super::{claim, identity, options};
use crate::certificates::{Authority, redis};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_known_by_its_certificate() {
    let authority = Authority::new();
    let (_server, port) = redis::server(&authority, "no");
    let authority = authority.file();
    let url = format!("rediss://127.0.0.1:{port}");
    let store = options()
        .open(&format!("{url}?ca={authority}"))
        .await
        .unwrap();
    let identity = identity("a-key-of-some-length");
    let own = claim(&store, &identity).await;
    // The subscriber, too.
    let wait = store.wait(
        identity.digest(),
        own.token.fence,
        std::time::Duration::from_millis(20),
    );
    wait.await.unwrap();

    // Nobody known signed it.
    assert!(options().open(&url).await.is_err());
    match options().open(&format!("{url}?ca=/nowhere.pem")).await {
        Err(OpenError::Store(error)) => assert_eq!(error.kind(), StoreErrorKind::Config),
        other => panic!("{other:?}"),
    }
}
