//! The results of an attempt's finished steps: kept under the record, for whoever goes on.

use std::time::Duration;

use super::bench::{Attempt, request};
use super::expect::{acquired, applied, completed, settled, superseded};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::record::{RELEASED_FOR, RELEASED_WITH_STEPS_FOR, StateKind};
use crate::store::{
    Claim, ClaimRequest, Fenced, Nonce, OnLost, Refusal, Resolution, Retention, Store as _,
    StoreExt as _, Token, Verdict,
};
use crate::{Fingerprint, FinishedStep, Progress};

cases! { "steps";
    kept_in_their_order [R2]
        "finished steps are kept in their order, byte for byte, and every handle reads them";
    as_much_as_promised [R2]
        "a record keeps 64 KiB of finished steps";
    again_is_no_error [R4]
        "a step kept again at the same place changes nothing and answers Applied";
    other_steps_are_refused [R4]
        "another step at a place that is taken, and a step behind a gap, are refused";
    stay_through_takeover [R7]
        "a takeover finds the steps of the attempt before";
    stay_through_release [R4]
        "an attempt after a release finds them too, and only the same request may go on";
    outlive_a_release [R8]
        "a released record with finished steps is kept longer than one without";
    mark_is_no_finished_step [R3 R8]
        "a released record that keeps only the mark of a transaction stays 60 seconds, and welcomes another request; with a step behind it, it is as any with steps";
    mark_is_kept [R4 R7]
        "the mark stays through release, lapse, takeover and resolution, and is read with the record";
    stay_through_resolution [R7]
        "marking as unknown and resolving as not happened leave the steps";
    end_with_completion [R5]
        "a completion ends them, and so does the end of retention";
    kept_by_the_current_token_alone [R4]
        "a stale or forged token keeps nothing";
    not_after_settling [R4]
        "a completed or released record takes no more steps";
    kept_once_in_a_race [R2 R4]
        "of many at one place, copies of one step are one, and of different ones one is kept";
}

fn step(name: &str, result: &[u8]) -> Result<FinishedStep, Failure> {
    FinishedStep::new(name, result).map_err(|e| Failure::new(e.to_string()))
}

fn behind(progress: &Progress, step: &FinishedStep) -> Result<Progress, Failure> {
    progress.with(step).map_err(|e| Failure::new(e.to_string()))
}

fn did_not_happen(about: &Token) -> Result<Resolution, Failure> {
    Ok(Resolution {
        verdict: Verdict::DidNotHappen,
        by: "suite".into(),
        reason: "asked".into(),
        fence: about.fence,
        nonce: Nonce::random()?,
    })
}

/// An attempt with one finished step, and what is kept of it.
async fn begun(bench: &Bench) -> Result<(Attempt, Progress), Failure> {
    let attempt = bench.attempt().await?;
    let charge = step("charge", b"ch_1")?;
    keep(bench, &attempt, &attempt.token, &charge, &Progress::EMPTY).await?;
    Ok((attempt, behind(&Progress::EMPTY, &charge)?))
}

async fn keep(
    bench: &Bench,
    attempt: &Attempt,
    token: &Token,
    step: &FinishedStep,
    before: &Progress,
) -> Result<(), Failure> {
    let store = bench.store();
    let kept = before.as_bytes().len();
    applied(store.keep_step(attempt.digest(), token, step, kept).await?)
}

async fn progress(bench: &Bench, attempt: &Attempt) -> Result<Progress, Failure> {
    Ok(bench.entry(attempt.digest()).await?.record.progress)
}

async fn kept_in_their_order(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    ensure_eq!(
        progress(bench, &attempt).await?,
        Progress::EMPTY,
        "at first"
    );
    let every_byte: Vec<u8> = (0..=255).collect();
    let steps = [
        step("charge", b"ch_1")?,
        step("nothing", b"")?,
        FinishedStep::in_transaction(),
        step("nul\0 'quoted' \u{1F511}", &every_byte)?,
    ];
    let mut kept = Progress::EMPTY;
    for step in &steps {
        keep(bench, &attempt, &attempt.token, step, &kept).await?;
        kept = behind(&kept, step)?;
        for store in [bench.store(), bench.other()] {
            let entry = store.get(attempt.digest()).await?;
            let found = entry.map(|entry| entry.record.progress);
            ensure_eq!(found, Some(kept.clone()), "steps");
        }
    }
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.state.kind(), StateKind::InFlight, "state");
    ensure_eq!(record.token, attempt.token, "token");
    Ok(())
}

