//! Claims an identity, and gives back a claim whose answer was lost.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::attempt::Claimed;
use super::lease::later;
use super::owed::Owed;
use super::settle::{PATIENCE, in_runtime};
use super::{Again, Asked, Effects, Guard, Held, OnStoreError, Seen, Settled, Settlement, Signal};
use crate::backoff::Backoff;
use crate::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, Nonce, OnLost, Store, StoreExt as _,
};
use crate::sync::Mutex;
use crate::{Identity, Outcome, StoreError, StoreErrorKind};

/// What [`Guard::begin`] found.
#[must_use = "an acquired attempt that is dropped settles itself"]
pub enum Begin<S: Store> {
    /// Run it, then settle the attempt.
    Acquired(Held<S>),
    /// It ran; replay this.
    Completed(Outcome),
    /// Another attempt is running.
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// An earlier attempt may have had its effect, and nobody knows (R7).
    Unknown,
    /// The key was used with another request (R3).
    Mismatch,
    /// The outcome's retention ended, and its tombstone says so.
    Expired,
    /// There is no key: run it plainly (R13).
    Unkeyed,
    /// There is no key, and the policy requires one.
    KeyRequired,
    /// The store cannot be reached, and the policy is to run all the same and say so (R9).
    Unprotected(StoreError),
}

/// What a duplicate is told to wait before it asks again; less where the lease ends sooner.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often a claim is sent again, under the same nonce, when the store does not answer.
const CLAIM_RETRIES: u32 = 2;

impl<S: Store> Guard<S> {
    /// Claims what is asked for, waiting for an attempt in flight as the policy says. An acquired
    /// attempt is renewed from now on.
    ///
    /// Dropped before it answers, or answered with an error, it leaves no claim behind: one that
    /// the store may have made is given back in the background (R14).
    ///
    /// # Errors
    /// The store's, where the policy is to refuse; and, whatever the policy, where the store fails once
    /// this has waited for an attempt in flight, met others at the record, asked about a lost one, or found
    /// under one of [two secrets](crate::secrets) what is in its way. Nothing ran.
    pub async fn begin(&self, asked: &Asked) -> Result<Begin<S>, StoreError> {
        self.begin_or_wait(asked, || ()).await
    }

