//! Leases without a server's clock, and fences with several wall clocks.

use std::sync::Arc;

use semel::store::{Refusal, StoreExt as _};
use semel::{ManualClock, Timestamp};

use super::*;
use crate::servers::did_not_happen;

const LEASE: Duration = Duration::from_millis(800);

fn clock(seconds: u64) -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_micros(
        seconds * 1_000_000,
    )))
}

const NOW: u64 = 1_800_000_000;
const YEAR: u64 = 365 * 24 * 3600;

#[tokio::test]
async fn no_wall_clock_takes_a_lease_or_keeps_it() {
    let url = url();
    let holder = create(options(&url).clock(clock(NOW))).await;
    let ahead = create(options(&url).clock(clock(NOW + YEAR))).await;
    let behind = create(options(&url).clock(clock(NOW - YEAR))).await;
    let one = identity("one");
    let first = acquired(claim(&holder, &one, &request(LEASE, OnLost::Hold)).await);
    let retry = request(LEASE, OnLost::Retry);
    for store in [&ahead, &behind] {
        match claim(store, &one, &retry).await {
            Claim::InFlight { fence, remaining } => {
                assert_eq!(fence, first.token.fence);
                assert!(remaining <= LEASE, "{remaining:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    tokio::time::sleep(LEASE).await;
    // The clock that is a year behind takes over, with a fence that grows.
    let second = acquired(claim(&behind, &one, &request(LONG, OnLost::Retry)).await);
    assert!(second.token.fence > first.token.fence);
    assert!(matches!(
        claim(&ahead, &one, &retry).await,
        Claim::InFlight { .. }
    ));
    let answer = outcome();
    let late = holder.complete(one.digest(), &first.token, &answer, DAY);
    assert_eq!(late.await.unwrap(), Refusal::Superseded.into());
}

#[tokio::test]
async fn who_comes_late_waits_for_a_whole_lease() {
    let url = url();
    let (holder, late) = (create(options(&url)).await, create(options(&url)).await);
    let one = identity("one");
    let first = acquired(claim(&holder, &one, &request(LEASE, OnLost::Hold)).await);
    tokio::time::sleep(LEASE + Duration::from_millis(50)).await;
    // It has lapsed, but this handle has not watched it.
    let retry = request(LEASE, OnLost::Retry);
    assert!(matches!(
        claim(&late, &one, &retry).await,
        Claim::InFlight { .. }
    ));
    let resolution = did_not_happen(first.token.fence);
    let resolved = late.resolve(one.digest(), &resolution).await.unwrap();
    assert_eq!(resolved, Refusal::Running.into());
    tokio::time::sleep(LEASE).await;
    applied(late.resolve(one.digest(), &resolution).await.unwrap());
}

#[tokio::test]
async fn a_renewal_is_seen_by_all_even_a_shorter_one() {
    let url = url();
    let (holder, other) = (create(options(&url)).await, create(options(&url)).await);
    let one = identity("one");
    let token = acquired(claim(&holder, &one, &request(LEASE, OnLost::Hold)).await).token;
    other.get(one.digest()).await.unwrap();
    for lease in [LEASE / 4, LEASE, LEASE / 4] {
        tokio::time::sleep(LEASE * 3 / 4).await;
        applied(holder.renew(one.digest(), &token, lease).await.unwrap());
        let retry = request(LEASE, OnLost::Retry);
        for store in [&holder, &other] {
            assert!(matches!(
                claim(store, &one, &retry).await,
                Claim::InFlight { .. }
            ));
        }
    }
    tokio::time::sleep(LEASE).await;
    acquired(claim(&other, &one, &request(LONG, OnLost::Retry)).await);
}

#[tokio::test]
async fn two_observers_of_one_lapse_have_one_winner() {
    let url = url();
    let (one, other) = (create(options(&url)).await, create(options(&url)).await);
    let ids: Vec<_> = (0..10).map(|n| identity(&format!("key {n}"))).collect();
    for id in &ids {
        acquired(claim(&one, id, &request(LEASE, OnLost::Hold)).await);
        other.get(id.digest()).await.unwrap();
    }
    tokio::time::sleep(LEASE).await;
    for id in &ids {
        let (left, right) = (request(LONG, OnLost::Retry), request(LONG, OnLost::Retry));
        let both = tokio::join!(claim(&one, id, &left), claim(&other, id, &right));
        let won = matches!(both.0, Claim::Acquired(_));
        assert_ne!(won, matches!(both.1, Claim::Acquired(_)), "{both:?}");
    }
}

#[tokio::test]
async fn fences_grow_where_clocks_do_not_agree() {
    let url = url();
    let ahead = create(options(&url).clock(clock(NOW + YEAR))).await;
    let behind = create(options(&url).clock(clock(NOW))).await;
    let one = identity("one");
    let mut last = 0;
    for n in 0..3 {
        for store in [&ahead, &behind] {
            let next = acquired(claim(store, &one, &request(LONG, OnLost::Hold)).await);
            assert!(next.token.fence.0 > last, "round {n}");
            last = next.token.fence.0;
            applied(store.abandon(one.digest(), &next.token).await.unwrap());
        }
    }
    // A clock that is set back does not repeat a fence of this handle, even on another identity.
    let first = acquired(claim(&behind, &identity("a"), &request(LONG, OnLost::Hold)).await);
    let second = acquired(claim(&behind, &identity("b"), &request(LONG, OnLost::Hold)).await);
    assert!(second.token.fence > first.token.fence);
}

#[tokio::test]
async fn retention_goes_by_the_wall_clock_of_who_asks() {
    let url = url();
    let (writer, reader) = (clock(NOW), clock(NOW));
    let store = create(options(&url).clock(writer)).await;
    let other = create(options(&url).clock(reader.clone())).await;
    let one = identity("one");
    let token = acquired(claim(&store, &one, &request(LONG, OnLost::Hold)).await).token;
    complete(&store, &one, &token, DAY).await;
    let instant = Duration::from_micros(1);
    reader.advance(DAY.replay - instant);
    match claim(&other, &one, &request(LONG, OnLost::Hold)).await {
        Claim::Completed { remaining, .. } => assert_eq!(remaining, instant),
        other => panic!("{other:?}"),
    }
    reader.advance(instant);
    let next = acquired(claim(&other, &one, &request(LONG, OnLost::Hold)).await);
    assert_eq!(next.attempt, 1);
}
