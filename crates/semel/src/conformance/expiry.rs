//! Retention: how long an outcome is replayed, what comes after, and what is never removed.

use std::time::Duration;

use super::bench::{Attempt, request};
use super::expect::{acquired, applied, completed, expired, in_flight, unknown};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::record::Record;
use crate::store::{ClaimRequest, OnLost, Retention, Store as _, StoreExt as _};
use crate::{Fingerprint, Outcome};

cases! { "expiry";
    retention_is_half_open [R5 R6]
        "an outcome is replayed in [completed, completed + retention), and the identity is free from then on";
    counted_from_completion [R5 R6]
        "retention counts from completion, not from the claim";
    replays_do_not_prolong [R5 R6]
        "replays and repeated completions leave the end of retention where it is";
    swept_or_not [R5 R6]
        "what is past retention answers the same whether a purge removed it or not";
    no_retention [R5 R6]
        "with a retention of nothing the identity is free at once";
    tombstone_says_expired [R5 R6]
        "after retention a tombstone answers Expired to any request, and the identity is free after it";
    running_is_never_purged [R8]
        "a record in flight is not purged, however long ago its lease lapsed";
    unknown_is_never_purged [R8]
        "an unknown record is not purged, however old it is";
    replayed_is_never_purged [R5 R8]
        "an outcome in its retention, and a tombstone, survive purging";
    purge_is_bounded [R6]
        "a purge removes no more than its limit, and says whether to call again";
    purge_is_complete [R6]
        "purging until nothing more is left removes everything past retention";
    past_retention_is_not_shown [R6]
        "a record past retention and tombstone is neither read nor listed";
}

async fn purge_all(bench: &Bench) -> Result<usize, Failure> {
    let mut removed = 0;
    loop {
        let purged = bench.store().purge(1_000).await?;
        removed += purged.removed;
        if !purged.more {
            return Ok(removed);
        }
    }
}

fn kept_for(record: &Record) -> Option<Duration> {
    record.settled_at.map(|at| at.until(record.expires_at))
}

async fn retention_is_half_open(bench: &Bench) -> Result<(), Failure> {
    let replay = bench.short();
    let attempt = bench
        .completed(&Outcome::void(), Retention::new(replay))
        .await?;
    if bench.is_manual() {
        let instant = Duration::from_micros(1);
        bench.pass(replay - instant).await;
        let (_, remaining) = completed(bench.rival(&attempt, OnLost::Hold).await?)?;
        ensure_eq!(remaining, instant, "what remains just before the end");
        bench.pass(instant).await;
    } else {
        bench.pass(replay).await;
    }
    let next = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    ensure_eq!(next.attempt, 1, "attempt");
    Ok(())
}

async fn counted_from_completion(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    bench.pass(bench.short().saturating_mul(3)).await;
    let retention = Retention::new(bench.short() * 2).with_tombstone(LONG);
    bench.complete(&attempt, &attempt.token, retention).await?;
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(kept_for(&record), Some(retention.replay), "retention");
    ensure_eq!(record.expires_at.until(record.purge_at), LONG, "tombstone");
    if bench.is_manual() {
        completed(bench.rival(&attempt, OnLost::Hold).await?)?;
    }
    Ok(())
}

