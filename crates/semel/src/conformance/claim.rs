//! What a claim answers, and what it leaves in the store.

use std::time::Duration;

use super::bench::{Attempt, request};
use super::expect::{acquired, applied, completed, in_flight, mismatch};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::record::State;
use crate::store::{Acquired, ClaimRequest, Fence, OnLost, Retention, Store as _, StoreExt as _};
use crate::{Fingerprint, Outcome, Timestamp};

cases! { "claim";
    first_claim_is_acquired [R1 R3]
        "the first claim is acquired as attempt 1, and the record holds its token, fingerprint and lease";
    own_nonce_is_acquired_again [R2]
        "a claim sent again under its own nonce gets the same token and changes nothing";
    own_nonce_is_acquired_after_a_lapse [R2 R7]
        "the same past its lease, while nobody took over: a winner never loses to its own first packet";
    second_claim_is_in_flight [R1]
        "while an attempt holds its lease, others learn its fence and how long the lease lasts";
    other_fingerprint_in_flight [R3]
        "another request under the same identity is a mismatch while the first one runs, and changes nothing";
    other_fingerprint_completed [R3]
        "another request is a mismatch when the first one is completed, and changes nothing";
    other_fingerprint_unknown [R3 R7]
        "another request is a mismatch when the first one is unknown, also under Retry, and changes nothing";
    other_fingerprint_lapsed [R3 R7]
        "another request is a mismatch when the first one's lease lapsed, under every policy, and changes nothing";
    other_fingerprint_under_own_nonce [R3]
        "the winner's own nonce with another request is a mismatch";
    other_fingerprint_version [R3]
        "fingerprints of different versions are never equal";
    other_fingerprint_after_release [R3]
        "after a release another request is welcome, and its fingerprint is the saved one";
    attempts_are_counted [R1 R7]
        "attempts count up across release and takeover, and the time of the first claim stays";
    since_is_the_records_beginning [R1 R7]
        "an acquired claim says when its record began, the same when sent again, after a release and after a takeover";
    since_moves_with_retention [R6]
        "past retention, purged or not, a record begins anew, later than the one before";
    longest_lease_and_retention [R6]
        "the longest lease and the longest retention that can be written are taken without overflow";
}

async fn first_claim_is_acquired(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    ensure!(attempt.token.fence > Fence(0), "a fence is above zero");
    ensure_eq!(
        attempt.token.nonce,
        attempt.request.nonce,
        "the token's nonce"
    );
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(
        record.fingerprint,
        attempt.request.fingerprint,
        "fingerprint"
    );
    ensure_eq!(record.token, attempt.token, "token");
    ensure_eq!(record.attempt, 1, "attempt");
    ensure_eq!(record.state, State::InFlight, "state");
    ensure_eq!(record.created_at, record.claimed_at, "time of creation");
    ensure_eq!(attempt.since, record.created_at, "beginning of the record");
    let lease = record.claimed_at.until(record.lease_until);
    ensure_eq!(lease, attempt.request.lease, "lease");
    ensure_eq!(record.settled_at, None, "time of settling");
    ensure_eq!(record.expires_at, Timestamp::MAX, "end of retention");
    ensure_eq!(record.purge_at, Timestamp::MAX, "time of purging");
    ensure_eq!(record.resolved, None, "resolution");
    Ok(())
}

