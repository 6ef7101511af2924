//! Tokens and fences: only the latest claim writes, and its fence is above all before it.

use std::collections::BTreeSet;

use super::bench::{Attempt, request};
use super::expect::{acquired, applied, superseded};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::Outcome;
use crate::store::{
    ClaimRequest, Fence, Nonce, OnLost, Resolution, Retention, Store as _, StoreExt as _, Token,
    Verdict,
};

cases! { "tokens";
    stale_after_takeover [R4]
        "after a takeover the old token completes, renews, abandons and marks nothing";
    stale_after_release [R4]
        "after a release and a new claim the old token changes nothing";
    stale_after_expiry [R4]
        "after expiry, purging and a new claim the old token changes nothing, even if a number could repeat";
    stale_after_resolution [R4 R7]
        "after a resolution the attempt that was resolved changes nothing, whatever was decided";
    stale_after_the_nonce_came_again [R4]
        "a nonce that begins another attempt, after expiry or of an unknown record, brings another fence";
    forged_nonce [R4]
        "the right fence with another nonce changes nothing";
    forged_fence [R4]
        "the right nonce with another fence changes nothing";
    fences_grow [R4 R6]
        "fences grow across release, takeover, resolution, expiry and purging";
    fences_are_distinct [R4]
        "64 concurrent claims of 64 identities get 64 fences, each below 2^53";
}

/// Tries every fenced step with `token`, and wants each refused without a change.
async fn changes_nothing(bench: &Bench, attempt: &Attempt, token: &Token) -> Result<(), Failure> {
    let store = bench.store();
    let digest = attempt.digest();
    let before = bench.entry(digest).await?;
    let outcome = Outcome::success(b"from a stale attempt");
    for store in [store, bench.other()] {
        let completed = store.complete(digest, token, &outcome, Retention::new(LONG));
        superseded(completed.await?)?;
        superseded(store.renew(digest, token, LONG * 2).await?)?;
        superseded(store.abandon(digest, token).await?)?;
        superseded(store.mark_unknown(digest, token).await?)?;
    }
    ensure_eq!(bench.entry(digest).await?, before, "record");
    Ok(())
}

async fn resolve(bench: &Bench, attempt: &Attempt, verdict: Verdict) -> Result<(), Failure> {
    let resolution = Resolution {
        verdict,
        by: "suite".into(),
        reason: "asked".into(),
        fence: attempt.token.fence,
        nonce: Nonce::random()?,
    };
    applied(bench.store().resolve(attempt.digest(), &resolution).await?)
}

async fn stale_after_takeover(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    let next = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    changes_nothing(bench, &attempt, &attempt.token).await?;
    bench
        .complete(&attempt, &next.token, Retention::new(LONG))
        .await?;
    changes_nothing(bench, &attempt, &attempt.token).await
}

async fn stale_after_release(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let store = bench.store();
    applied(store.abandon(attempt.digest(), &attempt.token).await?)?;
    acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    changes_nothing(bench, &attempt, &attempt.token).await
}

async fn stale_after_expiry(bench: &Bench) -> Result<(), Failure> {
    for purge in [false, true] {
        let attempt = bench.past_retention(purge).await?;
        acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
        changes_nothing(bench, &attempt, &attempt.token).await?;
    }
    Ok(())
}

async fn stale_after_the_nonce_came_again(bench: &Bench) -> Result<(), Failure> {
    let before = [
        bench.past_retention(false).await?,
        bench.past_retention(true).await?,
        bench.unknown().await?,
    ];
    for attempt in before {
        let request = ClaimRequest {
            nonce: attempt.token.nonce,
            on_lost: OnLost::Retry,
            ..request()?
        };
        let claim = bench.store().claim(&attempt.identity, &request).await?;
        let next = acquired(claim)?.token;
        ensure!(
            next.fence > attempt.token.fence,
            "{next:?} after {:?}",
            attempt.token
        );
        changes_nothing(bench, &attempt, &attempt.token).await?;
    }
    Ok(())
}

async fn stale_after_resolution(bench: &Bench) -> Result<(), Failure> {
    let happened = Verdict::Happened {
        outcome: Outcome::success(b"found out"),
        retention: Retention::new(LONG),
    };
    for verdict in [happened, Verdict::DidNotHappen] {
        for attempt in [bench.unknown().await?, bench.lapsed().await?] {
            resolve(bench, &attempt, verdict.clone()).await?;
            changes_nothing(bench, &attempt, &attempt.token).await?;
        }
    }
    Ok(())
}

async fn forged_nonce(bench: &Bench) -> Result<(), Failure> {
    for attempt in [bench.attempt().await?, bench.unknown().await?] {
        let mut near = *attempt.token.nonce.as_bytes();
        near[15] ^= 1;
        for nonce in [Nonce::from_bytes(near), Nonce::from_bytes([0; 16])] {
            let forged = Token {
                nonce,
                ..attempt.token
            };
            changes_nothing(bench, &attempt, &forged).await?;
        }
    }
    Ok(())
}

async fn forged_fence(bench: &Bench) -> Result<(), Failure> {
    for attempt in [bench.attempt().await?, bench.unknown().await?] {
        let Fence(fence) = attempt.token.fence;
        for fence in [fence - 1, fence + 1, 0, u64::MAX] {
            let forged = Token {
                fence: Fence(fence),
                ..attempt.token
            };
            changes_nothing(bench, &attempt, &forged).await?;
        }
    }
    Ok(())
}

async fn fences_grow(bench: &Bench) -> Result<(), Failure> {
    let store = bench.store();
    let attempt = bench.lapsed().await?;
    let digest = attempt.digest();
    let mut fences = vec![attempt.token.fence];

    let taken = acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    fences.push(taken.token.fence);
    applied(store.abandon(digest, &taken.token).await?)?;
    let again = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    fences.push(again.token.fence);
    applied(store.mark_unknown(digest, &again.token).await?)?;
    let looked_into = Attempt {
        token: again.token,
        ..attempt.clone()
    };
    resolve(bench, &looked_into, Verdict::DidNotHappen).await?;
    fences.push(bench.entry(digest).await?.record.token.fence);
    for purge in [false, true] {
        let next = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
        fences.push(next.token.fence);
        let brief = Retention::new(bench.short());
        bench.complete(&attempt, &next.token, brief).await?;
        bench.pass(bench.short()).await;
        if purge {
            while store.purge(1_000).await?.more {}
        }
    }
    let last = acquired(bench.rival(&attempt, OnLost::Hold).await?)?;
    fences.push(last.token.fence);
    ensure!(
        fences.is_sorted_by(|a, b| a < b),
        "fences in the order of their claims: {fences:?}"
    );
    Ok(())
}

/// The first number that a 64-bit float, and so JSON in many languages, no longer tells from the next.
const INEXACT: Fence = Fence(1 << 53);

async fn fences_are_distinct(bench: &Bench) -> Result<(), Failure> {
    let mut given = BTreeSet::new();
    for _ in 0..bench.rounds().div_ceil(4) {
        let mut identities = Vec::with_capacity(64);
        for _ in 0..64 {
            identities.push(bench.identity("a-key-of-some-length")?);
        }
        let fences = bench
            .together(identities.len(), |n, store| {
                let identity = identities[n].clone();
                async move {
                    let claim = store.claim(&identity, &request()?).await?;
                    Ok(acquired(claim)?.token.fence)
                }
            })
            .await?;
        for fence in fences {
            ensure!(fence < INEXACT, "a fence is {fence}");
            ensure!(
                given.insert(fence) || bench.is_sharded(),
                "two identities got the fence {fence}"
            );
        }
    }
    Ok(())
}