async fn as_much_as_promised(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let mut kept = Progress::EMPTY;
    for _ in 0..8 {
        let large = step("large", &vec![7; Progress::MAX_BYTES / 8 - 11])?;
        keep(bench, &attempt, &attempt.token, &large, &kept).await?;
        kept = behind(&kept, &large)?;
    }
    ensure_eq!(kept.as_bytes().len(), Progress::MAX_BYTES, "bytes");
    ensure_eq!(progress(bench, &attempt).await?, kept, "steps");
    Ok(())
}

async fn again_is_no_error(bench: &Bench) -> Result<(), Failure> {
    let (attempt, first) = begun(bench).await?;
    let charge = step("charge", b"ch_1")?;
    keep(bench, &attempt, &attempt.token, &charge, &Progress::EMPTY).await?;
    ensure_eq!(progress(bench, &attempt).await?, first, "steps");
    // Also once others came after it.
    let ship = step("ship", b"")?;
    keep(bench, &attempt, &attempt.token, &ship, &first).await?;
    keep(bench, &attempt, &attempt.token, &charge, &Progress::EMPTY).await?;
    let both = behind(&first, &ship)?;
    ensure_eq!(progress(bench, &attempt).await?, both, "steps");
    Ok(())
}

async fn other_steps_are_refused(bench: &Bench) -> Result<(), Failure> {
    let (attempt, first) = begun(bench).await?;
    let store = bench.store();
    let (digest, end) = (attempt.digest(), first.as_bytes().len());
    for (other, kept) in [
        (step("charge", b"ch_2")?, 0),
        (step("refund", b"ch_1")?, 0),
        (step("ship", b"")?, end + 1),
        (step("ship", b"")?, end - 1),
        (step("ship", b"")?, Progress::MAX_BYTES),
    ] {
        let refused = store
            .keep_step(digest, &attempt.token, &other, kept)
            .await?;
        ensure_eq!(
            refused,
            Fenced::Refused(Refusal::OtherSteps),
            "{other:?} behind {kept} bytes"
        );
    }
    ensure_eq!(progress(bench, &attempt).await?, first, "steps");
    Ok(())
}

async fn stay_through_takeover(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt_for(bench.short()).await?;
    let charge = step("charge", b"ch_1")?;
    keep(bench, &attempt, &attempt.token, &charge, &Progress::EMPTY).await?;
    let first = progress(bench, &attempt).await?;
    bench.other().get(attempt.digest()).await?;
    bench.pass(bench.short()).await;
    let next = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure_eq!(progress(bench, &attempt).await?, first, "steps");
    let ship = step("ship", b"")?;
    keep(bench, &attempt, &next.token, &ship, &first).await?;
    ensure_eq!(
        progress(bench, &attempt).await?,
        behind(&first, &ship)?,
        "steps of both attempts"
    );
    Ok(())
}

async fn stay_through_release(bench: &Bench) -> Result<(), Failure> {
    let (attempt, first) = begun(bench).await?;
    let store = bench.store();
    applied(store.abandon(attempt.digest(), &attempt.token).await?)?;
    ensure_eq!(
        progress(bench, &attempt).await?,
        first,
        "steps after a release"
    );
    let other = ClaimRequest {
        fingerprint: Fingerprint::of(b"another request"),
        ..request()?
    };
    let refused = store.claim(&attempt.identity, &other).await?;
    ensure_eq!(refused, Claim::Mismatch, "a claim with another request");
    let next = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    ensure_eq!(next.attempt, 2, "attempt");
    ensure_eq!(
        progress(bench, &attempt).await?,
        first,
        "steps of the next attempt"
    );
    Ok(())
}

async fn outlive_a_release(bench: &Bench) -> Result<(), Failure> {
    let (attempt, first) = begun(bench).await?;
    let abandoned = bench.store().abandon(attempt.digest(), &attempt.token);
    applied(abandoned.await?)?;
    let record = bench.entry(attempt.digest()).await?.record;
    let kept_for = record.settled_at.map(|at| at.until(record.purge_at));
    ensure_eq!(
        kept_for,
        Some(RELEASED_WITH_STEPS_FOR),
        "how long it is kept"
    );
    if bench.is_manual() {
        bench.pass(RELEASED_FOR).await;
        bench.store().purge(1_000).await?;
        ensure_eq!(progress(bench, &attempt).await?, first, "steps");
        bench.pass(RELEASED_WITH_STEPS_FOR).await;
        let next = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
        ensure_eq!(next.attempt, 1, "attempt");
        ensure_eq!(
            progress(bench, &attempt).await?,
            Progress::EMPTY,
            "steps at the end"
        );
    }
    Ok(())
}

