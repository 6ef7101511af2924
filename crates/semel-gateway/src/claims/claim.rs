//! Makes a claim, and waits for the attempt that is in its way.

use std::time::Duration;

use semel::guard::{self, Again, Guard, Lead, Seen, Signal};
use semel::store::{Acquired, Claim, Entry, Fenced, Store as _, StoreExt as _};
use semel::{AnyStore, Identity, Progress, StoreErrorKind};
use semel_tower::ProblemCode;
use tokio::time::Instant;

use super::asked::Asked;
use super::body;
use super::token::{Held, millis};
use super::wire::{self, Replayed};
use super::{Claims, until_stopping};
use crate::refused::Refused;

/// What those are told who have to ask again; less where the lease ends sooner.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What became of a claim.
pub(super) enum Made {
    Acquired(wire::Acquired),
    Replayed(Replayed),
}

/// Claims, and waits for an attempt in flight as long as is asked for, there is room, and the gateway
/// does not stop.
pub(super) async fn make(claims: &Claims, asked: &Asked) -> Result<Made, Refused> {
    let guard = &claims.guard;
    let identity = &asked.identity;
    let mut in_doubt = InDoubt {
        claims,
        asked,
        is_doubtful: false,
    };
    let since = Instant::now();
    let deadline = since + asked.wait;
    let (mut room, mut has_waited) = (None, false);
    loop {
        let again = match has_waited {
            true => guard.again(identity, &asked.request, since).await,
            false => Again::Send(Lead::default()),
        };
        let (identity, answer) = match again {
            Again::Told(identity, answer) => (identity, answer),
            Again::Send(lead) => {
                in_doubt.is_doubtful = true;
                let answer = guard.claim(identity, &asked.request).await;
                let (identity, answer) = answer.inspect_err(|error| {
                    in_doubt.is_doubtful = error.kind() == StoreErrorKind::Unknown;
                    let signal = match error.kind() {
                        StoreErrorKind::Capacity => Signal::Capacity,
                        _ => Signal::StoreError,
                    };
                    guard.tell(&seen(identity, signal, since));
                })?;
                in_doubt.is_doubtful = matches!(answer, Claim::Acquired(_));
                lead.tell(&identity, &answer);
                (identity, answer)
            }
        };
        let id = identity.digest().to_string();
        let seen = |signal| seen(&identity, signal, since);
        let refused = |code: ProblemCode, signal: Signal, detail: &'static str| {
            guard.tell(&seen(signal));
            Refused::of_layer(code, detail).with("id", id.clone())
        };
        let refused = match answer {
            Claim::Acquired(acquired) => {
                // It may have been made long ago: what its client is told of the lease is to hold.
                if acquired.is_repeated {
                    let (store, lease) = (guard.store(), asked.request.lease);
                    let renewed = store.renew(identity.digest(), &acquired.token, lease);
                    if let Fenced::Refused(_) = renewed.await? {
                        continue;
                    }
                }
                let made = steps(guard, &identity, &acquired).await?;
                let made = acquired_by(asked, id, &acquired, &made)?;
                in_doubt.is_doubtful = false;
                let mut seen = seen(match acquired.attempt {
                    1 => Signal::New,
                    _ => Signal::Again,
                });
                seen.attempt = Some(acquired.attempt);
                seen.fence = Some(acquired.token.fence);
                guard.tell(&seen);
                return Ok(Made::Acquired(made));
            }
            Claim::Completed { outcome, remaining } => {
                guard.tell(&seen(Signal::Replayed));
                return Ok(Made::Replayed(Replayed {
                    id,
                    outcome: body::shown(&outcome),
                    remaining_ms: millis(remaining),
                }));
            }
            Claim::InFlight { fence, .. } if answer.is_over() => refused(
                ProblemCode::InFlight,
                Signal::InFlight,
                "This nonce's attempt was given back. Claim again under another nonce.",
            )
            .retry_after(RETRY_AFTER)
            .with("fence", fence.0),
            Claim::InFlight { fence, remaining } => {
                let left = deadline.saturating_duration_since(Instant::now());
                if room.is_none() && !left.is_zero() {
                    room = claims.waiting.try_acquire().ok();
                }
                if room.is_some() && !left.is_zero() && !*claims.stopping.borrow() {
                    // A lapse is no change in the store: ask again when it is due.
                    let turn = left.min(remaining.max(Duration::from_millis(1)));
                    tokio::select! {
                        waited = guard.store().wait(identity.digest(), fence, turn) => {
                            waited.inspect_err(|_| guard.tell(&seen(Signal::StoreError)))?;
                        }
                        () = until_stopping(claims.stopping.clone()) => {}
                    }
                    has_waited = true;
                    continue;
                }
                refused(
                    ProblemCode::InFlight,
                    Signal::InFlight,
                    "Another attempt holds the claim. Claim again, with `wait` to be told of its end.",
                )
                .retry_after(remaining.min(RETRY_AFTER))
                .with("fence", fence.0)
            }
            Claim::Unknown { fence } => refused(
                ProblemCode::OutcomeUnknown,
                Signal::Unknown,
                "An earlier attempt may have had its effect, and nobody recorded it. It does not run again \
                 until it is resolved, or claimed with `on_lost` `retry`.",
            )
            .with("fence", fence.0),
            Claim::Mismatch => refused(
                ProblemCode::Mismatch,
                Signal::Mismatch,
                "This key was claimed for another payload. Nothing was changed.",
            ),
            Claim::Expired => refused(
                ProblemCode::Expired,
                Signal::Expired,
                "It ran, and its outcome is no longer kept.",
            ),
        };
        return Err(refused);
    }
}

