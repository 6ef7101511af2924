//! The unknown state: an attempt may have had its effect, and nobody recorded it.

use super::expect::{acquired, applied, completed, settled, unknown};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::record::{State, StateKind};
use crate::store::{OnLost, Retention, Store as _, StoreExt as _};
use crate::{Outcome, Timestamp};

cases! { "unknown";
    marked_is_held [R7 R8]
        "a record marked unknown is answered as unknown under Hold and Reconcile, with the attempt's fence";
    marked_is_run_again_under_retry [R7]
        "a record marked unknown is taken over under Retry, with a higher fence and the next attempt number";
    marked_again [R4]
        "marking again with the same token answers Applied and changes nothing";
    not_after_settling [R4]
        "a completed or released record is not marked";
    marked_after_a_lapse [R4 R7]
        "a lapsed attempt that nobody took over may mark itself";
    late_truth_is_welcome [R4 R5]
        "the holder of the token completes an unknown record, and claims replay it from then on";
}

async fn marked_is_held(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.unknown().await?;
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.state, State::Unknown, "state");
    ensure_eq!(record.expires_at, Timestamp::MAX, "end of retention");
    ensure_eq!(record.purge_at, Timestamp::MAX, "time of purging");
    ensure!(record.settled_at.is_some(), "when it was found is kept");
    for on_lost in [OnLost::Hold, OnLost::Reconcile] {
        let fence = unknown(bench.rival(&attempt, on_lost).await?)?;
        ensure_eq!(fence, attempt.token.fence, "fence under {on_lost:?}");
    }
    // Nor may the attempt that gave up start again by itself.
    let own = bench.store().claim(&attempt.identity, &attempt.request);
    unknown(own.await?)?;
    Ok(())
}

async fn marked_is_run_again_under_retry(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.unknown().await?;
    let next = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure_eq!(next.attempt, 2, "attempt");
    ensure!(next.token.fence > attempt.token.fence, "the fence grows");
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.state, State::InFlight, "state");
    ensure_eq!(record.settled_at, None, "time of settling");
    Ok(())
}

async fn marked_again(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.unknown().await?;
    let before = bench.entry(attempt.digest()).await?;
    for store in [bench.store(), bench.other()] {
        applied(store.mark_unknown(attempt.digest(), &attempt.token).await?)?;
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn not_after_settling(bench: &Bench) -> Result<(), Failure> {
    let store = bench.store();
    let retention = Retention::new(LONG);
    let done = bench.completed(&Outcome::void(), retention).await?;
    let marked = store.mark_unknown(done.digest(), &done.token);
    settled(marked.await?, StateKind::Completed)?;
    completed(bench.rival(&done, OnLost::Hold).await?)?;

    let released = bench.attempt().await?;
    applied(store.abandon(released.digest(), &released.token).await?)?;
    let marked = store.mark_unknown(released.digest(), &released.token);
    settled(marked.await?, StateKind::Released)?;
    acquired(bench.rival(&released, OnLost::Hold).await?)?;
    Ok(())
}

async fn marked_after_a_lapse(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    let marked = bench.store().mark_unknown(attempt.digest(), &attempt.token);
    applied(marked.await?)?;
    unknown(bench.rival(&attempt, OnLost::Hold).await?)?;
    Ok(())
}

async fn late_truth_is_welcome(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.unknown().await?;
    let outcome = Outcome::success(b"late, and true");
    let retention = Retention::new(LONG);
    let late = bench
        .store()
        .complete(attempt.digest(), &attempt.token, &outcome, retention);
    applied(late.await?)?;
    let (replayed, _) = completed(bench.rival(&attempt, OnLost::Hold).await?)?;
    ensure_eq!(replayed, outcome, "outcome");
    Ok(())
}
