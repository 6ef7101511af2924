//! Resolution: somebody found out what became of an unknown attempt.

use super::bench::Attempt;
use super::expect::{
    acquired, applied, completed, expired, in_flight, refused, settled, superseded, unknown,
};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::Outcome;
use crate::record::{State, StateKind};
use crate::store::{
    Fence, Fenced, Nonce, OnLost, Refusal, Resolution, Retention, Store as _, StoreExt as _,
    Verdict,
};

cases! { "resolve";
    happened [R5 R7]
        "resolved as happened, the outcome given is replayed for the retention given";
    did_not_happen [R7]
        "resolved as not happened, the next claim runs, with a higher fence and the next attempt number";
    who_and_why_are_kept [R7]
        "a resolution keeps who decided, why, when, about which attempt, and the states before and after; later claims leave it";
    repeated [R7]
        "the same resolution again answers applied and changes nothing: its answer may have been lost";
    lapsed_without_a_claim [R7]
        "a lapsed attempt can be resolved without being found unknown by a claim first";
    running_is_refused [R4 R7]
        "an attempt that holds its lease is not resolved over its head";
    settled_is_refused [R4 R5]
        "a completed or released record is not resolved";
    another_fence_is_refused [R4 R7]
        "a resolution about an attempt that is no longer the latest changes nothing";
    amended [R5]
        "a completed record is amended: from then on claims see the outcome given, for the retention given, and who decided is kept";
    amended_away [R5]
        "an outcome that is amended to none, with a tombstone, is gone, and claims are told that it expired";
    amends_completed_only [R4 R7]
        "a record that is not completed is not amended, nor one with another fence";
    what_is_over_is_not_amended [R5]
        "an outcome past its retention is not brought back";
    missing_is_refused [R4]
        "what was never claimed is not resolved";
}

fn resolution(fence: Fence, verdict: Verdict) -> Result<Resolution, Failure> {
    Ok(Resolution {
        verdict,
        by: "operator é 'x'".into(),
        reason: "asked the bank;\n\"no such payment\"".into(),
        fence,
        nonce: Nonce::random()?,
    })
}

async fn resolve(bench: &Bench, attempt: &Attempt, verdict: Verdict) -> Result<Fenced, Failure> {
    let resolution = resolution(attempt.token.fence, verdict)?;
    Ok(bench.store().resolve(attempt.digest(), &resolution).await?)
}

fn it_happened() -> Verdict {
    Verdict::Happened {
        outcome: Outcome::success(b"found out"),
        retention: Retention::new(LONG).with_tombstone(LONG),
    }
}

async fn happened(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.unknown().await?;
    applied(resolve(bench, &attempt, it_happened()).await?)?;
    for on_lost in [OnLost::Hold, OnLost::Retry] {
        let (replayed, remaining) = completed(bench.rival(&attempt, on_lost).await?)?;
        ensure_eq!(replayed, Outcome::success(b"found out"), "outcome");
        ensure!(
            remaining <= LONG && remaining > LONG / 2,
            "{remaining:?} remain"
        );
    }
    let record = bench.entry(attempt.digest()).await?.record;
    let kept = record.settled_at.map(|at| at.until(record.expires_at));
    ensure_eq!(kept, Some(LONG), "retention");
    ensure_eq!(record.expires_at.until(record.purge_at), LONG, "tombstone");
    ensure!(
        record.token.fence > attempt.token.fence,
        "a resolution takes a fence of its own"
    );
    Ok(())
}

async fn did_not_happen(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.unknown().await?;
    applied(resolve(bench, &attempt, Verdict::DidNotHappen).await?)?;
    let resolved = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(resolved.state, State::Released, "state");
    ensure!(
        resolved.token.fence > attempt.token.fence,
        "a resolution takes a fence of its own"
    );
    let next = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    ensure_eq!(next.attempt, 2, "attempt");
    ensure!(next.token.fence > resolved.token.fence, "the fence grows");
    Ok(())
}

