//! Completion: what is kept, and what every later claim gets.

use super::bench::{Attempt, request};
use super::expect::{acquired, applied, completed, refused, settled};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::record::{State, StateKind};
use crate::store::{OnLost, Refusal, Retention, Store as _, StoreExt as _};
use crate::{Outcome, OutcomeKind, StoreErrorKind};

cases! { "complete";
    outcome_is_replayed [R5 R10]
        "once completed, every claim gets the outcome, through every handle, and how long it will be replayed";
    replay_is_byte_identical [R10]
        "successes, failures, omitted bodies, void, empty and binary answers come back byte for byte";
    every_body_size [R10]
        "bodies around the sizes at which programs change their ways come back byte for byte";
    large_outcome_or_too_large [R5 R10]
        "an outcome of 200 KiB is kept, or refused as too large with nothing changed and room for an omitted one";
    again_with_the_same_outcome [R4 R5]
        "completing again with the same token and outcome answers Applied and changes nothing";
    again_with_another_outcome [R4 R5]
        "completing again with another outcome is refused, and the first one stays";
    after_a_release [R4]
        "a released attempt can no longer complete";
    without_a_claim [R4]
        "completing, renewing, abandoning or marking what was never claimed is refused as missing, and makes nothing";
    record_says_when [R6]
        "a completed record holds its outcome and when it was completed, and keeps its token and fingerprint";
}

async fn complete(
    bench: &Bench,
    attempt: &Attempt,
    outcome: &Outcome,
) -> Result<crate::store::Fenced, Failure> {
    let retention = Retention::new(LONG);
    let step = bench
        .store()
        .complete(attempt.digest(), &attempt.token, outcome, retention);
    Ok(step.await?)
}

/// Completes a fresh identity, and wants the same bytes from every handle and policy.
async fn replays(bench: &Bench, outcome: &Outcome) -> Result<(), Failure> {
    let attempt = bench.completed(outcome, Retention::new(LONG)).await?;
    for store in [bench.store(), bench.other()] {
        let (replayed, _) = completed(store.claim(&attempt.identity, &request()?).await?)?;
        ensure!(
            replayed.as_bytes() == outcome.as_bytes(),
            "{outcome:?} came back as {replayed:?}, or with other bytes"
        );
        ensure_eq!(replayed.kind(), outcome.kind(), "kind");
        ensure_eq!(replayed.body(), outcome.body(), "body");
    }
    Ok(())
}

async fn outcome_is_replayed(bench: &Bench) -> Result<(), Failure> {
    let outcome = Outcome::success(b"kept");
    let attempt = bench.completed(&outcome, Retention::new(LONG)).await?;
    for on_lost in [OnLost::Hold, OnLost::Retry, OnLost::Reconcile] {
        let (replayed, remaining) = completed(bench.rival(&attempt, on_lost).await?)?;
        ensure_eq!(replayed, outcome, "outcome under {on_lost:?}");
        ensure!(
            remaining <= LONG && remaining > LONG / 2,
            "{remaining:?} of a retention of {LONG:?} remain"
        );
    }
    let other = bench.other().claim(&attempt.identity, &request()?).await?;
    ensure_eq!(
        completed(other)?.0,
        outcome,
        "outcome through the other handle"
    );
    // Also for the winner's own nonce: it lost the answer to its completion.
    let own = bench.store().claim(&attempt.identity, &attempt.request);
    ensure_eq!(
        completed(own.await?)?.0,
        outcome,
        "outcome under the own nonce"
    );
    Ok(())
}

async fn replay_is_byte_identical(bench: &Bench) -> Result<(), Failure> {
    let every_byte: Vec<u8> = (0..=255).collect();
    let with_fields = |kind| {
        Outcome::builder(kind)
            .code(u16::MAX)
            .field("content-type", b"application/json")
            .field("link", b"<a>")
            .field("link", b"<b>")
            .field("x-binary", &every_byte)
            .field("", b"")
    };
    let outcomes = [
        Outcome::void(),
        Outcome::success(b""),
        Outcome::failure(b""),
        Outcome::builder(OutcomeKind::Failure).void(),
        Outcome::success(b"\0"),
        Outcome::success(&every_byte),
        Outcome::failure("'\"\\ nul \0 end é 🔑".as_bytes()),
        with_fields(OutcomeKind::Success).body(&every_byte),
        with_fields(OutcomeKind::Failure).body(b"{}"),
        with_fields(OutcomeKind::Success)
            .body(b"large")
            .to_omitted(),
    ];
    for outcome in &outcomes {
        replays(bench, outcome).await?;
    }
    Ok(())
}