/// An attempt that keeps only the mark, and what is kept of it.
async fn marked(bench: &Bench) -> Result<(Attempt, Progress), Failure> {
    let attempt = bench.attempt_for(bench.short()).await?;
    let mark = FinishedStep::in_transaction();
    keep(bench, &attempt, &attempt.token, &mark, &Progress::EMPTY).await?;
    bench.other().get(attempt.digest()).await?;
    Ok((attempt, behind(&Progress::EMPTY, &mark)?))
}

/// Wants a released record to be kept for so long, and to answer another request so.
async fn released(
    bench: &Bench,
    attempt: &Attempt,
    wanted_for: Duration,
    welcome: bool,
) -> Result<(), Failure> {
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.state.kind(), StateKind::Released, "state");
    let kept_for = record.settled_at.map(|at| at.until(record.purge_at));
    ensure_eq!(kept_for, Some(wanted_for), "how long it is kept");
    let other = ClaimRequest {
        fingerprint: Fingerprint::of(b"another request"),
        ..request()?
    };
    let claim = bench.store().claim(&attempt.identity, &other).await?;
    if welcome {
        let next = acquired(claim)?;
        ensure_eq!(next.attempt, record.attempt + 1, "attempt");
        ensure_eq!(
            progress(bench, attempt).await?,
            record.progress,
            "what the next attempt finds"
        );
    } else {
        ensure_eq!(claim, Claim::Mismatch, "a claim with another request");
    }
    Ok(())
}

async fn mark_is_no_finished_step(bench: &Bench) -> Result<(), Failure> {
    let store = bench.store();
    let ship = step("ship", b"")?;
    for with_step in [false, true] {
        // Released by its own token, on the handle that kept the mark and on the other.
        for handle in [store, bench.other()] {
            let (attempt, mark) = marked(bench).await?;
            if with_step {
                keep(bench, &attempt, &attempt.token, &ship, &mark).await?;
            }
            applied(handle.abandon(attempt.digest(), &attempt.token).await?)?;
            let kept_for = if with_step {
                RELEASED_WITH_STEPS_FOR
            } else {
                RELEASED_FOR
            };
            released(bench, &attempt, kept_for, !with_step).await?;
        }
        // Released by a resolution: of an unknown record, and of a lapsed one.
        for unknown in [true, false] {
            let (attempt, mark) = marked(bench).await?;
            if with_step {
                keep(bench, &attempt, &attempt.token, &ship, &mark).await?;
                bench.other().get(attempt.digest()).await?;
            }
            if unknown {
                applied(store.mark_unknown(attempt.digest(), &attempt.token).await?)?;
            } else {
                bench.pass(bench.short()).await;
            }
            applied(
                store
                    .resolve(attempt.digest(), &did_not_happen(&attempt.token)?)
                    .await?,
            )?;
            let kept_for = if with_step {
                RELEASED_WITH_STEPS_FOR
            } else {
                RELEASED_FOR
            };
            released(bench, &attempt, kept_for, !with_step).await?;
        }
    }
    Ok(())
}

async fn mark_is_kept(bench: &Bench) -> Result<(), Failure> {
    let (attempt, mark) = marked(bench).await?;
    let store = bench.store();
    let again = FinishedStep::in_transaction();
    keep(bench, &attempt, &attempt.token, &again, &Progress::EMPTY).await?;
    ensure_eq!(progress(bench, &attempt).await?, mark, "kept once more");
    ensure!(
        mark.is_in_transaction(),
        "the mark is read with the record: {mark:?}"
    );
    bench.pass(bench.short()).await;
    ensure_eq!(progress(bench, &attempt).await?, mark, "after the lease");
    let second = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure_eq!(progress(bench, &attempt).await?, mark, "after a takeover");
    applied(store.abandon(attempt.digest(), &second.token).await?)?;
    ensure_eq!(progress(bench, &attempt).await?, mark, "after a release");
    let third = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    ensure_eq!(
        progress(bench, &attempt).await?,
        mark,
        "in the next attempt"
    );
    applied(store.mark_unknown(attempt.digest(), &third.token).await?)?;
    applied(
        store
            .resolve(attempt.digest(), &did_not_happen(&third.token)?)
            .await?,
    )?;
    ensure_eq!(progress(bench, &attempt).await?, mark, "after a resolution");
    let fourth = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    let ship = step("ship", b"")?;
    keep(bench, &attempt, &fourth.token, &ship, &mark).await?;
    let both = progress(bench, &attempt).await?;
    ensure_eq!(both, behind(&mark, &ship)?, "with a step behind it");
    let names: Vec<&str> = both.steps().map(|(name, _)| name).collect();
    ensure_eq!(names, ["ship"], "the steps");
    Ok(())
}

