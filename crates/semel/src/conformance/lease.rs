//! Leases: who holds an identity, until when, and what happens after that.

use std::time::Duration;

use super::bench::{Attempt, request};
use super::expect::{acquired, applied, completed, in_flight, settled, unknown};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::Outcome;
use crate::record::{State, StateKind};
use crate::store::{ClaimRequest, OnLost, Refusal, Retention, Store as _, StoreExt as _};

cases! { "lease";
    lapsed_under_retry_is_taken_over [R1 R7]
        "a lapsed lease is taken over under Retry, with a higher fence and the next attempt number";
    lapsed_under_hold_is_unknown [R7 R8]
        "a lapsed lease is unknown under Hold, again and again, and is never run again by itself";
    lapsed_under_reconcile_is_unknown [R7 R8]
        "a lapsed lease is unknown under Reconcile, again and again";
    lease_ends_where_it_says [R6 R7]
        "a lease lasts for [claimed, claimed + lease) by the store's clock";
    no_lease_lapses_at_once [R6 R7]
        "a lease of nothing has lapsed when it begins";
    renewal_keeps_the_claim [R4 R6]
        "a renewed lease outlasts its first end and counts from the renewal";
    renewal_never_shortens [R4 R6]
        "a renewal by less than what is left changes nothing";
    renewal_of_a_lapsed_lease [R4 R7]
        "a lapsed lease that nobody took over is renewed";
    renewal_of_a_settled_record [R4]
        "a completed, released or unknown record is not renewed, and the answer names its state";
    settling_after_a_lapse [R4 R5]
        "the holder of the token may complete or abandon past the lease, while nobody took over";
}

async fn lapsed_under_retry_is_taken_over(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    let second = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure!(
        second.token.fence > attempt.token.fence,
        "the fence went from {} to {}",
        attempt.token.fence,
        second.token.fence
    );
    ensure_eq!(second.attempt, 2, "attempt");
    let (fence, _) = in_flight(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure_eq!(fence, second.token.fence, "fence of the holder");
    Ok(())
}

async fn held(bench: &Bench, on_lost: OnLost) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    for _ in 0..3 {
        let fence = unknown(bench.rival(&attempt, on_lost).await?)?;
        ensure_eq!(fence, attempt.token.fence, "fence");
        bench.pass(bench.short()).await;
    }
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.state, State::Unknown, "state");
    ensure_eq!(record.token, attempt.token, "token");
    ensure!(record.settled_at.is_some(), "when it was found is kept");
    Ok(())
}

async fn lapsed_under_hold_is_unknown(bench: &Bench) -> Result<(), Failure> {
    held(bench, OnLost::Hold).await
}

async fn lapsed_under_reconcile_is_unknown(bench: &Bench) -> Result<(), Failure> {
    held(bench, OnLost::Reconcile).await
}

async fn lease_ends_where_it_says(bench: &Bench) -> Result<(), Failure> {
    let lease = bench.short();
    let attempt = bench.attempt_for(lease).await?;
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.claimed_at.until(record.lease_until), lease, "lease");
    if bench.is_manual() {
        let instant = Duration::from_micros(1);
        bench.pass(lease - instant).await;
        let (_, remaining) = in_flight(bench.rival(&attempt, OnLost::Retry).await?)?;
        ensure_eq!(remaining, instant, "what remains just before the end");
        bench.pass(instant).await;
    } else {
        bench.pass(lease).await;
    }
    acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    Ok(())
}

async fn no_lease_lapses_at_once(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt_for(Duration::ZERO).await?;
    let second = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure!(second.token.fence > attempt.token.fence, "the fence grows");
    let attempt = bench.attempt_for(Duration::ZERO).await?;
    unknown(bench.rival(&attempt, OnLost::Hold).await?)?;
    Ok(())
}

async fn renewal_keeps_the_claim(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt_for(bench.short().saturating_mul(4)).await?;
    let store = bench.store();
    bench.pass(bench.short()).await;
    let before = bench.entry(attempt.digest()).await?.record;
    applied(store.renew(attempt.digest(), &attempt.token, LONG).await?)?;
    let after = bench.entry(attempt.digest()).await?.record;
    let lease = after.claimed_at.until(after.lease_until);
    ensure!(
        lease >= LONG + bench.short(),
        "the lease counts from the renewal: {lease:?} from the claim"
    );
    ensure_eq!(after.token, before.token, "token");
    ensure_eq!(after.claimed_at, before.claimed_at, "time of the claim");
    bench.pass(bench.short().saturating_mul(4)).await;
    let (fence, _) = in_flight(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure_eq!(fence, attempt.token.fence, "fence");
    Ok(())
}

async fn renewal_never_shortens(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let before = bench.entry(attempt.digest()).await?;
    for lease in [Duration::ZERO, bench.short(), LONG / 2] {
        let renewed = bench.store().renew(attempt.digest(), &attempt.token, lease);
        applied(renewed.await?)?;
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn renewal_of_a_lapsed_lease(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    let renewed = bench.store().renew(attempt.digest(), &attempt.token, LONG);
    applied(renewed.await?)?;
    in_flight(bench.rival(&attempt, OnLost::Retry).await?)?;
    Ok(())
}

async fn not_renewed(bench: &Bench, attempt: &Attempt, state: StateKind) -> Result<(), Failure> {
    let before = bench.entry(attempt.digest()).await?;
    let renewed = bench.store().renew(attempt.digest(), &attempt.token, LONG);
    settled(renewed.await?, state)?;
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn renewal_of_a_settled_record(bench: &Bench) -> Result<(), Failure> {
    let completed = bench
        .completed(&Outcome::void(), Retention::new(LONG))
        .await?;
    not_renewed(bench, &completed, StateKind::Completed).await?;
    not_renewed(bench, &bench.unknown().await?, StateKind::Unknown).await?;
    let released = bench.attempt().await?;
    let abandoned = bench.store().abandon(released.digest(), &released.token);
    applied(abandoned.await?)?;
    not_renewed(bench, &released, StateKind::Released).await?;
    let nobody = bench.identity("never-claimed")?;
    let renewed = bench.store().renew(nobody.digest(), &released.token, LONG);
    super::expect::refused(renewed.await?, Refusal::Missing)
}

async fn settling_after_a_lapse(bench: &Bench) -> Result<(), Failure> {
    let store = bench.store();
    let (late, gone) = (bench.lapsed().await?, bench.lapsed().await?);
    let outcome = Outcome::success(b"late, and true");
    let completed_late = store.complete(late.digest(), &late.token, &outcome, Retention::new(LONG));
    applied(completed_late.await?)?;
    let (replayed, _) = completed(bench.rival(&late, OnLost::Retry).await?)?;
    ensure_eq!(replayed, outcome, "outcome");

    applied(store.abandon(gone.digest(), &gone.token).await?)?;
    let fresh = ClaimRequest {
        on_lost: OnLost::Hold,
        ..request()?
    };
    ensure_eq!(
        acquired(store.claim(&gone.identity, &fresh).await?)?.attempt,
        2,
        "attempt"
    );
    Ok(())
}