async fn who_and_why_are_kept(bench: &Bench) -> Result<(), Failure> {
    let found = [
        (StateKind::Unknown, bench.unknown().await?),
        (StateKind::InFlight, bench.lapsed().await?),
    ];
    for (before, attempt) in found {
        let verdict = Verdict::DidNotHappen;
        let after = StateKind::Released;
        audited(bench, &attempt, verdict, before, after).await?;
        // It stays with the record when the next attempt runs.
        let entry = bench.entry(attempt.digest()).await?;
        acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
        let next = bench.entry(attempt.digest()).await?;
        ensure_eq!(next.record.resolved, entry.record.resolved, "resolution");
    }
    let (before, after) = (StateKind::Unknown, StateKind::Completed);
    audited(bench, &bench.unknown().await?, it_happened(), before, after).await?;
    let done = bench
        .completed(&Outcome::void(), Retention::new(LONG))
        .await?;
    let verdict = amend(Outcome::success(b"amended"), Retention::new(LONG));
    audited(bench, &done, verdict, after, after).await
}

async fn audited(
    bench: &Bench,
    attempt: &Attempt,
    verdict: Verdict,
    before: StateKind,
    after: StateKind,
) -> Result<(), Failure> {
    let resolution = resolution(attempt.token.fence, verdict)?;
    applied(bench.store().resolve(attempt.digest(), &resolution).await?)?;
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.token.nonce, resolution.nonce, "nonce");
    let Some(resolved) = record.resolved else {
        return Err(Failure::new("the resolution is not kept"));
    };
    ensure_eq!(resolved.by, resolution.by, "who");
    ensure_eq!(resolved.reason, resolution.reason, "why");
    ensure_eq!(Some(resolved.at), record.settled_at, "when");
    ensure_eq!(resolved.fence, attempt.token.fence, "about which attempt");
    ensure_eq!(resolved.before, before, "state before");
    ensure_eq!(resolved.after, after, "state after");
    Ok(())
}

async fn repeated(bench: &Bench) -> Result<(), Failure> {
    for verdict in [it_happened(), Verdict::DidNotHappen] {
        let attempt = bench.unknown().await?;
        let resolution = resolution(attempt.token.fence, verdict)?;
        applied(bench.store().resolve(attempt.digest(), &resolution).await?)?;
        let before = bench.entry(attempt.digest()).await?;
        applied(bench.store().resolve(attempt.digest(), &resolution).await?)?;
        ensure_eq!(bench.entry(attempt.digest()).await?, before, "the record");
    }
    Ok(())
}

async fn lapsed_without_a_claim(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    applied(resolve(bench, &attempt, it_happened()).await?)?;
    completed(bench.rival(&attempt, OnLost::Retry).await?)?;
    Ok(())
}