async fn own_nonce_is_acquired_again(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let before = bench.entry(attempt.digest()).await?;
    for store in [bench.store(), bench.other()] {
        let again = acquired(store.claim(&attempt.identity, &attempt.request).await?)?;
        ensure_eq!(again.token, attempt.token, "token");
        ensure_eq!(again.attempt, 1, "attempt");
        ensure_eq!(again.is_repeated, true, "whether it is repeated");
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn own_nonce_is_acquired_after_a_lapse(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    for on_lost in [OnLost::Hold, OnLost::Reconcile, OnLost::Retry] {
        let request = ClaimRequest {
            on_lost,
            ..attempt.request.clone()
        };
        let again = acquired(bench.store().claim(&attempt.identity, &request).await?)?;
        ensure_eq!(again.token, attempt.token, "token under {on_lost:?}");
        ensure_eq!(again.attempt, 1, "attempt under {on_lost:?}");
    }
    Ok(())
}

async fn second_claim_is_in_flight(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let before = bench.entry(attempt.digest()).await?;
    for on_lost in [OnLost::Hold, OnLost::Reconcile, OnLost::Retry] {
        let (fence, remaining) = in_flight(bench.rival(&attempt, on_lost).await?)?;
        ensure_eq!(fence, attempt.token.fence, "fence under {on_lost:?}");
        ensure!(
            remaining <= LONG && remaining > LONG / 2,
            "{remaining:?} of a lease of {LONG:?} remain"
        );
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

/// Claims with another fingerprint under every policy, and wants a mismatch that changes nothing.
async fn mismatches(bench: &Bench, attempt: &Attempt) -> Result<(), Failure> {
    let before = bench.entry(attempt.digest()).await?;
    for on_lost in [OnLost::Hold, OnLost::Reconcile, OnLost::Retry] {
        let other = ClaimRequest {
            fingerprint: Fingerprint::of(b"another request"),
            on_lost,
            ..request()?
        };
        mismatch(bench.store().claim(&attempt.identity, &other).await?)?;
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn other_fingerprint_in_flight(bench: &Bench) -> Result<(), Failure> {
    mismatches(bench, &bench.attempt().await?).await
}

async fn other_fingerprint_completed(bench: &Bench) -> Result<(), Failure> {
    let retention = Retention::new(LONG);
    let attempt = bench
        .completed(&Outcome::success(b"kept"), retention)
        .await?;
    mismatches(bench, &attempt).await
}

async fn other_fingerprint_unknown(bench: &Bench) -> Result<(), Failure> {
    mismatches(bench, &bench.unknown().await?).await
}

async fn other_fingerprint_lapsed(bench: &Bench) -> Result<(), Failure> {
    mismatches(bench, &bench.lapsed().await?).await
}

async fn other_fingerprint_under_own_nonce(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let other = ClaimRequest {
        fingerprint: Fingerprint::of(b"another request"),
        ..attempt.request
    };
    mismatch(bench.store().claim(&attempt.identity, &other).await?)
}

async fn other_fingerprint_version(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let mut bytes = attempt.request.fingerprint.to_bytes();
    bytes[0] = bytes[0].wrapping_add(1);
    let other = ClaimRequest {
        fingerprint: Fingerprint::from_bytes(bytes),
        ..request()?
    };
    mismatch(bench.store().claim(&attempt.identity, &other).await?)
}

async fn other_fingerprint_after_release(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let store = bench.store();
    applied(store.abandon(attempt.digest(), &attempt.token).await?)?;
    let other = ClaimRequest {
        fingerprint: Fingerprint::of(b"another request"),
        ..request()?
    };
    let second = acquired(store.claim(&attempt.identity, &other).await?)?;
    mismatch(store.claim(&attempt.identity, &attempt.request).await?)?;
    let saved = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(saved.fingerprint, other.fingerprint, "fingerprint");
    ensure_eq!(saved.token, second.token, "token");
    Ok(())
}

async fn attempts_are_counted(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let store = bench.store();
    let created = bench.entry(attempt.digest()).await?.record.created_at;
    applied(store.abandon(attempt.digest(), &attempt.token).await?)?;
    bench.pass(Duration::from_millis(1)).await;

    let brief = ClaimRequest {
        lease: bench.short(),
        ..request()?
    };
    let second = acquired(store.claim(&attempt.identity, &brief).await?)?;
    ensure_eq!(second.attempt, 2, "attempt after a release");
    bench.pass(bench.short()).await;

    let third = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure_eq!(third.attempt, 3, "attempt after a takeover");
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.attempt, 3, "attempt in the record");
    ensure_eq!(record.created_at, created, "time of the first claim");
    ensure!(
        record.claimed_at > created,
        "the latest claim has a time of its own"
    );
    Ok(())
}

/// Wants the claim to have said of its record's beginning what the record says.
async fn began(bench: &Bench, attempt: &Attempt, claim: &Acquired) -> Result<(), Failure> {
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.token, claim.token, "token");
    ensure_eq!(claim.since, record.created_at, "beginning of the record");
    Ok(())
}

async fn since_is_the_records_beginning(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let store = bench.store();
    for store in [store, bench.other()] {
        let again = acquired(store.claim(&attempt.identity, &attempt.request).await?)?;
        ensure_eq!(again.since, attempt.since, "under its own nonce");
        began(bench, &attempt, &again).await?;
    }
    applied(store.abandon(attempt.digest(), &attempt.token).await?)?;
    bench.pass(Duration::from_millis(1)).await;

    let brief = ClaimRequest {
        lease: bench.short(),
        ..request()?
    };
    let second = acquired(store.claim(&attempt.identity, &brief).await?)?;
    ensure_eq!(second.since, attempt.since, "after a release");
    began(bench, &attempt, &second).await?;
    bench.other().get(attempt.digest()).await?;
    bench.pass(bench.short()).await;

    let third = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure_eq!(third.since, attempt.since, "after a takeover");
    began(bench, &attempt, &third).await?;
    applied(store.mark_unknown(attempt.digest(), &third.token).await?)?;

    let fourth = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure_eq!(fourth.since, attempt.since, "where it was unknown");
    began(bench, &attempt, &fourth).await
}

async fn since_moves_with_retention(bench: &Bench) -> Result<(), Failure> {
    for purge in [false, true] {
        let attempt = bench.past_retention(purge).await?;
        let next = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
        ensure!(
            next.since > attempt.since,
            "a record that began at {:?} followed one of {:?} (purged: {purge})",
            next.since,
            attempt.since
        );
        began(bench, &attempt, &next).await?;
    }
    Ok(())
}

async fn longest_lease_and_retention(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt_for(Duration::MAX).await?;
    let store = bench.store();
    in_flight(bench.rival(&attempt, OnLost::Retry).await?)?;
    applied(
        store
            .renew(attempt.digest(), &attempt.token, Duration::MAX)
            .await?,
    )?;
    let forever = Retention::new(Duration::MAX).with_tombstone(Duration::MAX);
    let outcome = Outcome::success(b"kept");
    applied(
        store
            .complete(attempt.digest(), &attempt.token, &outcome, forever)
            .await?,
    )?;
    ensure_eq!(
        completed(bench.rival(&attempt, OnLost::Retry).await?)?.0,
        outcome,
        "outcome"
    );
    Ok(())
}