fn seen(identity: &Identity, signal: Signal, since: Instant) -> Seen<'_> {
    let mut seen = Seen::of(identity, signal);
    seen.waited = Some(since.elapsed());
    seen
}

/// What earlier attempts finished. This one, too, where its client comes back with its nonce.
async fn steps(
    guard: &Guard<AnyStore>,
    identity: &Identity,
    acquired: &Acquired,
) -> Result<Progress, Refused> {
    if acquired.attempt == 1 && !acquired.is_repeated {
        return Ok(Progress::EMPTY);
    }
    let entry = guard.store().get(identity.digest()).await?;
    let ours = entry.filter(|Entry { record, .. }| record.token == acquired.token);
    Ok(ours.map_or(Progress::EMPTY, |entry| entry.record.progress))
}

fn acquired_by(
    asked: &Asked,
    id: String,
    acquired: &Acquired,
    steps: &Progress,
) -> Result<wire::Acquired, Refused> {
    let held = Held {
        token: acquired.token,
        lease: asked.request.lease,
        retention: asked.retention,
    };
    Ok(wire::Acquired {
        id,
        token: held.to_text(),
        fence: acquired.token.fence.0,
        attempt: acquired.attempt,
        since: acquired.since.as_micros(),
        lease_ms: millis(asked.request.lease),
        steps: body::steps(steps)?,
    })
}

/// A claim that the store may have made, and that its client does not know of. Where that cannot come
/// back with its nonce, the claim is given back in the background.
struct InDoubt<'a> {
    claims: &'a Claims,
    asked: &'a Asked,
    is_doubtful: bool,
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        if self.is_doubtful && !self.asked.is_repeatable {
            let request = &self.asked.request;
            let asked = guard::Asked::new(self.asked.identity.clone(), request.fingerprint);
            self.claims.guard.give_back_if_made(&asked, request);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semel::memory::{Limits, MemoryStore};
    use semel::store::Nonce;
    use semel::{Clock as _, ManualClock, Timestamp};
    use tokio::sync::watch;

    use super::super::wire::ClaimRequest;
    use super::*;

    fn asked(nonce: Option<&str>) -> Asked {
        let request = ClaimRequest {
            operation: "job".to_owned(),
            key: "k".to_owned(),
            nonce: nonce.map(str::to_owned),
            ..ClaimRequest::default()
        };
        let service = super::super::asked::named(&request);
        Asked::read(&request, &service.unwrap_or_default(), None).unwrap_or_else(|_| unreachable!())
    }

    /// What a later claim finds, after a first one that was made and whose client was told nothing.
    async fn found_after_a_loss(nonce: Option<&str>) -> Claim {
        let store = AnyStore::new(MemoryStore::default());
        let (_stop, stopping) = watch::channel(false);
        let claims = Claims::new(Guard::from(store), 1, stopping);
        let (first, mut later) = (asked(nonce), asked(None));
        let store = claims.guard.store();
        store.claim(&first.identity, &first.request).await.unwrap();
        drop(InDoubt {
            claims: &claims,
            asked: &first,
            is_doubtful: true,
        });
        claims.guard.drain().await;
        later.request.nonce = Nonce::random().unwrap();
        store.claim(&later.identity, &later.request).await.unwrap()
    }

    /// What its client is told of the lease holds from the answer on, however long ago it was claimed.
    #[tokio::test]
    async fn a_claim_that_is_sent_again_is_renewed() {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1)));
        let store = MemoryStore::with_clock(Limits::default(), Arc::clone(&clock));
        let (_stop, stopping) = watch::channel(false);
        let claims = Claims::new(Guard::from(AnyStore::new(store)), 1, stopping);
        let asked = asked(Some("0123456789abcdef0123456789abcdef"));
        for _ in 0..3 {
            let made = make(&claims, &asked).await;
            assert!(matches!(made, Ok(Made::Acquired(_))));
            clock.advance(asked.request.lease * 2 / 3);
        }
        let entry = claims.guard.store().get(asked.identity.digest()).await;
        let record = entry.unwrap().unwrap().record;
        assert!(!record.is_lapsed(clock.now()), "{record:?}");
    }

    /// R14: what nobody can take back is given back.
    #[tokio::test]
    async fn a_claim_that_nobody_knows_of_is_given_back() {
        let found = found_after_a_loss(None).await;
        assert!(matches!(found, Claim::Acquired(_)), "{found:?}");
        let nonce = "0123456789abcdef0123456789abcdef";
        let found = found_after_a_loss(Some(nonce)).await;
        assert!(matches!(found, Claim::InFlight { .. }), "{found:?}");
    }
}