    /// Like [`begin`](Self::begin); calls `before_waiting` once, before it waits for an attempt in
    /// flight: for callers who hold what others need meanwhile.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    pub async fn begin_or_wait(
        &self,
        asked: &Asked,
        before_waiting: impl FnOnce(),
    ) -> Result<Begin<S>, StoreError> {
        let mut before_waiting = Some(before_waiting);
        let guard = self.with_policy(asked.overrides.over(self.policy));
        let Some(identity) = asked.identity() else {
            let (signal, begin) = match guard.policy.key_required {
                true => (Signal::MissingKey, Begin::KeyRequired),
                false => (Signal::Unkeyed, Begin::Unkeyed),
            };
            self.tell(&Seen::new(signal));
            return Ok(begin);
        };
        let policy = guard.policy;
        let on_lost = policy.on_lost.unwrap_or(asked.effects.on_lost());
        let mut claim = InDoubt {
            guard: &guard,
            asked,
            identity,
            request: ClaimRequest {
                nonce: Nonce::random()?,
                fingerprint: asked.fingerprint,
                lease: policy.lease,
                on_lost,
                note: asked.note.clone(),
                is_forgettable: asked.effects.may_be_forgotten(&policy),
            },
            is_doubtful: false,
            is_duplicate: false,
        };
        let (mut since, mut deadline, mut asked_about) = (None, None, None);
        let mut has_waited = false;
        loop {
            let sent = Instant::now();
            let since = *since.get_or_insert(sent);
            let waited = |seen: Seen<'_>| {
                self.observe(|| Seen {
                    waited: Some(since.elapsed()),
                    ..seen
                });
            };
            let answer = match has_waited {
                // Boxed, like everything rare here, so that other claims stay small.
                true => Box::pin(claim.send_again(since)).await,
                false => claim.send().await,
            };
            let (identity, answer) = match answer {
                Ok(answer) => answer,
                Err(error)
                    if policy.on_store_error == OnStoreError::FailOpen
                        && !claim.is_duplicate
                        && is_down(&error) =>
                {
                    waited(Seen::of(identity, Signal::Unprotected));
                    return Ok(Begin::Unprotected(error));
                }
                Err(error) => return Err(error),
            };
            let identity = &identity;
            let (signal, fence, begin) = match answer {
                Claim::Acquired(acquired) => {
                    let (acquired, digest) = (Some(acquired), *identity.digest());
                    let claimed = Claimed::new(guard.clone(), asked, digest, acquired, sent);
                    let held = Held::new(Arc::new(claimed));
                    waited(held.claimed().seen(match held.number() {
                        1 => Signal::New,
                        _ => Signal::Again,
                    }));
                    held.claimed().keep_renewed().await;
                    return Ok(Begin::Acquired(held));
                }
                Claim::InFlight { fence, .. } if answer.is_over() => {
                    let begin = Begin::InFlight {
                        retry_after: RETRY_AFTER,
                    };
                    (Signal::InFlight, Some(fence), begin)
                }
                Claim::InFlight { fence, remaining } => {
                    let deadline = *deadline.get_or_insert_with(|| later(sent, policy.wait));
                    let left = deadline.saturating_duration_since(Instant::now());
                    if !left.is_zero() {
                        if let Some(before_waiting) = before_waiting.take() {
                            before_waiting();
                        }
                        // A lapse is no change in the store: ask again when it is due.
                        let turn = left.min(remaining.max(Duration::from_millis(1)));
                        let waited = self.store().wait(identity.digest(), fence, turn);
                        Box::pin(waited)
                            .await
                            .inspect_err(|_| self.tell(&Seen::of(identity, Signal::StoreError)))?;
                        (has_waited, claim.is_duplicate) = (true, true);
                        continue;
                    }
                    let retry_after = remaining.min(RETRY_AFTER);
                    let begin = Begin::InFlight { retry_after };
                    (Signal::InFlight, Some(fence), begin)
                }
                Claim::Unknown { fence } => {
                    // Each attempt is looked into once: the answer may be that nobody knows.
                    if asked_about.replace(fence) != Some(fence)
                        && claim.look_into(identity, fence).await?
                    {
                        claim.is_duplicate = true;
                        continue;
                    }
                    (Signal::Unknown, Some(fence), Begin::Unknown)
                }
                Claim::Completed { outcome, .. } => {
                    (Signal::Replayed, None, Begin::Completed(outcome))
                }
                Claim::Mismatch => (Signal::Mismatch, None, Begin::Mismatch),
                Claim::Expired => (Signal::Expired, None, Begin::Expired),
            };
            waited(Seen {
                fence,
                ..Seen::of(identity, signal)
            });
            return Ok(begin);
        }
    }
}

/// A claim that the store may have made, though nobody was told. Dropped as such it is looked for in
/// the background, by its nonce, and given back; but not where it may have taken over an attempt that was
/// lost, whose effect nobody knows: that is left to its lease.
struct InDoubt<'a, S: Store> {
    guard: &'a Guard<S>,
    asked: &'a Asked,
    identity: &'a Identity,
    request: ClaimRequest,
    is_doubtful: bool,
    /// Something is known to stand in its way: it may have had its effect, and is not to run unprotected.
    is_duplicate: bool,
}