async fn every_body_size(bench: &Bench) -> Result<(), Failure> {
    for size in [1, 255, 256, 4_095, 4_096, 8_191, 16_384, 65_535, 65_536] {
        let body: Vec<u8> = (0..size).map(|n: u32| n.to_le_bytes()[0] ^ 0x5a).collect();
        replays(bench, &Outcome::success(&body)).await?;
    }
    Ok(())
}

async fn large_outcome_or_too_large(bench: &Bench) -> Result<(), Failure> {
    let outcome = Outcome::builder(OutcomeKind::Success)
        .code(200)
        .body(&[0xc3; 200 * 1024]);
    let attempt = bench.attempt().await?;
    let before = bench.entry(attempt.digest()).await?;
    let retention = Retention::new(LONG);
    let step = bench
        .store()
        .complete(attempt.digest(), &attempt.token, &outcome, retention);
    let kept = match step.await {
        Ok(fenced) => {
            applied(fenced)?;
            outcome
        }
        Err(e) if e.kind() == StoreErrorKind::TooLarge => {
            ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
            let omitted = outcome.to_omitted();
            applied(complete(bench, &attempt, &omitted).await?)?;
            omitted
        }
        Err(e) => return Err(e.into()),
    };
    let (replayed, _) = completed(bench.rival(&attempt, OnLost::Retry).await?)?;
    ensure!(replayed == kept, "wanted {kept:?}, found {replayed:?}");
    Ok(())
}

async fn again_with_the_same_outcome(bench: &Bench) -> Result<(), Failure> {
    let outcome = Outcome::success(b"kept");
    let attempt = bench.completed(&outcome, Retention::new(LONG)).await?;
    let before = bench.entry(attempt.digest()).await?;
    bench.pass(std::time::Duration::from_millis(1)).await;
    for store in [bench.store(), bench.other()] {
        // Another retention does not count: the first completion decided it.
        for retention in [LONG, LONG * 2] {
            let retention = Retention::new(retention);
            let again = store.complete(attempt.digest(), &attempt.token, &outcome, retention);
            applied(again.await?)?;
        }
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn again_with_another_outcome(bench: &Bench) -> Result<(), Failure> {
    let outcome = Outcome::success(b"first");
    let attempt = bench.completed(&outcome, Retention::new(LONG)).await?;
    let before = bench.entry(attempt.digest()).await?;
    let others = [
        Outcome::success(b"second"),
        Outcome::failure(b"first"),
        Outcome::void(),
        outcome.to_omitted(),
    ];
    for other in others {
        let again = complete(bench, &attempt, &other).await?;
        settled(again, StateKind::Completed)?;
    }
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn after_a_release(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let abandoned = bench.store().abandon(attempt.digest(), &attempt.token);
    applied(abandoned.await?)?;
    let before = bench.entry(attempt.digest()).await?;
    let late = complete(bench, &attempt, &Outcome::void()).await?;
    settled(late, StateKind::Released)?;
    ensure_eq!(bench.entry(attempt.digest()).await?, before, "record");
    Ok(())
}

async fn without_a_claim(bench: &Bench) -> Result<(), Failure> {
    let token = bench.attempt().await?.token;
    let store = bench.store();
    let nobody = bench.identity("never-claimed")?;
    let digest = nobody.digest();
    let retention = Retention::new(LONG);
    let steps = [
        store
            .complete(digest, &token, &Outcome::void(), retention)
            .await?,
        store.renew(digest, &token, LONG).await?,
        store.abandon(digest, &token).await?,
        store.mark_unknown(digest, &token).await?,
    ];
    for step in steps {
        refused(step, Refusal::Missing)?;
    }
    ensure_eq!(store.get(digest).await?, None, "record");
    acquired(store.claim(&nobody, &request()?).await?)?;
    Ok(())
}

async fn record_says_when(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let before = bench.entry(attempt.digest()).await?.record;
    bench.pass(std::time::Duration::from_millis(1)).await;
    let outcome = Outcome::success(b"kept");
    applied(complete(bench, &attempt, &outcome).await?)?;
    let record = bench.entry(attempt.digest()).await?.record;
    ensure_eq!(record.state, State::Completed(outcome), "state");
    ensure_eq!(record.token, attempt.token, "token");
    ensure_eq!(record.fingerprint, before.fingerprint, "fingerprint");
    ensure_eq!(record.attempt, 1, "attempt");
    ensure_eq!(record.claimed_at, before.claimed_at, "time of the claim");
    ensure!(
        record.settled_at.is_some_and(|at| at > before.claimed_at),
        "completed at {:?}, claimed at {:?}",
        record.settled_at,
        before.claimed_at
    );
    Ok(())
}
