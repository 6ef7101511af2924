//! What lies in the server: one key a record, what it holds, when it goes, and what is not a record.

use std::time::Duration;

use ::redis::from_redis_value;
use semel::store::{
    ClaimRequest, Clear as _, Cursor, Fence, Fenced, ListQuery, Refusal, Retention, StoreExt as _,
    Token,
};
use semel::{Identity, Key, Outcome, Scope, StateKind, Store as _, StoreErrorKind};
use semel_testkit::servers::{Redis, Server as _};

use super::{RedisOptions, ask, claim, failed, identity, options, outcome, request, tell};

async fn server() -> (Redis, semel_stores::RedisStore) {
    let server = Redis::start(&[]).unwrap();
    let store = RedisOptions::new().open(&server.url()).await.unwrap();
    (server, store)
}

fn key(identity: &Identity) -> String {
    format!("semel:{}", identity.digest())
}

async fn value(server: &Redis, identity: &Identity) -> Vec<u8> {
    from_redis_value(tell(server.address(), &["GET", &key(identity)]).await).unwrap()
}

/// Writes over a part of a value.
async fn patch(server: &Redis, identity: &Identity, place: usize, bytes: &[u8]) {
    let mut command = ::redis::cmd("SETRANGE");
    command.arg(key(identity)).arg(place).arg(bytes);
    ask(server.address(), &command).await;
}