async fn replays_do_not_prolong(bench: &Bench) -> Result<(), Failure> {
    let retention = Retention::new(bench.short() * 4).with_tombstone(LONG);
    let outcome = Outcome::success(b"kept");
    let attempt = bench.completed(&outcome, retention).await?;
    let before = bench.entry(attempt.digest()).await?;
    for _ in 0..3 {
        bench.pass(bench.short()).await;
        bench.rival(&attempt, OnLost::Retry).await?;
        let again = bench
            .store()
            .complete(attempt.digest(), &attempt.token, &outcome, retention);
        applied(again.await?)?;
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    bench.pass(bench.short()).await;
    expired(bench.rival(&attempt, OnLost::Hold).await?)
}

async fn swept_or_not(bench: &Bench) -> Result<(), Failure> {
    let brief = Retention::new(bench.short());
    let both = [
        bench.completed(&Outcome::void(), brief).await?,
        bench.completed(&Outcome::void(), brief).await?,
    ];
    bench.pass(bench.short()).await;
    for (n, attempt) in both.iter().enumerate() {
        if n == 1 {
            purge_all(bench).await?;
        }
        ensure_eq!(bench.store().get(attempt.digest()).await?, None, "record");
        let other = ClaimRequest {
            fingerprint: Fingerprint::of(b"another request"),
            ..request()?
        };
        let next = acquired(bench.store().claim(&attempt.identity, &other).await?)?;
        ensure_eq!(next.attempt, 1, "attempt");
        ensure!(next.token.fence > attempt.token.fence, "the fence grows");
        let record = bench.entry(attempt.digest()).await?.record;
        ensure_eq!(record.created_at, record.claimed_at, "time of creation");
    }
    Ok(())
}

async fn no_retention(bench: &Bench) -> Result<(), Failure> {
    let nothing = Retention::new(Duration::ZERO);
    let attempt = bench.completed(&Outcome::void(), nothing).await?;
    acquired(bench.rival(&attempt, OnLost::Hold).await?)?;

    let attempt = bench
        .completed(&Outcome::void(), nothing.with_tombstone(LONG))
        .await?;
    expired(bench.rival(&attempt, OnLost::Hold).await?)
}

async fn tombstone_says_expired(bench: &Bench) -> Result<(), Failure> {
    let (replay, tombstone) = (bench.short(), bench.short() * 5);
    let lasting = Retention::new(replay).with_tombstone(LONG);
    let ending = Retention::new(replay).with_tombstone(tombstone);
    let lasting = bench.completed(&Outcome::void(), lasting).await?;
    let ending = bench.completed(&Outcome::void(), ending).await?;
    bench.pass(replay).await;
    let other = ClaimRequest {
        fingerprint: Fingerprint::of(b"another request"),
        ..request()?
    };
    expired(bench.rival(&lasting, OnLost::Hold).await?)?;
    expired(bench.rival(&lasting, OnLost::Retry).await?)?;
    expired(bench.store().claim(&lasting.identity, &other).await?)?;
    if bench.is_manual() {
        let instant = Duration::from_micros(1);
        bench.pass(tombstone - instant).await;
        expired(bench.rival(&ending, OnLost::Hold).await?)?;
        bench.pass(instant).await;
    } else {
        bench.pass(tombstone).await;
    }
    acquired(bench.rival(&ending, OnLost::Hold).await?)?;
    Ok(())
}

/// Lets time pass, years of it where that costs nothing, and purges everything.
async fn age(bench: &Bench) -> Result<(), Failure> {
    let years = Duration::from_hours(24 * 365 * 10);
    let time = if bench.is_manual() {
        years
    } else {
        bench.short()
    };
    bench.pass(time).await;
    purge_all(bench).await?;
    Ok(())
}

async fn stays(bench: &Bench, attempt: &Attempt) -> Result<(), Failure> {
    let before = bench.entry(attempt.digest()).await?;
    age(bench).await?;
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn running_is_never_purged(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    stays(bench, &attempt).await?;
    let next = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure_eq!(next.attempt, 2, "attempt");
    Ok(())
}

async fn unknown_is_never_purged(bench: &Bench) -> Result<(), Failure> {
    let marked = bench.unknown().await?;
    stays(bench, &marked).await?;
    unknown(bench.rival(&marked, OnLost::Hold).await?)?;

    let found = bench.lapsed().await?;
    unknown(bench.rival(&found, OnLost::Hold).await?)?;
    stays(bench, &found).await?;
    unknown(bench.rival(&found, OnLost::Hold).await?)?;
    Ok(())
}

async fn replayed_is_never_purged(bench: &Bench) -> Result<(), Failure> {
    let outcome = Outcome::success(b"kept");
    let kept = bench.completed(&outcome, Retention::new(LONG)).await?;
    let tombstone = Retention::new(bench.short()).with_tombstone(LONG);
    let buried = bench.completed(&outcome, tombstone).await?;
    let running = bench.attempt().await?;
    bench.pass(bench.short()).await;
    purge_all(bench).await?;
    let (replayed, _) = completed(bench.rival(&kept, OnLost::Hold).await?)?;
    ensure_eq!(replayed, outcome, "outcome");
    expired(bench.rival(&buried, OnLost::Hold).await?)?;
    in_flight(bench.rival(&running, OnLost::Hold).await?)?;
    Ok(())
}

async fn past_retention(bench: &Bench, records: usize) -> Result<Vec<Attempt>, Failure> {
    let brief = Retention::new(bench.short());
    let mut all = Vec::new();
    for _ in 0..records {
        all.push(bench.completed(&Outcome::void(), brief).await?);
    }
    bench.pass(bench.short()).await;
    Ok(all)
}

async fn purge_is_bounded(bench: &Bench) -> Result<(), Failure> {
    past_retention(bench, 12).await?;
    let mut removed = 0;
    loop {
        let purged = bench.store().purge(5).await?;
        ensure!(
            purged.removed <= 5,
            "{} removed of at most 5",
            purged.removed
        );
        removed += purged.removed;
        if !purged.more {
            break;
        }
        ensure!(
            purged.removed == 5 || !bench.is_exclusive(),
            "a purge stopped by its bound removed {} of 5",
            purged.removed
        );
    }
    ensure!(
        removed <= 12 || !bench.is_exclusive(),
        "{removed} of 12 records removed"
    );
    Ok(())
}

async fn purge_is_complete(bench: &Bench) -> Result<(), Failure> {
    // One that was released before: the time at which it may go went back.
    let store = bench.store();
    let released = bench.attempt().await?;
    applied(store.abandon(released.digest(), &released.token).await?)?;
    let next = acquired(bench.rival(&released, OnLost::Hold).await?)?;
    let brief = Retention::new(bench.short());
    bench.complete(&released, &next.token, brief).await?;

    let mut all = past_retention(bench, 9).await?;
    all.push(released);
    let removed = purge_all(bench).await?;
    if bench.is_exclusive() {
        // Claims may remove expired records on their way: on a clock that runs, earlier ones here.
        ensure!(
            removed == 10 || (removed < 10 && !bench.is_manual()),
            "{removed} of 10 records removed"
        );
        ensure_eq!(
            purge_all(bench).await?,
            0,
            "records removed by one more purge"
        );
    }
    for attempt in &all {
        ensure_eq!(store.get(attempt.digest()).await?, None, "record");
    }
    Ok(())
}

async fn past_retention_is_not_shown(bench: &Bench) -> Result<(), Failure> {
    let all = past_retention(bench, 3).await?;
    let listed = super::listing::digests(bench, crate::StateKind::Completed, false).await?;
    for attempt in &all {
        ensure_eq!(bench.store().get(attempt.digest()).await?, None, "record");
        ensure!(
            !listed.contains(attempt.digest()),
            "a record past retention is listed"
        );
    }
    Ok(())
}
