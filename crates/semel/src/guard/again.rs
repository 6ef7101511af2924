//! Claims after a wait. When an attempt ends, all who waited for it would claim at once: a thousand
//! clicks, a thousand round trips. One of them claims, and the others take its answer, as far as it is
//! theirs too.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Guard;
use crate::store::{Acquired, Claim, ClaimRequest, Nonce};
use crate::sync::Mutex;
use crate::{Fingerprint, Identity, IdentityDigest};

/// How long another's answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The claims under way.
pub(super) type Turns = Arc<Mutex<HashMap<IdentityDigest, Turn>>>;

/// One of them.
pub(super) struct Turn {
    begun: Instant,
    fingerprint: Fingerprint,
    told: watch::Receiver<Option<Told>>,
}

#[derive(Clone)]
struct Told {
    identity: Identity,
    claim: Claim,
    lease: Duration,
}

impl Told {
    /// What a claim under `nonce` would be answered at that moment.
    fn to(self, nonce: Nonce) -> Again {
        let claim = match self.claim {
            Claim::Acquired(acquired) if acquired.token.nonce == nonce => {
                Claim::Acquired(Acquired {
                    is_repeated: true,
                    ..acquired
                })
            }
            Claim::Acquired(acquired) => Claim::InFlight {
                fence: acquired.token.fence,
                remaining: self.lease,
            },
            claim => claim,
        };
        Again::Told(self.identity, claim)
    }
}

/// How to claim after a wait.
#[must_use]
pub enum Again {
    /// Send the claim, and [tell](Lead::tell) those who wait for its answer.
    Send(Lead),
    /// This is the answer to another's, sent since, and the identity that it is about.
    Told(Identity, Claim),
}

/// A claim that others may wait for. Dropped, it leaves its turn to one of them. By default nobody waits for it.
#[derive(Default)]
pub struct Lead(Option<Leading>);

struct Leading {
    turns: Turns,
    digest: IdentityDigest,
    lease: Duration,
    told: watch::Sender<Option<Told>>,
}

impl Lead {
    /// Tells the others what the store answered.
    ///
    /// Not that its own claim is over: theirs are not.
    pub fn tell(self, identity: &Identity, claim: &Claim) {
        if let Some(leading) = self.0.as_ref().filter(|_| !claim.is_over()) {
            leading.told.send_replace(Some(Told {
                identity: identity.clone(),
                claim: claim.clone(),
                lease: leading.lease,
            }));
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if let Some(leading) = &self.0 {
            leading.turns.lock().remove(&leading.digest);
        }
    }
}

impl<S> Guard<S> {
    /// How a call that has waited for an attempt claims again; it began at `since`. An answer to a claim
    /// that was sent before that is none of its own.
    pub async fn again(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
        since: Instant,
    ) -> Again {
        let patience = Instant::now() + PATIENCE;
        loop {
            let mut told = match self.take_turn(identity, request, since) {
                Ok(told) => told,
                Err(lead) => return Again::Send(lead),
            };
            // One that nobody polls any more holds up nobody for long.
            match timeout_at(patience, told.wait_for(Option::is_some)).await {
                Ok(Ok(told)) => {
                    return match told.clone() {
                        // What is done about an unknown outcome is each caller's own.
                        Some(told) if !matches!(told.claim, Claim::Unknown { .. }) => {
                            told.to(request.nonce)
                        }
                        _ => Again::Send(Lead::default()),
                    };
                }
                // It was broken off: the next one takes its place.
                Ok(Err(_)) => {}
                Err(_) => return Again::Send(Lead::default()),
            }
        }
    }

