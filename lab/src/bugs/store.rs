//! A store that is wrong in one way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use semel::record::{Change, Update};
use semel::store::{
    Acquired, Claim, ClaimRequest, Fence, Fenced, ListQuery, Nonce, OnLost, Purged, Refusal,
    Resolution, Result, StoreExt as _, Token, Waited,
};
use semel::{
    AnyStore, Identity, IdentityDigest, Outcome, StateKind, Store, StoreError, StoreErrorKind,
    Timestamp,
};
use tokio::time::sleep;

use super::Bug;

/// A store before which a bug stands.
#[derive(Debug, Clone)]
pub struct Buggy {
    inner: AnyStore,
    bug: Bug,
    // Callers whose clock is early, where that matters.
    early: bool,
    // The wall clock and the machine's, when it was made.
    made: (SystemTime, Instant),
    memory: Arc<Mutex<Memory>>,
    calls: Arc<AtomicU64>,
}

#[expect(clippy::disallowed_methods, reason = "what the bug goes by")]
fn wall() -> SystemTime {
    SystemTime::now()
}

/// What a bug remembers.
#[derive(Debug, Default)]
struct Memory {
    claims: HashMap<IdentityDigest, (Claim, Instant)>,
    // What was taken from the fences of each identity's claims.
    bases: HashMap<IdentityDigest, u64>,
    last: Option<Outcome>,
}

impl Memory {
    fn keep(&mut self, digest: &IdentityDigest, claim: &Claim) {
        let kept = (claim.clone(), Instant::now());
        self.claims.insert(*digest, kept);
    }
}

impl Buggy {
    /// Makes `inner` wrong.
    pub fn new(inner: AnyStore, bug: Bug) -> Self {
        Self {
            inner,
            bug,
            early: false,
            made: (wall(), Instant::now()),
            memory: Arc::default(),
            calls: Arc::default(),
        }
    }

    /// The same store as another caller sees it: one with an early clock, where that matters.
    #[must_use]
    pub fn for_caller(&self, number: u32) -> Self {
        Self {
            early: number % 2 == 1,
            ..self.clone()
        }
    }

    /// Whether a lease has lapsed by this caller's wall clock, which was right when it began.
    fn is_early(&self, lease: Duration) -> bool {
        let (wall_then, then) = self.made;
        let ahead = wall().duration_since(wall_then + then.elapsed());
        self.early || ahead.is_ok_and(|ahead| ahead > lease)
    }

