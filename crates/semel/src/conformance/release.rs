//! Release: an attempt that had no effect gives its identity back.

use std::time::Duration;

use super::bench::request;
use super::expect::{acquired, applied, settled};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::Outcome;
use crate::record::{RELEASED_FOR, State, StateKind};
use crate::store::{Claim, OnLost, Retention, Store as _, StoreExt as _};

cases! { "release";
    next_claim_runs [R1 R4]
        "after a release the next claim is acquired at once, with a higher fence and the next attempt number";
    a_copy_of_its_claim_does_not_run [R1 R2]
        "a copy of the released attempt's own claim, which arrives after the release, begins no attempt: nobody waits for it";
    again [R4]
        "abandoning again with the same token answers Applied and changes nothing";
    not_after_completion [R4 R5]
        "a completed record is not released";
    of_an_unknown_record [R4 R7]
        "the attempt's own token releases a record that was found unknown";
    released_record_stays_60_seconds [R4 R6]
        "a released record stays for 60 seconds, so that its fence and attempt number go on";
}

async fn next_claim_runs(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let store = bench.store();
    applied(store.abandon(attempt.digest(), &attempt.token).await?)?;
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.state, State::Released, "state");
    let mut fence = attempt.token.fence;
    for number in [2, 3] {
        let next = acquired(store.claim(&attempt.identity, &request()?).await?)?;
        ensure_eq!(next.attempt, number, "attempt");
        ensure!(next.token.fence > fence, "the fence grows");
        fence = next.token.fence;
        applied(store.abandon(attempt.digest(), &next.token).await?)?;
    }
    Ok(())
}

async fn a_copy_of_its_claim_does_not_run(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let (fence, remaining) = (attempt.token.fence, Duration::ZERO);
    applied(
        bench
            .store()
            .abandon(attempt.digest(), &attempt.token)
            .await?,
    )?;
    let before = bench.entry(attempt.digest()).await?;
    // Under any policy, and not by its first answer alone.
    for on_lost in [OnLost::Hold, OnLost::Retry] {
        let mut copy = attempt.request.clone();
        copy.on_lost = on_lost;
        for store in [bench.store(), bench.other()] {
            let found = store.claim(&attempt.identity, &copy).await?;
            ensure_eq!(found, Claim::InFlight { fence, remaining }, "answer");
        }
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    let next = acquired(bench.store().claim(&attempt.identity, &request()?).await?)?;
    ensure_eq!(next.attempt, 2, "attempt");
    Ok(())
}

async fn again(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let abandoned = bench.store().abandon(attempt.digest(), &attempt.token);
    applied(abandoned.await?)?;
    let before = bench.entry(attempt.digest()).await?;
    for store in [bench.store(), bench.other()] {
        applied(store.abandon(attempt.digest(), &attempt.token).await?)?;
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn not_after_completion(bench: &Bench) -> Result<(), Failure> {
    let retention = Retention::new(LONG);
    let attempt = bench.completed(&Outcome::void(), retention).await?;
    let before = bench.entry(attempt.digest()).await?;
    let late = bench.store().abandon(attempt.digest(), &attempt.token);
    settled(late.await?, StateKind::Completed)?;
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn of_an_unknown_record(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.unknown().await?;
    let abandoned = bench.store().abandon(attempt.digest(), &attempt.token);
    applied(abandoned.await?)?;
    let next = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    ensure_eq!(next.attempt, 2, "attempt");
    Ok(())
}

async fn released_record_stays_60_seconds(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let store = bench.store();
    applied(store.abandon(attempt.digest(), &attempt.token).await?)?;
    let record = bench.entry(attempt.digest()).await?.record;
    let Some(settled) = record.settled_at else {
        return Err(Failure::new("when it was released is not kept"));
    };
    ensure_eq!(settled.until(record.expires_at), RELEASED_FOR, "retention");
    ensure_eq!(record.purge_at, record.expires_at, "time of purging");
    if bench.is_manual() {
        let instant = std::time::Duration::from_micros(1);
        bench.pass(RELEASED_FOR - instant).await;
        bench.entry(attempt.digest()).await?;
        bench.pass(instant).await;
        ensure_eq!(store.get(attempt.digest()).await?, None, "record");
        let next = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
        ensure_eq!(next.attempt, 1, "attempt");
        ensure!(next.token.fence > attempt.token.fence, "the fence grows");
    }
    Ok(())
}