impl<S: Store> Guard<S> {
    /// Looks in the background for a claim that nobody waits for any more, and gives it back: now, and once what is
    /// still on its way has arrived. Not where it may have taken over an attempt that was lost: that is left to its
    /// lease.
    pub fn give_back_if_made(&self, asked: &Asked, request: &ClaimRequest) {
        // Outside a runtime the program ends.
        let Some(identity) = asked.identity().filter(|_| in_runtime()) else {
            return;
        };
        let doubt = Arc::new(Doubt {
            guard: self.clone(),
            asked: asked.clone(),
            identity: identity.clone(),
            request: request.clone(),
            looked: Mutex::new(None),
            found: OnceLock::new(),
        });
        let owed = Arc::clone(&doubt) as _;
        self.pursue(*identity.digest(), owed, async move {
            let guard = &doubt.guard;
            let signal = |signal| guard.tell(&Seen::of(&doubt.identity, signal));
            let look = || guard.ask_until(guard.drained(&signal), &signal, || doubt.look());
            if !look().await? {
                // What is still on its way may arrive after the first look.
                sleep(PATIENCE).await;
                look().await?;
            }
            Ok::<_, StoreError>(())
        });
    }
}

impl<S: Store> InDoubt<'_, S> {
    /// Tells what is owed, and sends the claim; and again under the same nonce while the store does not answer:
    /// if the first one arrived, the second is told that it won.
    async fn send(&mut self) -> Result<(Identity, Claim), StoreError> {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(60));
        let mut retries = CLAIM_RETRIES;
        loop {
            self.guard
                .tell_owed(self.identity, &mut self.is_duplicate)
                .await?;
            let mut was_doubtful = std::mem::replace(&mut self.is_doubtful, true);
            let (guard, request) = (self.guard, &self.request);
            let claim = guard.claim_and_learn(self.identity, request, &mut self.is_duplicate);
            let mut answer = claim.await;
            // Its lease began when it was made, perhaps long ago. Of two names it is renewed already.
            if let Ok((identity, Claim::Acquired(acquired))) = &answer
                && acquired.is_repeated
                && identity.other().is_none()
            {
                // What the store has confirmed does not run unprotected.
                (was_doubtful, self.is_duplicate) = (true, true);
                let (digest, token) = (identity.digest(), &acquired.token);
                let renewal = guard.store().renew(digest, token, request.lease);
                match Box::pin(renewal).await {
                    Ok(Fenced::Applied) => {}
                    Ok(Fenced::Refused(_)) => continue,
                    Err(error) => answer = Err(error),
                }
            }
            let Err(error) = answer else {
                // A copy of it may arrive when what is in its way has ended.
                let is_in_its_way = matches!(
                    answer,
                    Ok((
                        _,
                        Claim::InFlight { .. } | Claim::Mismatch | Claim::Unknown { .. }
                    ))
                );
                self.is_doubtful = was_doubtful && is_in_its_way;
                return answer;
            };
            self.is_doubtful = was_doubtful || error.kind() == StoreErrorKind::Unknown;
            // Whoever has met others does not run unprotected, whatever becomes of the store.
            self.is_duplicate |= error.met_others();
            let signal = match error.kind() {
                StoreErrorKind::Capacity => Signal::Capacity,
                _ => Signal::StoreError,
            };
            self.guard.tell(&Seen::of(self.identity, signal));
            let may_pass = is_down(&error) || error.kind() == StoreErrorKind::Contended;
            if !may_pass || retries == 0 {
                return Err(error);
            }
            // Of two names, a claim that is being given back is not to be taken for one's own.
            if self.is_doubtful && self.identity.other().is_some() {
                guard.give_back_if_made(self.asked, &self.request);
                self.request.nonce = Nonce::random()?;
                self.is_doubtful = false;
            }
            retries -= 1;
            sleep(backoff.pause()).await;
        }
    }

    /// Sends the claim, unless another that waited for the same attempt does.
    async fn send_again(&mut self, since: Instant) -> Result<(Identity, Claim), StoreError> {
        // What another finds in flight may be the copy of this claim.
        if self.is_doubtful {
            return self.send().await;
        }
        match self.guard.again(self.identity, &self.request, since).await {
            Again::Told(identity, claim) => Ok((identity, claim)),
            Again::Send(lead) => {
                let (identity, claim) = self.send().await?;
                lead.tell(&identity, &claim);
                Ok((identity, claim))
            }
        }
    }

    /// Whether another claim is worth it after an attempt of unknown outcome.
    async fn look_into(&mut self, identity: &Identity, fence: Fence) -> Result<bool, StoreError> {
        let (guard, asked) = (self.guard, self.asked);
        if self.request.on_lost == OnLost::Reconcile {
            return Ok(guard.reconcile(asked, identity, fence).await);
        }
        if guard.policy.on_lost.is_some() || asked.effects != Effects::Offered {
            return Ok(false);
        }
        // The mark was kept before the transaction was begun. What was said to be unknown, and not
        // found so after its lease, is unknown for all that.
        let entry = guard.store().get(identity.digest()).await?;
        let is_lost = entry.is_some_and(|Entry { record, .. }| {
            record.progress.is_in_transaction() && record.settled_at >= Some(record.lease_until)
        });
        if is_lost {
            self.request.on_lost = OnLost::Retry;
        }
        Ok(self.request.on_lost == OnLost::Retry)
    }
}

