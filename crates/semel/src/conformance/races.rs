//! Races: what must hold however the steps of many tasks and processes fall between each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::bench::{Attempt, request};
use super::expect::{acquired, applied, completed, in_flight};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::store::{
    Acquired, Claim, ClaimRequest, Fenced, Nonce, OnLost, Resolution, Retention, Store as _,
    StoreExt as _, Verdict,
};
use crate::{AnyStore, FinishedStep, Outcome};

cases! { "races";
    one_winner_of_64 [R1 R2]
        "of 64 concurrent claims on an identity one is acquired, and all others name its fence";
    one_winner_after_release [R1 R2]
        "of 64 concurrent claims on a released identity one is acquired, as the next attempt";
    one_winner_after_lapse [R1 R2 R7]
        "of 64 concurrent takeovers of a lapsed lease one is acquired";
    one_winner_after_expiry [R1 R2 R6]
        "of 64 concurrent claims on an expired identity one is acquired, also while it is purged";
    nobody_wins_under_hold [R1 R7]
        "of 64 concurrent claims on a lapsed lease under Hold none is acquired";
    same_nonce_is_one_claim [R1 R2]
        "64 copies of one claim, as a transport may send them, get one token";
    completion_or_takeover [R2 R4]
        "of a late completion and a takeover exactly one happens";
    renewal_or_takeover [R2 R4]
        "of a late renewal and a takeover exactly one happens";
    step_or_takeover [R2 R4 R7]
        "a late step is there for the takeover to go on from, or is refused";
    completion_or_resolution [R2 R4]
        "of a late completion and a resolution exactly one happens";
    completed_stays_completed [R5]
        "once a completion was acknowledged or seen, no claim sees anything else";
    one_effect [R1 R4 R5]
        "32 callers that retry until they have an answer cause one effect and get one answer";
}

const CROWD: usize = 64;

/// Lets a crowd claim one identity at the same time.
async fn crowd(
    bench: &Bench,
    attempt: &Attempt,
    on_lost: OnLost,
) -> Result<(Vec<Acquired>, Vec<Claim>), Failure> {
    let answers = bench
        .together(CROWD, |_, store| {
            let identity = attempt.identity.clone();
            async move {
                let request = ClaimRequest {
                    on_lost,
                    ..request()?
                };
                Ok(store.claim(&identity, &request).await?)
            }
        })
        .await?;
    let (mut won, mut lost) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Claim::Acquired(acquired) => won.push(acquired),
            other => lost.push(other),
        }
    }
    Ok((won, lost))
}

/// Wants exactly one winner, and everybody else told about it.
async fn one_winner(
    bench: &Bench,
    attempt: &Attempt,
    on_lost: OnLost,
) -> Result<Acquired, Failure> {
    let (won, lost) = crowd(bench, attempt, on_lost).await?;
    ensure_eq!(won.len(), 1, "how many of {CROWD} claims were acquired");
    for answer in lost {
        let (fence, _) = in_flight(answer)?;
        ensure_eq!(fence, won[0].token.fence, "fence told to a loser");
    }
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.token, won[0].token, "token in the record");
    Ok(won[0])
}

/// An identity that nobody claimed, as an attempt whose token is another's.
async fn unclaimed(bench: &Bench) -> Result<Attempt, Failure> {
    Ok(Attempt {
        identity: bench.identity("a-key-of-some-length")?,
        ..bench.attempt().await?
    })
}

async fn one_winner_of_64(bench: &Bench) -> Result<(), Failure> {
    for _ in 0..bench.rounds() {
        let winner = one_winner(bench, &unclaimed(bench).await?, OnLost::Hold).await?;
        ensure_eq!(winner.attempt, 1, "attempt");
    }
    Ok(())
}

async fn one_winner_after_release(bench: &Bench) -> Result<(), Failure> {
    for _ in 0..bench.rounds() {
        let attempt = bench.attempt().await?;
        let abandoned = bench.store().abandon(attempt.digest(), &attempt.token);
        applied(abandoned.await?)?;
        let winner = one_winner(bench, &attempt, OnLost::Hold).await?;
        ensure_eq!(winner.attempt, 2, "attempt");
    }
    Ok(())
}

async fn one_winner_after_lapse(bench: &Bench) -> Result<(), Failure> {
    for attempt in bench.all_lapsed(bench.rounds()).await? {
        let winner = one_winner(bench, &attempt, OnLost::Retry).await?;
        ensure_eq!(winner.attempt, 2, "attempt");
    }
    Ok(())
}