    fn every(&self, n: u64) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(n)
    }

    async fn record(&self, digest: &IdentityDigest) -> Result<Option<semel::Record>> {
        Ok(self.inner.get(digest).await?.map(|entry| entry.record))
    }

    /// Overwrites whoever holds the identity.
    async fn seize(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        if let Some(record) = self.record(identity.digest()).await? {
            let _ = self.inner.abandon(identity.digest(), &record.token).await?;
        }
        self.inner.claim(identity, request).await
    }

    async fn claim_wrongly(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let digest = identity.digest();
        let claim = self.inner.claim(identity, request).await;
        match self.bug {
            Bug::FailsOpen => claim.or_else(|_| {
                let token = Token {
                    fence: Fence(1),
                    nonce: request.nonce,
                };
                Ok(Claim::Acquired(Acquired {
                    token,
                    attempt: 1,
                    since: Timestamp::default(),
                    is_repeated: false,
                }))
            }),
            Bug::CallersClock => match claim? {
                Claim::InFlight { .. }
                    if self.is_early(request.lease) && request.on_lost == OnLost::Retry =>
                {
                    self.seize(identity, request).await
                }
                claim => Ok(claim),
            },
            Bug::MismatchReplays => match (claim?, self.record(digest).await?) {
                (Claim::Mismatch, Some(record)) => {
                    let request = ClaimRequest {
                        fingerprint: record.fingerprint,
                        ..request.clone()
                    };
                    self.inner.claim(identity, &request).await
                }
                (claim, _) => Ok(claim),
            },
            Bug::NewNonceRetry => match claim {
                Err(error) if error.kind() == StoreErrorKind::Unknown => {
                    let nonce = Nonce::random()?;
                    let request = ClaimRequest {
                        nonce,
                        ..request.clone()
                    };
                    self.inner.claim(identity, &request).await
                }
                claim => claim,
            },
            Bug::DoneCalledNotDone => claim.map_err(|error| not_done(&error)),
            Bug::OwnNonceLoses => {
                let before = self.memory.lock().claims.get(digest).cloned();
                let claim = claim?;
                if let Claim::Acquired(new) = &claim {
                    if let Some((Claim::Acquired(old), _)) = before
                        && old.token == new.token
                    {
                        return Ok(Claim::InFlight {
                            fence: old.token.fence,
                            remaining: request.lease,
                        });
                    }
                    self.memory.lock().keep(digest, &claim);
                }
                Ok(claim)
            }
            Bug::EpochReset => Ok(self.rebase(digest, claim?)),
            Bug::StaleRead => {
                let claim = claim?;
                if matches!(claim, Claim::InFlight { .. }) {
                    self.memory.lock().keep(digest, &claim);
                }
                Ok(claim)
            }
            Bug::NeverExpires => {
                let claim = claim?;
                let mut memory = self.memory.lock();
                match (&claim, memory.claims.get(digest)) {
                    (Claim::Completed { .. }, _) => {
                        memory.keep(digest, &claim);
                    }
                    // Behind the caller's back the identity is claimed again, as by a cache that
                    // is filled once.
                    (Claim::Acquired(_), Some((kept, _))) => return Ok(kept.clone()),
                    _ => {}
                }
                Ok(claim)
            }
            Bug::DroppedField | Bug::VoidIsEmpty | Bug::OtherKeysReplay => match claim? {
                Claim::Completed { outcome, remaining } => Ok(Claim::Completed {
                    outcome: self.spoil(outcome),
                    remaining,
                }),
                claim => Ok(claim),
            },
            _ => claim,
        }
    }

    /// Fences as a store would give them out that forgets with the record.
    fn rebase(&self, digest: &IdentityDigest, claim: Claim) -> Claim {
        let mut memory = self.memory.lock();
        let base = memory.bases.entry(*digest).or_default();
        match claim {
            Claim::Acquired(mut acquired) => {
                let Fence(fence) = &mut acquired.token.fence;
                if acquired.attempt == 1 {
                    *base = *fence - 1;
                }
                *fence -= *base;
                Claim::Acquired(acquired)
            }
            Claim::InFlight { fence, remaining } => Claim::InFlight {
                fence: Fence(fence.0.saturating_sub(*base)),
                remaining,
            },
            Claim::Unknown { fence } => Claim::Unknown {
                fence: Fence(fence.0.saturating_sub(*base)),
            },
            claim => claim,
        }
    }

    fn fence_inside(&self, digest: &IdentityDigest, fence: Fence) -> Fence {
        if self.bug != Bug::EpochReset {
            return fence;
        }
        let memory = self.memory.lock();
        let base = memory.bases.get(digest).copied().unwrap_or(0);
        Fence(fence.0.saturating_add(base))
    }

    fn spoil(&self, outcome: Outcome) -> Outcome {
        let rebuilt = |fields: usize, empty: bool| {
            let mut builder = Outcome::builder(outcome.kind()).code(outcome.code());
            for (name, value) in outcome.fields().take(fields) {
                builder = builder.field(name, value);
            }
            match outcome.body() {
                Some(body) => builder.body(&body),
                None if empty => builder.body(b""),
                None => builder.void(),
            }
        };
        match self.bug {
            Bug::DroppedField => rebuilt(outcome.fields().count().saturating_sub(1), false),
            Bug::VoidIsEmpty => rebuilt(usize::MAX, true),
            Bug::OtherKeysReplay if self.every(20) => {
                let last = self.memory.lock().last.replace(outcome.clone());
                last.unwrap_or(outcome)
            }
            _ => outcome,
        }
    }

    /// The token that the store compares with the record's.
    async fn seen(&self, digest: &IdentityDigest, token: &Token) -> Result<Token> {
        let lax = match self.bug {
            Bug::NonceIgnored | Bug::FenceIgnored => self.record(digest).await?,
            _ => None,
        };
        Ok(match (self.bug, lax) {
            (Bug::NonceIgnored, Some(record)) if record.token.fence == token.fence => record.token,
            (Bug::FenceIgnored, Some(record)) if record.token.nonce == token.nonce => record.token,
            _ => Token {
                fence: self.fence_inside(digest, token.fence),
                nonce: token.nonce,
            },
        })
    }
}