/// A claim that nobody waits for any more.
struct Doubt<S: Store> {
    guard: Guard<S>,
    asked: Asked,
    identity: Identity,
    request: ClaimRequest,
    /// When the last look was begun that the store has answered.
    looked: Mutex<Option<Instant>>,
    /// The attempt that the claim began.
    found: OnceLock<Arc<Claimed<S>>>,
}

impl<S: Store> Doubt<S> {
    /// Gives the claim back if the store has made it; whether it has.
    async fn look(&self) -> Result<bool, StoreError> {
        let (store, other) = (self.guard.store(), self.identity.other());
        // Of two names it is not under this nonce that one is taken over.
        let takes_over = self.request.on_lost == OnLost::Retry && other.is_none();
        let (begun, mut is_found) = (Instant::now(), false);
        for name in [Some(&self.identity), other.as_ref()].into_iter().flatten() {
            let (digest, sent) = (*name.digest(), Instant::now());
            let found = store.get(&digest).await?;
            let found =
                found.filter(|entry| self.request.began(&self.identity, &entry.record.token));
            let Some(Entry { record, .. }) = found else {
                continue;
            };
            // Of two names the other may be claimed still.
            is_found = other.is_none();
            if other.is_some() {
                // Nothing ran under it before, so it leaves no mark.
                let _: Fenced = store.abandon(&digest, &record.token).await?;
            } else if !(takes_over && record.attempt > 1) {
                // The same for all who find it: what it leaves is left once.
                let claimed = self.found.get_or_init(|| {
                    let (guard, acquired) = (self.guard.clone(), Some(record.acquired()));
                    Arc::new(Claimed::new(guard, &self.asked, digest, acquired, sent))
                });
                let _: Settled = claimed.tell(&Settlement::Release).await?;
            }
        }
        *self.looked.lock() = Some(begun);
        Ok(is_found)
    }

    /// What arrives after a look has a lease that is not over yet.
    fn has_just_looked(&self) -> bool {
        let looked = *self.looked.lock();
        looked.is_some_and(|looked| looked.elapsed() < self.request.lease / 2)
    }
}

impl<S: Store> Owed for Doubt<S> {
    fn tell(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            match self.has_just_looked() {
                true => Ok(()),
                false => self.look().await.map(drop),
            }
        })
    }

    fn may_have_run(&self) -> bool {
        false
    }
}

impl<S: Store> Drop for InDoubt<'_, S> {
    fn drop(&mut self) {
        if self.is_doubtful {
            self.guard.give_back_if_made(self.asked, &self.request);
        }
    }
}

/// Whether the store did not answer, or not in time. One that is full, damaged, closed or has others at the same
/// record did.
fn is_down(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::NotApplied | StoreErrorKind::Unknown
    )
}

impl<S: Store> fmt::Debug for Begin<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquired(_) => "Acquired",
            Self::Completed(_) => "Completed",
            Self::InFlight { .. } => "InFlight",
            Self::Unknown => "Unknown",
            Self::Mismatch => "Mismatch",
            Self::Expired => "Expired",
            Self::Unkeyed => "Unkeyed",
            Self::KeyRequired => "KeyRequired",
            Self::Unprotected(_) => "Unprotected",
        })
    }
}