async fn stay_through_resolution(bench: &Bench) -> Result<(), Failure> {
    let (attempt, first) = begun(bench).await?;
    let store = bench.store();
    applied(store.mark_unknown(attempt.digest(), &attempt.token).await?)?;
    // The attempt that gave up may still say what it had finished.
    let ship = step("ship", b"")?;
    keep(bench, &attempt, &attempt.token, &ship, &first).await?;
    let both = behind(&first, &ship)?;
    let resolution = did_not_happen(&attempt.token)?;
    applied(store.resolve(attempt.digest(), &resolution).await?)?;
    ensure_eq!(
        progress(bench, &attempt).await?,
        both,
        "steps after the resolution"
    );
    acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    ensure_eq!(
        progress(bench, &attempt).await?,
        both,
        "steps of the next attempt"
    );
    Ok(())
}

async fn end_with_completion(bench: &Bench) -> Result<(), Failure> {
    let (attempt, _) = begun(bench).await?;
    let retention = Retention::new(bench.short());
    bench
        .complete(&attempt, &attempt.token, retention.with_tombstone(LONG))
        .await?;
    ensure_eq!(progress(bench, &attempt).await?, Progress::EMPTY, "steps");

    let (attempt, _) = begun(bench).await?;
    bench.complete(&attempt, &attempt.token, retention).await?;
    bench.pass(bench.short()).await;
    acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    ensure_eq!(
        progress(bench, &attempt).await?,
        Progress::EMPTY,
        "steps of a new record"
    );
    Ok(())
}

async fn kept_by_the_current_token_alone(bench: &Bench) -> Result<(), Failure> {
    let (attempt, first) = begun(bench).await?;
    let (digest, store) = (attempt.digest(), bench.store());
    applied(store.abandon(digest, &attempt.token).await?)?;
    let next = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    let forged = [
        attempt.token,
        Token {
            nonce: attempt.token.nonce,
            ..next.token
        },
        Token {
            fence: attempt.token.fence,
            ..next.token
        },
    ];
    let (ship, end) = (step("ship", b"")?, first.as_bytes().len());
    for token in &forged {
        for store in [store, bench.other()] {
            superseded(store.keep_step(digest, token, &ship, end).await?)?;
        }
    }
    ensure_eq!(progress(bench, &attempt).await?, first, "steps");
    let nobody = bench.identity("never-claimed")?;
    let missing = store
        .keep_step(nobody.digest(), &next.token, &ship, 0)
        .await?;
    ensure_eq!(
        missing,
        Fenced::Refused(Refusal::Missing),
        "without a record"
    );
    Ok(())
}

async fn not_after_settling(bench: &Bench) -> Result<(), Failure> {
    let (done, first) = begun(bench).await?;
    bench
        .complete(&done, &done.token, Retention::new(LONG))
        .await?;
    let (released, _) = begun(bench).await?;
    let store = bench.store();
    applied(store.abandon(released.digest(), &released.token).await?)?;
    let ship = step("ship", b"")?;
    for (attempt, state) in [
        (&done, StateKind::Completed),
        (&released, StateKind::Released),
    ] {
        for kept in [0, first.as_bytes().len()] {
            let refused = store.keep_step(attempt.digest(), &attempt.token, &ship, kept);
            settled(refused.await?, state)?;
        }
    }
    completed(bench.rival(&done, OnLost::Hold).await?)?;
    Ok(())
}

async fn kept_once_in_a_race(bench: &Bench) -> Result<(), Failure> {
    for _ in 0..bench.rounds() {
        let (attempt, first) = begun(bench).await?;
        let end = first.as_bytes().len();
        let answers = bench
            .together(16, |n, store| {
                let attempt = attempt.clone();
                async move {
                    let name = if n % 4 < 2 { "ship" } else { "cancel" };
                    let step = step(name, b"")?;
                    let kept = store.keep_step(attempt.digest(), &attempt.token, &step, end);
                    Ok((name, kept.await?))
                }
            })
            .await?;
        let found = progress(bench, &attempt).await?;
        let names: Vec<&str> = found.steps().map(|(name, _)| name).collect();
        ensure!(names.len() == 2, "the steps kept are {names:?}");
        for (name, answer) in answers {
            let wanted = if name == names[1] {
                Fenced::Applied
            } else {
                Fenced::Refused(Refusal::OtherSteps)
            };
            ensure_eq!(
                answer,
                wanted,
                "the answer to {name}, where {} is kept",
                names[1]
            );
        }
    }
    Ok(())
}