    /// Where another's answer is told; or the turn itself.
    fn take_turn(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
        since: Instant,
    ) -> Result<watch::Receiver<Option<Told>>, Lead> {
        let (digest, fingerprint) = (*identity.digest(), request.fingerprint);
        let mut turns = self.shared.turns.lock();
        match turns.get(&digest) {
            Some(turn) if turn.begun >= since && turn.fingerprint == fingerprint => {
                Ok(turn.told.clone())
            }
            Some(_) => Err(Lead::default()),
            None => {
                let (sender, told) = watch::channel(None);
                let turn = Turn {
                    begun: Instant::now(),
                    fingerprint,
                    told,
                };
                turns.insert(digest, turn);
                Err(Lead(Some(Leading {
                    turns: Arc::clone(&self.shared.turns),
                    digest,
                    lease: request.lease,
                    told: sender,
                })))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;
    use crate::store::{Fence, Token};
    use crate::{Key, Outcome, Scope, Timestamp};

    const LEASE: Duration = Duration::from_secs(30);

    fn identity() -> Identity {
        Identity::new(Scope::new(["t"]), "work", Key::new("k").unwrap())
    }

    fn request(body: &[u8]) -> ClaimRequest {
        let nonce = Nonce::random().unwrap();
        ClaimRequest::new(nonce, Fingerprint::of(body), LEASE)
    }

    fn acquired(request: &ClaimRequest, is_repeated: bool) -> Claim {
        let (fence, nonce) = (Fence(7), request.nonce);
        let token = Token { fence, nonce };
        Claim::Acquired(Acquired {
            token,
            attempt: 2,
            since: Timestamp::from_micros(1),
            is_repeated,
        })
    }

    async fn lead(guard: &Guard<MemoryStore>, request: &ClaimRequest, since: Instant) -> Lead {
        match guard.again(&identity(), request, since).await {
            Again::Send(lead) => lead,
            Again::Told(_, claim) => panic!("told {claim:?}"),
        }
    }

    async fn told(guard: &Guard<MemoryStore>, request: &ClaimRequest, since: Instant) -> Claim {
        match guard.again(&identity(), request, since).await {
            Again::Told(_, claim) => claim,
            Again::Send(_) => panic!("to claim by itself"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_claims_and_all_others_take_its_answer() {
        let guard = Guard::from(MemoryStore::default());
        let (since, own, other) = (Instant::now(), request(b"a"), request(b"a"));
        let outcome = Outcome::success(b"done");
        let completed = Claim::Completed {
            outcome,
            remaining: LEASE,
        };
        let in_flight = Claim::InFlight {
            fence: Fence(7),
            remaining: LEASE,
        };
        for (answer, others) in [
            (completed.clone(), completed),
            (Claim::Expired, Claim::Expired),
            (acquired(&own, false), in_flight),
            // Sent again by its client, on another connection.
            (acquired(&other, false), acquired(&other, true)),
        ] {
            let leads = lead(&guard, &own, since).await;
            let follows = told(&guard, &other, since);
            let (follows, ()) = tokio::join!(follows, async { leads.tell(&identity(), &answer) });
            assert_eq!(follows, others);
            assert!(guard.shared.turns.lock().is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whom_nobody_tells_claims_by_itself() {
        let guard = Guard::from(MemoryStore::default());
        let (since, own) = (Instant::now(), request(b"a"));
        // Broken off; and what each answers for itself.
        for answer in [None, Some(Claim::Unknown { fence: Fence(7) })] {
            let leads = lead(&guard, &own, since).await;
            let follows = lead(&guard, &own, since);
            let answers = async {
                match answer {
                    Some(answer) => leads.tell(&identity(), &answer),
                    None => drop(leads),
                }
            };
            let (_, ()) = tokio::join!(follows, answers);
        }
        let _leads = lead(&guard, &own, since).await;
        // Nobody polls it any more.
        drop(lead(&guard, &own, since).await);
        // For something else; and a call that began after the claim was sent. Neither waits for it.
        let begun = Instant::now();
        drop(lead(&guard, &request(b"b"), since).await);
        tokio::time::advance(LEASE).await;
        drop(lead(&guard, &own, Instant::now()).await);
        assert_eq!(begun.elapsed(), LEASE);
        assert_eq!(guard.shared.turns.lock().len(), 1);
    }
}
