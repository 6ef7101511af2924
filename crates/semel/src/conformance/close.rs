//! The beginning and the end of a store's use.

use super::bench::request;
use super::expect::acquired;
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::record::StateKind;
use crate::store::{
    ListQuery, Nonce, Resolution, Result, Retention, Store as _, StoreExt as _, Verdict,
};
use crate::{FinishedStep, Outcome, StoreErrorKind};

cases! { "close";
    probe_says_what_is_promised [R5 R9]
        "a probe names the store, and says the same through every handle";
    closed_store_says_so [R9]
        "after closing every call fails as closed, and closing twice is no error";
}

async fn probe_says_what_is_promised(bench: &Bench) -> Result<(), Failure> {
    let probe = bench.store().probe().await?;
    ensure!(!probe.store.is_empty(), "a store has a name");
    for warning in &probe.warnings {
        ensure!(!warning.trim().is_empty(), "a warning says something");
    }
    let other = bench.other().probe().await?;
    ensure_eq!(other.store, probe.store, "name");
    ensure_eq!(other.durability, probe.durability, "durability");
    Ok(())
}

#[track_caller]
fn closed<T>(step: &str, result: Result<T>) -> Result<(), Failure> {
    match result {
        Ok(_) => Err(Failure::new(format!("{step} worked on a closed store"))),
        Err(e) => {
            ensure_eq!(e.kind(), StoreErrorKind::Closed, "how {step} failed");
            Ok(())
        }
    }
}

async fn closed_store_says_so(bench: &Bench) -> Result<(), Failure> {
    let store = bench.store();
    let identity = bench.identity("a-key-of-some-length")?;
    let request = request()?;
    let token = acquired(store.claim(&identity, &request).await?)?.token;
    store.close().await?;
    store.close().await?;

    let digest = identity.digest();
    let retention = Retention::new(LONG);
    let resolution = Resolution {
        verdict: Verdict::DidNotHappen,
        by: "suite".into(),
        reason: "asked".into(),
        fence: token.fence,
        nonce: Nonce::random()?,
    };
    let query = ListQuery::new(StateKind::InFlight);
    closed("claim", store.claim(&identity, &request).await)?;
    closed("renew", store.renew(digest, &token, LONG).await)?;
    let outcome = Outcome::void();
    let complete = store.complete(digest, &token, &outcome, retention);
    closed("complete", complete.await)?;
    let step = FinishedStep::new("step", b"").map_err(|e| Failure::new(e.to_string()))?;
    let keep = store.keep_step(digest, &token, &step, 0);
    closed("keep_step", keep.await)?;
    closed("abandon", store.abandon(digest, &token).await)?;
    closed("mark_unknown", store.mark_unknown(digest, &token).await)?;
    closed("resolve", store.resolve(digest, &resolution).await)?;
    closed("get", store.get(digest).await)?;
    closed("list", store.list(&query).await)?;
    closed("purge", store.purge(1).await)?;
    closed("wait", store.wait(digest, token.fence, LONG).await)?;
    closed("probe", store.probe().await)?;
    store.close().await?;
    Ok(())
}
