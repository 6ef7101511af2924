//! How many requests each step takes. Each is paid for.

use semel::FinishedStep;
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

#[tokio::test]
async fn every_step_is_one_request() {
    let server = DynamoDb::start().unwrap();
    let store = create(options(&server.url())).await;
    let (one, mine) = (identity("one"), request(LONG, OnLost::Hold));
    let answer = outcome();
    let digest = one.digest();

    let (requests, first) = cost(&server, claim(&store, &one, &mine)).await;
    let token = acquired(first).token;
    assert_eq!(requests, 1, "claim");
    let (requests, again) = cost(&server, claim(&store, &one, &mine)).await;
    assert_eq!((requests, acquired(again).token), (1, token), "claim again");
    let rival = request(LONG, OnLost::Retry);
    let (requests, refused) = cost(&server, claim(&store, &one, &rival)).await;
    assert!(matches!(refused, Claim::InFlight { .. }));
    assert_eq!(requests, 1, "claim of what is in flight");
    for lease in [LONG, LONG * 2, LONG / 2] {
        let (requests, renewed) = cost(&server, store.renew(digest, &token, lease)).await;
        applied(renewed.unwrap());
        assert_eq!(requests, 1, "renewal to {lease:?}");
    }
    let mut kept = 0;
    for name in ["charge", "ship"] {
        let step = FinishedStep::new(name, b"result").unwrap();
        let (requests, done) = cost(&server, store.keep_step(digest, &token, &step, kept)).await;
        applied(done.unwrap());
        assert_eq!(requests, 1, "keep_step");
        kept += step.as_bytes().len();
    }
    let (requests, abandoned) = cost(&server, store.abandon(digest, &token)).await;
    applied(abandoned.unwrap());
    assert_eq!(requests, 1, "abandon, with finished steps");
    let (requests, second) = cost(&server, claim(&store, &one, &rival)).await;
    let second = acquired(second);
    assert_eq!((requests, second.attempt), (1, 2), "claim after a release");
    let (requests, marked) = cost(&server, store.mark_unknown(digest, &second.token)).await;
    applied(marked.unwrap());
    assert_eq!(requests, 1, "mark_unknown");
    let (requests, unknown) = cost(&server, claim(&store, &one, &mine)).await;
    assert!(matches!(unknown, Claim::Unknown { .. }));
    assert_eq!(requests, 1, "claim of what is unknown");
    let retry = request(LONG, OnLost::Retry);
    let (requests, third) = cost(&server, claim(&store, &one, &retry)).await;
    let third = acquired(third);
    assert_eq!((requests, third.attempt), (1, 3), "claim of an unknown one");
    let done = store.complete(digest, &third.token, &answer, DAY);
    let (requests, completed) = cost(&server, done).await;
    applied(completed.unwrap());
    assert_eq!(requests, 1, "complete");
    let done = store.complete(digest, &third.token, &answer, DAY);
    let (requests, completed) = cost(&server, done).await;
    applied(completed.unwrap());
    assert_eq!(requests, 1, "complete again");
    let (requests, replay) = cost(&server, claim(&store, &one, &mine)).await;
    assert!(matches!(replay, Claim::Completed { .. }));
    assert_eq!(requests, 1, "replay");
    let (requests, entry) = cost(&server, store.get(digest)).await;
    assert!(entry.unwrap().is_some());
    assert_eq!(requests, 1, "get");
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