fn not_done(error: &StoreError) -> StoreError {
    StoreError::new(StoreErrorKind::NotApplied, error.to_string())
}

impl Store for Buggy {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let digest = identity.digest();
        match self.bug {
            Bug::CheckThenAct => {
                let free = self
                    .record(digest)
                    .await?
                    .is_none_or(|record| record.state.kind() == StateKind::Released);
                sleep(Duration::from_millis(1)).await;
                let claim = self.inner.claim(identity, request).await?;
                match claim {
                    Claim::InFlight { .. } if free => self.seize(identity, request).await,
                    claim => Ok(claim),
                }
            }
            Bug::HoldReruns => {
                let request = ClaimRequest {
                    on_lost: OnLost::Retry,
                    ..request.clone()
                };
                self.inner.claim(identity, &request).await
            }
            Bug::StaleRead => {
                let known = self.memory.lock().claims.get(digest).cloned();
                match known {
                    Some((claim, at)) if at.elapsed() < Duration::from_millis(50) => Ok(claim),
                    _ => self.claim_wrongly(identity, request).await,
                }
            }
            _ => self.claim_wrongly(identity, request).await,
        }
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let change = match change {
            Change::Held(token, update) => {
                let mut token = self.seen(identity, token).await?;
                let mut update = update.clone();
                match (self.bug, &mut update) {
                    (Bug::AbandonForgotten, Update::Abandon) => return Ok(Fenced::Applied),
                    (Bug::ZeroRowsLost, Update::Complete(..)) if self.every(20) => {
                        return Ok(Refusal::Superseded.into());
                    }
                    (Bug::ShortRetention, Update::Complete(_, retention)) => retention.replay /= 4,
                    (Bug::UnfencedComplete, Update::Complete(..)) => {
                        if let Some(record) = self.record(identity).await? {
                            token = record.token;
                        }
                    }
                    (Bug::EarlyAck, Update::Complete(..)) => {
                        let (inner, digest) = (self.inner.clone(), *identity);
                        tokio::spawn(async move {
                            sleep(Duration::from_millis(30)).await;
                            inner.change(&digest, &Change::Held(token, update)).await
                        });
                        return Ok(Fenced::Applied);
                    }
                    _ => {}
                }
                Change::Held(token, update)
            }
            Change::Resolve(resolution) => Change::resolve(&Resolution {
                fence: self.fence_inside(identity, resolution.fence),
                ..(**resolution).clone()
            }),
        };
        let done = self.inner.change(identity, &change).await;
        match self.bug {
            Bug::DoneCalledNotDone => done.map_err(|error| not_done(&error)),
            _ => done,
        }
    }

    semel::delegate!(inner: get, list, probe, close);

    async fn purge(&self, limit: usize) -> Result<Purged> {
        if self.bug == Bug::PurgesRunning {
            let running = self
                .inner
                .list(&ListQuery::new(StateKind::InFlight))
                .await?;
            for entry in running.entries.iter().take(limit) {
                let digest = &entry.label.digest;
                let _ = self.inner.abandon(digest, &entry.record.token).await?;
            }
        }
        self.inner.purge(limit).await
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        if self.bug == Bug::DeafWait {
            sleep(timeout).await;
            return Ok(Waited::TimedOut);
        }
        let fence = self.fence_inside(identity, fence);
        self.inner.wait(identity, fence, timeout).await
    }
}