async fn running_is_refused(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let before = bench.entry(attempt.digest()).await?;
    for verdict in [it_happened(), Verdict::DidNotHappen] {
        refused(resolve(bench, &attempt, verdict).await?, Refusal::Running)?;
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    in_flight(bench.rival(&attempt, OnLost::Retry).await?)?;
    Ok(())
}

async fn settled_is_refused(bench: &Bench) -> Result<(), Failure> {
    let retention = Retention::new(LONG);
    let done = bench.completed(&Outcome::void(), retention).await?;
    let free = bench.attempt().await?;
    applied(bench.store().abandon(free.digest(), &free.token).await?)?;
    for (attempt, state) in [(done, StateKind::Completed), (free, StateKind::Released)] {
        let before = bench.entry(attempt.digest()).await?;
        for verdict in [it_happened(), Verdict::DidNotHappen] {
            settled(resolve(bench, &attempt, verdict).await?, state)?;
        }
        ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    }
    Ok(())
}

async fn another_fence_is_refused(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.unknown().await?;
    let next = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    let store = bench.store();
    applied(store.mark_unknown(attempt.digest(), &next.token).await?)?;
    let before = bench.entry(attempt.digest()).await?;
    for fence in [attempt.token.fence, Fence(next.token.fence.0 + 1), Fence(0)] {
        let resolution = resolution(fence, Verdict::DidNotHappen)?;
        superseded(store.resolve(attempt.digest(), &resolution).await?)?;
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    unknown(bench.rival(&attempt, OnLost::Hold).await?)?;
    Ok(())
}

async fn missing_is_refused(bench: &Bench) -> Result<(), Failure> {
    let nobody = bench.identity("never-claimed")?;
    let resolution = resolution(Fence(1), it_happened())?;
    let resolved = bench.store().resolve(nobody.digest(), &resolution);
    refused(resolved.await?, Refusal::Missing)?;
    ensure_eq!(bench.store().get(nobody.digest()).await?, None, "record");
    Ok(())
}

fn amend(outcome: Outcome, retention: Retention) -> Verdict {
    Verdict::Amended { outcome, retention }
}

async fn amended(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench
        .completed(&Outcome::success(b"first"), Retention::new(LONG))
        .await?;
    let before = bench.entry(attempt.digest()).await?.record;
    let verdict = amend(
        Outcome::success(b"second"),
        Retention::new(LONG).with_tombstone(LONG),
    );
    let resolution = resolution(before.token.fence, verdict)?;
    // Sent twice: its answer may have been lost.
    for _ in 0..2 {
        let done = bench.store().resolve(attempt.digest(), &resolution).await?;
        applied(done)?;
    }
    for on_lost in [OnLost::Hold, OnLost::Retry] {
        let (replayed, remaining) = completed(bench.rival(&attempt, on_lost).await?)?;
        ensure_eq!(replayed, Outcome::success(b"second"), "outcome");
        ensure!(
            remaining <= LONG && remaining > LONG / 2,
            "{remaining:?} remain"
        );
    }
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.expires_at.until(record.purge_at), LONG, "tombstone");
    ensure_eq!(record.created_at, before.created_at, "created");
    ensure!(record.token.fence > before.token.fence, "the fence grows");
    // The attempt's own outcome is none of its business any more.
    let (first, retention) = (Outcome::success(b"first"), Retention::new(LONG));
    let again = bench
        .store()
        .complete(attempt.digest(), &attempt.token, &first, retention);
    superseded(again.await?)
}

async fn amended_away(bench: &Bench) -> Result<(), Failure> {
    let secret = Outcome::success(b"secret");
    let attempt = bench.completed(&secret, Retention::new(LONG)).await?;
    let nothing = Retention::new(std::time::Duration::ZERO).with_tombstone(LONG);
    let verdict = amend(secret.to_omitted(), nothing);
    applied(resolve(bench, &attempt, verdict).await?)?;
    for on_lost in [OnLost::Hold, OnLost::Retry] {
        expired(bench.rival(&attempt, on_lost).await?)?;
    }
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.state, State::Completed(secret.to_omitted()), "state");
    Ok(())
}

async fn amends_completed_only(bench: &Bench) -> Result<(), Failure> {
    let verdict = || amend(Outcome::success(b"other"), Retention::new(LONG));
    let unknown_one = bench.unknown().await?;
    settled(
        resolve(bench, &unknown_one, verdict()).await?,
        StateKind::Unknown,
    )?;
    unknown(bench.rival(&unknown_one, OnLost::Hold).await?)?;
    let running = bench.attempt().await?;
    refused(resolve(bench, &running, verdict()).await?, Refusal::Running)?;
    let done = bench
        .completed(&Outcome::success(b"first"), Retention::new(LONG))
        .await?;
    let resolution = resolution(Fence(done.token.fence.0 + 1), verdict())?;
    superseded(bench.store().resolve(done.digest(), &resolution).await?)?;
    let (replayed, _) = completed(bench.rival(&done, OnLost::Hold).await?)?;
    ensure_eq!(replayed, Outcome::success(b"first"), "outcome");
    Ok(())
}

async fn what_is_over_is_not_amended(bench: &Bench) -> Result<(), Failure> {
    let brief = Retention::new(bench.short());
    let outcome = Outcome::success(b"first");
    let attempt = bench.completed(&outcome, brief).await?;
    bench.pass(brief.replay).await;
    let verdict = amend(outcome, Retention::new(LONG));
    refused(resolve(bench, &attempt, verdict).await?, Refusal::Missing)?;
    acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    Ok(())
}
