//! How many requests each step takes. Each is paid for.

use semel::FinishedStep;
use semel::record::Change;
use semel::store::StoreExt as _;
use semel_stores::dynamodb::Purging;
use semel_testkit::servers::{DynamoDb, Server as _};

use super::*;
use crate::servers::did_not_happen;

/// Runs a step, and says how many requests the server took for it.
async fn cost<T>(server: &DynamoDb, step: impl Future<Output = T>) -> (u64, T) {
    let before = taken(server.address(), None);
    let done = step.await;
    (taken(server.address(), None) - before, done)
}

/// Runs a step, for which the server is to take one request.
async fn once<T>(server: &DynamoDb, what: &str, step: impl Future<Output = T>) -> T {
    let (requests, done) = cost(server, step).await;
    assert_eq!(requests, 1, "{what}");
    done
}

#[tokio::test]
async fn every_step_is_one_request() {
    let server = DynamoDb::start().unwrap();
    let store = create(options(&server.url())).await;
    let (one, mine) = (identity("one"), request(LONG, OnLost::Hold));
    let answer = outcome();
    let digest = one.digest();

    let claiming = async |what: &str, request: &ClaimRequest| {
        once(&server, what, claim(&store, &one, request)).await
    };
    let changing = async |what: &str, change: Change| {
        applied(
            once(&server, what, store.change(digest, &change))
                .await
                .unwrap(),
        );
    };
    let token = acquired(claiming("claim", &mine).await).token;
    let again = acquired(claiming("claim again", &mine).await);
    assert_eq!(again.token, token);
    let rival = request(LONG, OnLost::Retry);
    let refused = claiming("claim of what is in flight", &rival).await;
    assert!(matches!(refused, Claim::InFlight { .. }));
    for lease in [LONG, LONG * 2, LONG / 2] {
        changing("renewal", Change::renew(&token, lease)).await;
    }
    let mut kept = 0;
    for name in ["charge", "ship"] {
        let step = FinishedStep::new(name, b"result").unwrap();
        changing("keep_step", Change::keep_step(&token, &step, kept)).await;
        kept += step.as_bytes().len();
    }
    changing("abandon, with finished steps", Change::abandon(&token)).await;
    let second = acquired(claiming("claim after a release", &rival).await);
    assert_eq!(second.attempt, 2);
    changing("mark_unknown", Change::mark_unknown(&second.token)).await;
    let unknown = claiming("claim of what is unknown", &mine).await;
    assert!(matches!(unknown, Claim::Unknown { .. }));
    let retry = request(LONG, OnLost::Retry);
    let third = acquired(claiming("claim of an unknown one", &retry).await);
    assert_eq!(third.attempt, 3);
    for what in ["complete", "complete again"] {
        changing(what, Change::complete(&third.token, &answer, DAY)).await;
    }
    let replay = claiming("replay", &mine).await;
    assert!(matches!(replay, Claim::Completed { .. }));
    let entry = once(&server, "get", store.get(digest)).await;
    assert!(entry.unwrap().is_some());
}

#[tokio::test]
async fn what_a_lapse_and_a_resolution_cost() {
    let server = DynamoDb::start().unwrap();
    let store = create(options(&server.url())).await;
    let late = create(options(&server.url())).await;
    let short = Duration::from_millis(300);
    let all = ["taken", "held", "resolved", "late"].map(identity);
    let mut fences = Vec::new();
    for identity in &all {
        let first = claim(&store, identity, &request(short, OnLost::Hold)).await;
        fences.push(acquired(first).token.fence);
    }
    late.get(all[3].digest()).await.unwrap();
    tokio::time::sleep(short * 2).await;
    let [taken, held, resolved, unseen] = all;

    let takeover = request(LONG, OnLost::Retry);
    let (requests, claimed) = cost(&server, claim(&store, &taken, &takeover)).await;
    assert_eq!((requests, acquired(claimed).attempt), (1, 2), "takeover");
    let (requests, claimed) =
        cost(&server, claim(&store, &held, &request(LONG, OnLost::Hold))).await;
    assert!(matches!(claimed, Claim::Unknown { .. }));
    assert_eq!(requests, 1, "a lapse found under Hold");
    let resolution = did_not_happen(fences[2]);
    let (requests, done) = cost(&server, store.resolve(resolved.digest(), &resolution)).await;
    applied(done.unwrap());
    assert_eq!(requests, 1, "resolution of a lapsed one");
    let resolution = did_not_happen(fences[1]);
    let (requests, done) = cost(&server, store.resolve(held.digest(), &resolution)).await;
    applied(done.unwrap());
    assert_eq!(requests, 2, "resolution of an unknown one");
    let (requests, claimed) = cost(&server, claim(&late, &unseen, &takeover)).await;
    assert_eq!(
        (requests, acquired(claimed).attempt),
        (1, 2),
        "another handle's takeover"
    );
}

#[tokio::test]
async fn a_release_that_does_not_know_of_finished_steps_takes_two() {
    let server = DynamoDb::start().unwrap();
    let store = create(options(&server.url())).await;
    let other = create(options(&server.url())).await;
    let one = identity("one");
    let token = acquired(claim(&store, &one, &request(LONG, OnLost::Hold)).await).token;
    let step = FinishedStep::new("charge", b"").unwrap();
    applied(
        store
            .keep_step(one.digest(), &token, &step, 0)
            .await
            .unwrap(),
    );
    let (requests, abandoned) = cost(&server, other.abandon(one.digest(), &token)).await;
    applied(abandoned.unwrap());
    assert_eq!(requests, 2);
    let record = store.get(one.digest()).await.unwrap().unwrap().record;
    let kept_for = record.settled_at.unwrap().until(record.purge_at);
    assert_eq!(kept_for, semel::record::RELEASED_WITH_STEPS_FOR);
}

#[tokio::test]
async fn a_claim_on_what_is_past_its_retention_takes_two() {
    let server = DynamoDb::start().unwrap();
    let store = create(options(&server.url())).await;
    let one = identity("one");
    let token = acquired(claim(&store, &one, &request(LONG, OnLost::Hold)).await).token;
    let none = Retention::new(Duration::ZERO);
    complete(&store, &one, &token, none).await;
    let (requests, claimed) =
        cost(&server, claim(&store, &one, &request(LONG, OnLost::Hold))).await;
    assert_eq!((requests, acquired(claimed).attempt), (2, 1));
}

#[tokio::test]
async fn purging_is_left_to_the_table_unless_asked_for() {
    let server = DynamoDb::start().unwrap();
    let store = create(options(&server.url())).await;
    let scanning = create(options(&server.url()).purging(Purging::Scan)).await;
    let one = identity("one");
    let token = acquired(claim(&store, &one, &request(LONG, OnLost::Hold)).await).token;
    let none = Retention::new(Duration::ZERO);
    complete(&store, &one, &token, none).await;

    for asked in [1, 0] {
        let (requests, purged) = cost(&server, store.purge(100)).await;
        assert_eq!(purged.unwrap().removed, 0);
        assert_eq!(requests, asked, "once it is asked whether the TTL is on");
    }
    assert_eq!(taken(server.address(), Some("Scan")), 0);
    let purged = scanning.purge(100).await.unwrap();
    assert_eq!((purged.removed, purged.more), (1, false));
}