async fn one_winner_after_expiry(bench: &Bench) -> Result<(), Failure> {
    let brief = Retention::new(bench.short());
    let mut all = Vec::new();
    for _ in 0..bench.rounds() {
        all.push(bench.completed(&Outcome::void(), brief).await?);
    }
    bench.pass(bench.short()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (store, stopped) = (bench.other().clone(), stop.clone());
    let purging = tokio::spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            store.purge(3).await?;
            tokio::task::yield_now().await;
        }
        Ok::<(), Failure>(())
    });
    let mut result = Ok(());
    for attempt in &all {
        result = result.and(one_winner(bench, attempt, OnLost::Hold).await.map(|_| ()));
    }
    stop.store(true, Ordering::Relaxed);
    let purged = purging.await;
    purged.map_err(|e| Failure::new(format!("the purge panicked: {e}")))??;
    result
}

async fn nobody_wins_under_hold(bench: &Bench) -> Result<(), Failure> {
    for attempt in bench.all_lapsed(bench.rounds()).await? {
        let (won, lost) = crowd(bench, &attempt, OnLost::Hold).await?;
        ensure_eq!(won.len(), 0, "how many claims were acquired");
        for answer in lost {
            let fence = super::expect::unknown(answer)?;
            ensure_eq!(fence, attempt.token.fence, "fence");
        }
    }
    Ok(())
}

async fn same_nonce_is_one_claim(bench: &Bench) -> Result<(), Failure> {
    for _ in 0..bench.rounds() {
        let identity = bench.identity("a-key-of-some-length")?;
        let request = request()?;
        let answers = bench
            .together(CROWD, |_, store| {
                let (identity, request) = (identity.clone(), request.clone());
                async move { acquired(store.claim(&identity, &request).await?) }
            })
            .await?;
        for answer in &answers {
            ensure_eq!(answer.token, answers[0].token, "token");
            ensure_eq!(answer.attempt, 1, "attempt");
        }
    }
    Ok(())
}

/// What one side of a duel answered.
enum Side {
    Holder(Fenced),
    Rival(Claim),
    Operator(Fenced),
}

async fn complete(store: &AnyStore, attempt: &Attempt) -> Result<Fenced, Failure> {
    let (outcome, retention) = (Outcome::success(b"kept"), Retention::new(LONG));
    let done = store.complete(attempt.digest(), &attempt.token, &outcome, retention);
    Ok(done.await?)
}

async fn takeover(store: &AnyStore, attempt: &Attempt) -> Result<Claim, Failure> {
    let request = ClaimRequest {
        on_lost: OnLost::Retry,
        ..request()?
    };
    Ok(store.claim(&attempt.identity, &request).await?)
}

async fn completion_or_takeover(bench: &Bench) -> Result<(), Failure> {
    for attempt in bench.all_lapsed(bench.rounds()).await? {
        let sides = bench.together(2, |n, store| {
            let attempt = attempt.clone();
            async move {
                Ok(match n {
                    0 => Side::Holder(complete(&store, &attempt).await?),
                    _ => Side::Rival(takeover(&store, &attempt).await?),
                })
            }
        });
        match &*sides.await? {
            [
                Side::Holder(Fenced::Applied),
                Side::Rival(Claim::Completed { .. }),
            ]
            | [
                Side::Holder(Fenced::Refused(_)),
                Side::Rival(Claim::Acquired(_)),
            ] => {}
            [Side::Holder(holder), Side::Rival(rival)] => {
                return Err(Failure::new(format!(
                    "the completion answered {holder:?}, the takeover {rival:?}"
                )));
            }
            _ => return Err(Failure::new("a side is missing")),
        }
    }
    Ok(())
}

async fn renewal_or_takeover(bench: &Bench) -> Result<(), Failure> {
    for attempt in bench.all_lapsed(bench.rounds()).await? {
        let sides = bench.together(2, |n, store| {
            let attempt = attempt.clone();
            async move {
                Ok(match n {
                    0 => {
                        let renewed = store.renew(attempt.digest(), &attempt.token, LONG);
                        Side::Holder(renewed.await?)
                    }
                    _ => Side::Rival(takeover(&store, &attempt).await?),
                })
            }
        });
        match &*sides.await? {
            [
                Side::Holder(Fenced::Applied),
                Side::Rival(Claim::InFlight { .. }),
            ]
            | [
                Side::Holder(Fenced::Refused(_)),
                Side::Rival(Claim::Acquired(_)),
            ] => {}
            [Side::Holder(holder), Side::Rival(rival)] => {
                return Err(Failure::new(format!(
                    "the renewal answered {holder:?}, the takeover {rival:?}"
                )));
            }
            _ => return Err(Failure::new("a side is missing")),
        }
    }
    Ok(())
}