async fn ttl(server: &Redis, key: &str) -> i64 {
    from_redis_value(tell(server.address(), &["PTTL", key]).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_settled_records_have_an_end() {
    let (server, store) = server().await;
    let identity = identity("a-key-of-some-length");
    let key = key(&identity);
    let own = claim(&store, &identity).await;
    assert_eq!(ttl(&server, &key).await, -1, "in flight");
    let _ = store
        .renew(identity.digest(), &own.token, super::LEASE * 2)
        .await
        .unwrap();
    assert_eq!(ttl(&server, &key).await, -1, "renewed");
    let _ = store.abandon(identity.digest(), &own.token).await.unwrap();
    // Redis counts milliseconds, and the end is rounded up to one.
    let left = ttl(&server, &key).await;
    assert!((50_000..=60_001).contains(&left), "released: {left}");
    let own = claim(&store, &identity).await;
    assert_eq!(ttl(&server, &key).await, -1, "claimed again");
    let _ = store
        .mark_unknown(identity.digest(), &own.token)
        .await
        .unwrap();
    assert_eq!(ttl(&server, &key).await, -1, "unknown");
    let retention =
        Retention::new(Duration::from_secs(100)).with_tombstone(Duration::from_secs(50));
    let outcome = outcome();
    let done = store.complete(identity.digest(), &own.token, &outcome, retention);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    let left = ttl(&server, &key).await;
    assert!((140_000..=150_001).contains(&left), "completed: {left}");
    let size: i64 = from_redis_value(tell(server.address(), &["DBSIZE"]).await).unwrap();
    assert_eq!(size, 1, "one key a record");
}

/// What docs/stores/redis.md says of a value.
#[tokio::test(flavor = "multi_thread")]
async fn records_can_be_read_by_people() {
    let (server, store) = server().await;
    let identity = Identity::new(
        Scope::new(["tenant 7", "a\0b\nc", ""]),
        "POST /orders",
        Key::new("order-0123456789").unwrap(),
    );
    let own = claim(&store, &identity).await;
    let read = async || value(&server, &identity).await;
    let claimed = read().await;
    assert_eq!(claimed[..2], [2, 0], "layout, nobody waits");
    assert_eq!(claimed[7..39], *identity.digest().as_bytes());
    assert_eq!(claimed[39], 1, "in flight");
    assert_eq!(claimed[73..81], own.token.fence.0.to_be_bytes());
    assert_eq!(claimed[81..97], *own.token.nonce.as_bytes());
    assert_eq!(claimed[125..149], [[0; 8], [255; 8], [255; 8]].concat());
    let text = String::from_utf8_lossy(&claimed);
    for part in ["tenant 7", "a\0b\nc", "POST /orders", "order-01"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("order-012"), "never the whole key");
    // Behind what stays is the outcome's own form.
    let done = super::complete(&store, identity.digest(), &own.token);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    let completed = read().await;
    assert_eq!(completed[39], 3, "completed");
    assert_eq!(completed[149..claimed.len()], claimed[149..]);
    assert_eq!(completed[claimed.len()..], *outcome().as_bytes());
    let entry = store.get(identity.digest()).await.unwrap().unwrap();
    assert_eq!(&entry.label.scope, identity.scope());
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_are_compared_to_the_last_digit() {
    let (server, store) = server().await;
    let identity = identity("a-key-of-some-length");
    let own = claim(&store, &identity).await;
    // As doubles these are one number.
    let large = 9_007_199_254_740_993_u64;
    patch(&server, &identity, 73, &large.to_be_bytes()).await;
    for (fence, right) in [
        (large - 1, false),
        (large + 1, false),
        (u64::MAX, false),
        (large, true),
    ] {
        let token = Token {
            fence: Fence(fence),
            ..own.token
        };
        let answer = store
            .renew(identity.digest(), &token, super::LEASE)
            .await
            .unwrap();
        let wanted = if right {
            Fenced::Applied
        } else {
            Refusal::Superseded.into()
        };
        assert_eq!(answer, wanted, "{fence}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_about_another_record_is_never_used() {
    let (server, store) = server().await;
    let (first, second) = (
        identity("a-key-of-some-length"),
        identity("another-key-of-length"),
    );
    let own = claim(&store, &first).await;
    let done = super::complete(&store, first.digest(), &own.token);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    // What a client that mixes up answers would give.
    tell(server.address(), &["COPY", &key(&first), &key(&second)]).await;
    failed(
        store.claim(&second, &request()).await,
        StoreErrorKind::Corrupt,
    );
    failed(store.get(second.digest()).await, StoreErrorKind::Corrupt);
    let wait = store.wait(second.digest(), own.token.fence, super::LEASE);
    failed(wait.await, StoreErrorKind::Corrupt);
    let again = super::complete(&store, second.digest(), &own.token);
    failed(again.await, StoreErrorKind::Corrupt);
    store.get(first.digest()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_record_is_said() {
    let (server, store) = server().await;
    let other = identity("a-key-of-some-length");
    tell(server.address(), &["SET", &key(&other), "something else"]).await;
    failed(
        store.claim(&other, &request()).await,
        StoreErrorKind::Corrupt,
    );
    let damaged = identity("another-key-of-length");
    let own = claim(&store, &damaged).await;
    let done = super::complete(&store, damaged.digest(), &own.token);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    let whole = value(&server, &damaged).await;
    let outcome = whole.len() - outcome().as_bytes().len();
    let put = async |bytes: &[u8]| {
        let mut command = ::redis::cmd("SET");
        ask(server.address(), command.arg(key(&damaged)).arg(bytes)).await;
    };
    let corrupt = async || {
        let claimed = store.claim(&damaged, &request()).await;
        let error = failed(claimed, StoreErrorKind::Corrupt);
        failed(store.get(damaged.digest()).await, StoreErrorKind::Corrupt);
        error.to_string()
    };
    // The layout, the entry's version, the state and the outcome's version are others.
    for place in [0, 6, 39, outcome] {
        let mut bytes = whole.clone();
        bytes[place] = 9;
        put(&bytes).await;
        corrupt().await;
    }
    for length in [0, 100, 149, outcome] {
        put(&whole[..length]).await;
        corrupt().await;
    }
    put(&whole).await;
    store.get(damaged.digest()).await.unwrap().unwrap();
    // As it was before this layout.
    tell(server.address(), &["DEL", &key(&damaged)]).await;
    let hash = ["HSET", &key(&damaged), "state", "completed", "at", "1 1"];
    tell(server.address(), &hash).await;
    let error = corrupt().await;
    assert!(error.contains("this version"), "{error}");
    let again = super::complete(&store, damaged.digest(), &own.token).await;
    failed(again, StoreErrorKind::Corrupt);
    // A listing leaves out nothing that could be a record.
    for key in [key(&damaged), key(&other)] {
        let listed = store.list(&ListQuery::new(StateKind::InFlight)).await;
        failed(listed, StoreErrorKind::Corrupt);
        tell(server.address(), &["DEL", &key]).await;
    }
    // Other people's keys do not stop it.
    tell(server.address(), &["SET", "semel:notes", "x"]).await;
    claim(&store, &identity("a-third-key-of-length")).await;
    let listed = store
        .list(&ListQuery::new(StateKind::InFlight))
        .await
        .unwrap();
    assert_eq!(listed.entries.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_outcomes_are_kept_up_to_a_limit() {
    let (_server, store) = server().await;
    let identity = identity("a-key-of-some-length");
    let own = claim(&store, &identity).await;
    let complete = async |bytes: usize| {
        let outcome = Outcome::success(&vec![b'x'; bytes]);
        let digest = identity.digest();
        store
            .complete(digest, &own.token, &outcome, Retention::ORDER)
            .await
    };
    failed(complete(33 << 20).await, StoreErrorKind::TooLarge);
    assert_eq!(complete(31 << 20).await.unwrap(), Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_stores_for_tests_are_cleared() {
    let (server, store) = server().await;
    let tests = options().open(&server.url()).await.unwrap();
    for store in [&store, &tests] {
        for _ in 0..1_500 {
            let asked = ClaimRequest {
                lease: super::LEASE,
                ..request()
            };
            store
                .claim(&identity("a-key-of-some-length"), &asked)
                .await
                .unwrap();
        }
    }
    failed(store.clear(false).await, StoreErrorKind::Config);
    tests.clear(false).await.unwrap();
    let count = async |store: &semel_stores::RedisStore| {
        let (mut query, mut count) = (ListQuery::new(StateKind::InFlight), 0);
        loop {
            query.limit = 400;
            let page = store.list(&query).await.unwrap();
            count += page.entries.len();
            match page.next {
                Some(next) => query.after = Some(next),
                None => return count,
            }
        }
    };
    assert_eq!((count(&store).await, count(&tests).await), (1_500, 0));
    store.clear(true).await.unwrap();
    assert_eq!(count(&store).await, 0);
}

/// Among many keys a page looks at some of them, and each record is on one.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_among_many_keys_is_bounded() {
    const RECORDS: usize = 500;
    let (server, store) = server().await;
    let fill = "for i = 1, 12000 do redis.call('SET', 'other:' .. i, 'x') end";
    tell(server.address(), &["EVAL", fill, "0"]).await;
    let mut unknown = None;
    for nth in 0..RECORDS {
        let identity = identity("a-key-of-some-length");
        let own = claim(&store, &identity).await;
        if nth == 0 {
            let _ = store
                .mark_unknown(identity.digest(), &own.token)
                .await
                .unwrap();
            unknown = Some(*identity.digest());
        }
    }
    let scanned = async || -> u64 {
        let stats = tell(server.address(), &["INFO", "commandstats"]).await;
        let stats: String = from_redis_value(stats).unwrap();
        let scans = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_scan:calls="));
        scans.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
    };
    for (state, limit, records) in [
        (StateKind::InFlight, 1, RECORDS - 1),
        (StateKind::InFlight, 100, RECORDS - 1),
        (StateKind::InFlight, 1_000, RECORDS - 1),
        (StateKind::Unknown, 100, 1),
    ] {
        let mut query = ListQuery {
            limit,
            ..ListQuery::new(state)
        };
        let (mut seen, mut pages) = (std::collections::HashSet::new(), 0);
        loop {
            let before = scanned().await;
            let page = store.list(&query).await.unwrap();
            assert!(
                scanned().await - before <= 80,
                "a whole scan takes 125 of the shortest steps"
            );
            assert!(page.entries.len() <= limit);
            for entry in page.entries {
                assert_eq!(entry.record.state.kind(), state);
                assert!(seen.insert(entry.label.digest), "twice");
            }
            pages += 1;
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen.len(), records);
        assert!(pages > 2, "{pages}");
        if state == StateKind::Unknown {
            assert_eq!(seen.into_iter().next(), unknown);
        }
    }
    // Each run of a server has an order of its own.
    let mut query = ListQuery::new(StateKind::InFlight);
    let next = store.list(&query).await.unwrap().next.unwrap();
    let mut other = next.0.to_vec();
    other[5] ^= 1;
    query.after = Some(Cursor(other.into()));
    let error = failed(store.list(&query).await, StoreErrorKind::Config);
    assert!(error.to_string().contains("begin again"), "{error}");
    query.after = Some(Cursor(next.0[..20].into()));
    failed(store.list(&query).await, StoreErrorKind::Config);
}
