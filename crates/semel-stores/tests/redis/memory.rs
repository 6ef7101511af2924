//! A server without memory left.

use semel::store::{Claim, Fenced, Retention, StoreExt as _};
use semel::{Outcome, Store as _, StoreErrorKind};
use semel_testkit::servers::{Redis, Server as _};

use super::{acquired, claim, failed, identity, options, request, tell};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_refuses_claims_and_takes_outcomes() {
    let server = Redis::start(&[]).unwrap();
    let store = options().open(&server.url()).await.unwrap();
    let mut running = Vec::new();
    for _ in 0..4 {
        let identity = identity("a-key-of-some-length");
        running.push((claim(&store, &identity).await, identity));
    }
    tell(server.address(), &["CONFIG", "SET", "maxmemory", "1"]).await;
    let identity = identity("a-key-of-some-length");
    for _ in 0..3 {
        failed(
            store.claim(&identity, &request()).await,
            StoreErrorKind::Capacity,
        );
    }
    assert_eq!(store.get(identity.digest()).await.unwrap(), None);
    let large = Outcome::success(&[b'x'; 100_000]);
    let [first, second, third, fourth] = &running[..] else {
        unreachable!()
    };
    let digest = first.1.digest();
    let renewed = store.renew(digest, &first.0.token, super::LEASE * 2).await;
    assert_eq!(renewed.unwrap(), Fenced::Applied);
    let done = store
        .complete(digest, &first.0.token, &large, Retention::ORDER)
        .await;
    assert_eq!(done.unwrap(), Fenced::Applied);
    let replay = store.claim(&first.1, &request()).await.unwrap();
    assert!(matches!(replay, Claim::Completed { outcome, .. } if outcome == large));
    let keys: Vec<String> =
        ::redis::from_redis_value(tell(server.address(), &["KEYS", &format!("*{digest}")]).await)
            .unwrap();
    let ttl = tell(server.address(), &["PTTL", &keys[0]]).await;
    assert!(::redis::from_redis_value::<i64>(ttl).unwrap() > 0);
    let released = store.abandon(second.1.digest(), &second.0.token).await;
    assert_eq!(released.unwrap(), Fenced::Applied);
    let marked = store.mark_unknown(third.1.digest(), &third.0.token).await;
    assert_eq!(marked.unwrap(), Fenced::Applied);
    // What was released is claimed anew, which a full server refuses, and it stays as it was.
    failed(
        store.claim(&second.1, &request()).await,
        StoreErrorKind::Capacity,
    );
    tell(server.address(), &["CONFIG", "SET", "maxmemory", "0"]).await;
    let next = acquired(store.claim(&second.1, &request()).await.unwrap());
    assert_eq!(next.attempt, 2);
    let fourth = store.claim(&fourth.1, &request()).await.unwrap();
    assert!(matches!(fourth, Claim::InFlight { .. }));
}
