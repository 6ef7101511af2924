//! Waiting for an attempt in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::bench::{Attempt, unique};
use super::expect::{acquired, applied, completed};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::store::{Fence, OnLost, Retention, Store as _, StoreExt as _, Waited};
use crate::{AnyStore, Outcome};

cases! { "waiting";
    returns_at_once_where_nothing_runs [R5]
        "a wait returns at once if there is no record, another fence, or a settled one";
    times_out [R1]
        "a wait for a running attempt ends after its timeout, not much sooner or later";
    wakes_on_completion [R5]
        "a completion wakes waiters on every handle, and their claim replays it";
    wakes_on_release [R4]
        "a release wakes waiters";
    wakes_on_unknown [R7]
        "marking as unknown wakes waiters";
    wakes_on_takeover [R7]
        "a takeover wakes the waiters of the attempt before";
    wakes_on_resolution [R7]
        "a resolution wakes the waiters of a lapsed attempt";
    renewal_is_no_change [R4]
        "a renewal does not lose those who wait: the completion after it still wakes them";
    no_wake_is_lost [R5]
        "of many waiters that come while attempts complete, each is woken";
}

fn waiter(
    store: &AnyStore,
    attempt: &Attempt,
    timeout: Duration,
) -> JoinHandle<Result<Waited, Failure>> {
    let (store, identity, fence) = (store.clone(), attempt.identity.clone(), attempt.token.fence);
    tokio::spawn(async move { Ok(store.wait(identity.digest(), fence, timeout).await?) })
}

/// Waiters on both handles that have had time to settle down.
async fn waiters(
    bench: &Bench,
    attempt: &Attempt,
) -> Result<Vec<JoinHandle<Result<Waited, Failure>>>, Failure> {
    let stores = [bench.store(), bench.other(), bench.store()];
    let waiting = stores.map(|store| waiter(store, attempt, bench.patience()));
    sleep(Duration::from_millis(5)).await;
    for task in &waiting {
        ensure!(!task.is_finished(), "a waiter returned before any change");
    }
    Ok(waiting.into())
}

async fn woken(waiting: Vec<JoinHandle<Result<Waited, Failure>>>) -> Result<(), Failure> {
    for task in waiting {
        let waited = task
            .await
            .map_err(|e| Failure::new(format!("a waiter panicked: {e}")))??;
        ensure_eq!(waited, Waited::Changed, "what a waiter saw");
    }
    Ok(())
}

async fn returns_at_once_where_nothing_runs(bench: &Bench) -> Result<(), Failure> {
    let store = bench.store();
    let running = bench.attempt().await?;
    let nobody = Attempt {
        identity: bench.identity("never-claimed")?,
        ..running.clone()
    };
    let stale = Attempt {
        token: crate::store::Token {
            fence: Fence(running.token.fence.0 - 1),
            ..running.token
        },
        ..running
    };
    let released = bench.attempt().await?;
    applied(store.abandon(released.digest(), &released.token).await?)?;
    let retention = Retention::new(LONG);
    let settled = [
        nobody,
        stale,
        released,
        bench.unknown().await?,
        bench.completed(&Outcome::void(), retention).await?,
    ];
    for (n, attempt) in settled.iter().enumerate() {
        for store in [store, bench.other()] {
            let (from, timeout) = (Instant::now(), bench.patience());
            let wait = store.wait(attempt.digest(), attempt.token.fence, timeout);
            ensure_eq!(wait.await?, Waited::Changed, "wait {n}");
            let took = from.elapsed();
            ensure!(took < timeout / 2, "wait {n} took {took:?}");
        }
    }
    Ok(())
}

async fn times_out(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    for timeout in [Duration::ZERO, bench.short()] {
        let from = Instant::now();
        let wait = bench
            .store()
            .wait(attempt.digest(), attempt.token.fence, timeout);
        ensure_eq!(wait.await?, Waited::TimedOut, "a wait of {timeout:?}");
        let took = from.elapsed();
        ensure!(
            took >= timeout && took < timeout + bench.patience() / 2,
            "a wait of {timeout:?} took {took:?}"
        );
    }
    Ok(())
}