async fn step_or_takeover(bench: &Bench) -> Result<(), Failure> {
    let step = FinishedStep::new("charge", b"ch_1").map_err(|e| Failure::new(e.to_string()))?;
    for attempt in bench.all_lapsed(bench.rounds()).await? {
        let sides = bench.together(2, |n, store| {
            let (attempt, step) = (attempt.clone(), step.clone());
            async move {
                Ok(match n {
                    0 => {
                        let kept = store.keep_step(attempt.digest(), &attempt.token, &step, 0);
                        Side::Holder(kept.await?)
                    }
                    _ => Side::Rival(takeover(&store, &attempt).await?),
                })
            }
        });
        let was_kept = match &*sides.await? {
            [Side::Holder(kept), Side::Rival(Claim::Acquired(_))] => *kept == Fenced::Applied,
            _ => return Err(Failure::new("a lapsed attempt was not taken over")),
        };
        let entry = bench.store().get(attempt.digest()).await?;
        let steps = entry.map_or(0, |entry| entry.record.progress.steps().count());
        ensure_eq!(
            steps == 1,
            was_kept,
            "a step is kept where that was answered"
        );
    }
    Ok(())
}

async fn completion_or_resolution(bench: &Bench) -> Result<(), Failure> {
    for _ in 0..bench.rounds() {
        let attempt = bench.unknown().await?;
        let sides = bench.together(2, |n, store| {
            let attempt = attempt.clone();
            async move {
                if n == 0 {
                    return Ok(Side::Holder(complete(&store, &attempt).await?));
                }
                let resolution = Resolution {
                    verdict: Verdict::DidNotHappen,
                    by: "suite".into(),
                    reason: "asked".into(),
                    fence: attempt.token.fence,
                    nonce: Nonce::random()?,
                };
                let resolved = store.resolve(attempt.digest(), &resolution);
                Ok(Side::Operator(resolved.await?))
            }
        });
        match &*sides.await? {
            [
                Side::Holder(Fenced::Applied),
                Side::Operator(Fenced::Refused(_)),
            ] => {
                completed(bench.rival(&attempt, OnLost::Hold).await?)?;
            }
            [
                Side::Holder(Fenced::Refused(_)),
                Side::Operator(Fenced::Applied),
            ] => {
                acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
            }
            _ => return Err(Failure::new("both happened, or neither")),
        }
    }
    Ok(())
}

async fn completed_stays_completed(bench: &Bench) -> Result<(), Failure> {
    const READERS: usize = 8;
    for _ in 0..bench.rounds() {
        let attempt = bench.attempt().await?;
        let seen = Arc::new(AtomicBool::new(false));
        bench
            .together(READERS + 1, |n, store| {
                let (attempt, seen) = (attempt.clone(), seen.clone());
                async move {
                    if n == READERS {
                        tokio::task::yield_now().await;
                        applied(complete(&store, &attempt).await?)?;
                        seen.store(true, Ordering::SeqCst);
                        return Ok(());
                    }
                    // Goes on for a while after the completion was seen.
                    let mut after = 0;
                    while after < 5 {
                        let before = seen.load(Ordering::SeqCst);
                        match takeover(&store, &attempt).await? {
                            Claim::Completed { .. } => {
                                seen.store(true, Ordering::SeqCst);
                                after += 1;
                            }
                            Claim::InFlight { .. } if !before => {}
                            other => {
                                return Err(Failure::new(format!(
                                    "completed was seen: {before}; then a claim answered {other:?}"
                                )));
                            }
                        }
                        tokio::task::yield_now().await;
                    }
                    Ok(())
                }
            })
            .await?;
    }
    Ok(())
}

async fn one_effect(bench: &Bench) -> Result<(), Failure> {
    for _ in 0..bench.rounds() {
        let identity = bench.identity("a-key-of-some-length")?;
        let (effects, patience) = (Arc::new(AtomicUsize::new(0)), bench.patience());
        let answers = bench
            .together(32, |n, store| {
                let (identity, effects) = (identity.clone(), effects.clone());
                async move { retry(n, &store, &identity, &effects, patience).await }
            })
            .await?;
        ensure_eq!(effects.load(Ordering::SeqCst), 1, "effects");
        for answer in &answers {
            ensure!(answer == &answers[0], "two answers to one operation");
        }
    }
    Ok(())
}

/// One caller: claims until it has an answer. Every third attempt fails before its effect.
async fn retry(
    caller: usize,
    store: &AnyStore,
    identity: &crate::Identity,
    effects: &AtomicUsize,
    patience: Duration,
) -> Result<Outcome, Failure> {
    loop {
        match store.claim(identity, &request()?).await? {
            Claim::Acquired(Acquired { token, attempt, .. }) => {
                tokio::task::yield_now().await;
                if attempt % 3 != 0 {
                    applied(store.abandon(identity.digest(), &token).await?)?;
                    continue;
                }
                let effect = effects.fetch_add(1, Ordering::SeqCst);
                let outcome = Outcome::success(format!("{caller}: {effect}").as_bytes());
                let retention = Retention::new(LONG);
                let done = store.complete(identity.digest(), &token, &outcome, retention);
                applied(done.await?)?;
                return Ok(outcome);
            }
            Claim::InFlight { fence, .. } => {
                store.wait(identity.digest(), fence, patience).await?;
            }
            Claim::Completed { outcome, .. } => return Ok(outcome),
            other => return Err(Failure::new(format!("a caller was answered {other:?}"))),
        }
    }
}
