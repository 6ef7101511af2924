//! Each step is one round trip; takeovers, resolutions and refusals two.

use std::time::Duration;

use semel::store::{Claim, Fenced, Nonce, OnLost, Resolution, StoreExt as _, Verdict};
use semel::{Outcome, Store as _};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::Server as _;

use super::{LONG, acquire, claim, complete, identity, open, own, request};

#[tokio::test]
async fn every_step_is_one_round_trip() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let store = open(&server.url_through(proxy.address())).await;
    // Opening left a connection; a step on one that lay for a second asks whether it lives.
    let key = identity("key");
    let digest = key.digest();
    acquire(&store, "warm").await;
    macro_rules! trips {
        ($what:literal, $step:expr) => {
            trips!($what, 1, $step)
        };
        ($what:literal, $wanted:literal, $step:expr) => {{
            acquire(
                &store,
                concat!("fresh before ", $what).replace(' ', "-").as_str(),
            )
            .await;
            let before = proxy.round_trips();
            let answer = $step.await.unwrap();
            let trips = proxy.round_trips() - before;
            println!("{}: {trips}", $what);
            assert_eq!(trips, $wanted, $what);
            answer
        }};
    }
    let first = request(LONG, OnLost::Hold);
    let won = trips!("claim", store.claim(&key, &first));
    let Claim::Acquired(won) = won else {
        panic!("{won:?}")
    };
    let token = &won.token;
    trips!("claim again", store.claim(&key, &first));
    trips!("claim in flight", claim(&store, "key"));
    let done = trips!("renew", store.renew(digest, token, LONG));
    assert_eq!(done, Fenced::Applied);
    let done = trips!("complete", complete(&store, "key", token));
    assert_eq!(done, Fenced::Applied);
    let done = trips!("complete again", 2, complete(&store, "key", token));
    assert_eq!(done, Fenced::Applied);
    let done = trips!("refused", 2, store.abandon(digest, token));
    assert!(matches!(done, Fenced::Refused(_)), "{done:?}");
    let replay = trips!("replay", claim(&store, "key"));
    assert!(matches!(replay, Claim::Completed { .. }), "{replay:?}");
    assert!(trips!("get", store.get(digest)).is_some());

    let other = identity("other");
    let token = acquire(&store, "other").await;
    let done = trips!("abandon", store.abandon(other.digest(), &token));
    assert_eq!(done, Fenced::Applied);
    let token = acquire(&store, "other").await;
    let done = trips!("mark unknown", store.mark_unknown(other.digest(), &token));
    assert_eq!(done, Fenced::Applied);
    let resolution = Resolution {
        verdict: Verdict::Happened {
            outcome: Outcome::void(),
            retention: semel::store::Retention::ORDER,
        },
        by: "me".into(),
        reason: "looked".into(),
        fence: token.fence,
        nonce: Nonce::random().unwrap(),
    };
    let done = trips!("resolve", 2, store.resolve(other.digest(), &resolution));
    assert_eq!(done, Fenced::Applied);

    let lapsing = request(Duration::from_millis(1), OnLost::Retry);
    let key = identity("lapsing");
    store.claim(&key, &lapsing).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    // The first packet puts a record where there is none.
    let before = proxy.round_trips();
    let taken = store
        .claim(&key, &request(LONG, OnLost::Retry))
        .await
        .unwrap();
    assert_eq!(proxy.round_trips() - before, 2, "take over");
    assert!(matches!(taken, Claim::Acquired(a) if a.attempt == 2));
}