async fn wakes_on_completion(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let waiting = waiters(bench, &attempt).await?;
    let outcome = Outcome::success(b"kept");
    let done = bench.store().complete(
        attempt.digest(),
        &attempt.token,
        &outcome,
        Retention::new(LONG),
    );
    applied(done.await?)?;
    woken(waiting).await?;
    let (replayed, _) = completed(bench.rival(&attempt, OnLost::Hold).await?)?;
    ensure_eq!(replayed, outcome, "outcome");
    Ok(())
}

async fn wakes_on_release(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let waiting = waiters(bench, &attempt).await?;
    let abandoned = bench.store().abandon(attempt.digest(), &attempt.token);
    applied(abandoned.await?)?;
    woken(waiting).await
}

async fn wakes_on_unknown(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let waiting = waiters(bench, &attempt).await?;
    let marked = bench.store().mark_unknown(attempt.digest(), &attempt.token);
    applied(marked.await?)?;
    woken(waiting).await
}

// A wait may end by itself once the lease lapsed, so these start only then.
async fn waiters_of_lapsed(
    bench: &Bench,
    attempt: &Attempt,
) -> Vec<JoinHandle<Result<Waited, Failure>>> {
    let stores = [bench.store(), bench.other()];
    let waiting = stores.map(|store| waiter(store, attempt, bench.patience()));
    sleep(Duration::from_millis(5)).await;
    waiting.into()
}

async fn wakes_on_takeover(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    let waiting = waiters_of_lapsed(bench, &attempt).await;
    acquired(bench.rival(&attempt, OnLost::Retry).await?)?;
    woken(waiting).await
}

async fn wakes_on_resolution(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.lapsed().await?;
    let waiting = waiters_of_lapsed(bench, &attempt).await;
    let resolution = crate::store::Resolution {
        verdict: crate::store::Verdict::DidNotHappen,
        by: "suite".into(),
        reason: "asked".into(),
        fence: attempt.token.fence,
        nonce: crate::store::Nonce::random()?,
    };
    applied(bench.store().resolve(attempt.digest(), &resolution).await?)?;
    woken(waiting).await
}

async fn renewal_is_no_change(bench: &Bench) -> Result<(), Failure> {
    let attempt = bench.attempt().await?;
    let store = bench.store();
    let waiting = waiters(bench, &attempt).await?;
    applied(
        store
            .renew(attempt.digest(), &attempt.token, LONG * 2)
            .await?,
    )?;
    applied(store.abandon(attempt.digest(), &attempt.token).await?)?;
    woken(waiting).await
}

/// Bytes to decide delays with: different in every run, the same for all who share the `Arc`.
fn dice() -> Result<Arc<[u8]>, Failure> {
    Ok(unique()?.into_bytes().into())
}

async fn no_wake_is_lost(bench: &Bench) -> Result<(), Failure> {
    const WAITERS: usize = 12;
    for _ in 0..bench.rounds() {
        let attempt = bench.attempt().await?;
        let (patience, dice) = (bench.patience(), dice()?);
        bench
            .together(WAITERS + 1, |n, store| {
                let (attempt, dice) = (attempt.clone(), dice.clone());
                async move {
                    for _ in 0..dice[n] % 16 {
                        tokio::task::yield_now().await;
                    }
                    let digest = attempt.digest();
                    if n == WAITERS {
                        let retention = Retention::new(LONG);
                        let outcome = Outcome::void();
                        let done = store.complete(digest, &attempt.token, &outcome, retention);
                        return applied(done.await?);
                    }
                    let waited = store.wait(digest, attempt.token.fence, patience).await?;
                    ensure_eq!(waited, Waited::Changed, "what waiter {n} saw");
                    Ok(())
                }
            })
            .await?;
    }
    Ok(())
}
