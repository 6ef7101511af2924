//! Those who complete identities, in a process of their own, and what they say on its output: each
//! completion before it is sent, and how it was answered.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use semel::store::{Claim, ClaimRequest, Fenced, Nonce, Retention, StoreExt as _};
use semel::{
    AnyStore, Fingerprint, Identity, Key, Outcome, Scope, Store as _, StoreError, StoreErrorKind,
};
use semel_stores::OpenOptions;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::process::{Orders, Process, say};

const TASKS: usize = 16;

/// What a caller says of the completion of a key.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Said {
    /// It is sent.
    Sent(u64),
    /// It was acknowledged.
    Done(u64),
    /// It did not happen.
    Not(u64),
}

/// What callers were answered.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Completions that were acknowledged.
    pub(super) acknowledged: BTreeSet<u64>,
    /// Completions that were sent, and not answered or answered "unknown".
    pub(super) unknown: BTreeSet<u64>,
}

impl Heard {
    pub(super) fn take(&mut self, said: Said) {
        match said {
            Said::Sent(key) => {
                self.unknown.insert(key);
            }
            Said::Done(key) => {
                self.unknown.remove(&key);
                self.acknowledged.insert(key);
            }
            Said::Not(key) => {
                self.unknown.remove(&key);
            }
        }
    }

    /// Listens for so long, from the first completion that is acknowledged on.
    pub(super) async fn listen(&mut self, callers: &mut Process, length: Duration) -> Result<()> {
        let mut end = None;
        loop {
            let heard = match end {
                None => callers.hear().await,
                Some(end) => match timeout_at(end, callers.hear()).await {
                    Ok(heard) => heard,
                    Err(_) => return Ok(()),
                },
            };
            self.take(heard.context("the callers")?);
            if !self.acknowledged.is_empty() {
                end.get_or_insert_with(|| Instant::now() + length);
            }
        }
    }
}

/// The callers' process: completes identities until its input ends.
pub(crate) async fn run(url: &str) -> Result<()> {
    let store = semel_stores::open(url, &OpenOptions::default()).await?;
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (store, next) = (store.clone(), next.clone());
        tasks.spawn(async move {
            loop {
                complete(&store, next.fetch_add(1, Ordering::Relaxed)).await?;
            }
        });
    }
    let mut orders = Orders::new();
    tokio::select! {
        // The parent is gone: nobody listens.
        _ = orders.next::<String>() => Ok(()),
        Some(ended) = tasks.join_next() => ended?,
    }
}

async fn complete(store: &AnyStore, key: u64) -> Result<()> {
    let digest = *identity(key)?.digest();
    let acquired = match claim(store, key).await {
        Ok(Claim::Acquired(acquired)) => acquired,
        Ok(other) => bail!("a new identity is not acquired: {other:?}"),
        // The server is gone or busy; the next identity is as good.
        Err(_) => return Ok(()),
    };
    say(&Said::Sent(key));
    let outcome = outcome(key);
    let answer = store
        .complete(&digest, &acquired.token, &outcome, Retention::ORDER)
        .await;
    match answer {
        Ok(Fenced::Applied) => say(&Said::Done(key)),
        Ok(Fenced::Refused(refusal)) => bail!("a completion is refused: {refusal}"),
        Err(error) if error.kind() == StoreErrorKind::Unknown => {}
        Err(_) => say(&Said::Not(key)),
    }
    Ok(())
}

/// Claims as all callers do.
pub(super) async fn claim(store: &AnyStore, key: u64) -> Result<Claim, StoreError> {
    let request = ClaimRequest::new(
        Nonce::random()?,
        Fingerprint::of(&key.to_le_bytes()),
        Duration::from_mins(10),
    );
    store.claim(&identity(key)?, &request).await
}

/// What this key's completion keeps.
pub(super) fn outcome(key: u64) -> Outcome {
    let body = format!("{key:016x}").repeat(8);
    Outcome::success(body.as_bytes())
}

fn identity(key: u64) -> Result<Identity, StoreError> {
    let key = Key::new(&format!("{key:016x}"))
        .map_err(|error| StoreError::new(StoreErrorKind::Config, error.to_string()))?;
    Ok(Identity::new(Scope::new(["power"]), "complete", key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_acknowledged_counts_as_such() {
        let mut heard = Heard::default();
        for said in [
            Said::Sent(1),
            Said::Sent(2),
            Said::Sent(3),
            Said::Done(2),
            Said::Not(3),
        ] {
            heard.take(said);
        }
        assert_eq!(
            (heard.acknowledged, heard.unknown),
            ([2].into(), [1].into())
        );
    }
}
