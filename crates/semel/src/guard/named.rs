//! Claims and look-ups of identities under a [secret](crate::secrets), and of what cannot be read here:
//! [sealed](crate::Outcome::is_sealed), or [kept elsewhere](crate::Outcome::place).
//!
//! Under two secrets a record has one of two names. [`crate::secrets`] says why nothing runs twice; the
//! numbers here are those of its steps.

use std::cmp::Reverse;
use std::iter;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Guard, Seen};
use crate::backoff::Backoff;
use crate::store::{
    Acquired, Claim, ClaimRequest, Entry, Fenced, OnLost, Result, Store, StoreExt as _,
};
use crate::{Identity, Note, Record, State, StoreError, StoreErrorKind};

/// How far a record is, of two names of one operation: what stands further is in the way of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stands {
    /// There is none, or all that is known of it is that nothing ran.
    Nowhere,
    /// An attempt runs, or was lost, or was claimed and has not looked yet whether it may run.
    Open,
    /// There are finished steps, or keys of steps given out.
    InSteps,
    Done,
}

/// The name in the note of a claim under the second secret. It runs nothing unless there are steps, so
/// without them it is in nobody's way, and is none of the records that the old secret is kept for.
const PASSING: &str = "semel.second-secret";
const SAID: &str = "claimed only to look whether there are steps to go on with";
/// How often a claim begins anew that met another under the other name.
const ROUNDS: u8 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(4);

impl<S: Store> Guard<S> {
    /// Claims an identity. The request's fingerprint is as it is without a secret. The answer comes with
    /// the identity that it is about: of two secrets, under that of the record. Changes, and waiting, are
    /// by its digest.
    ///
    /// # Errors
    /// The store's; of kind [`Unknown`](StoreErrorKind::Unknown) where a claim may be left behind, with
    /// the request's nonce, under the identity or its [`other`](Identity::other). What cannot be opened
    /// for want of a key is [`Corrupt`](StoreErrorKind::Corrupt). With two secrets the nonce has to be
    /// random, and no other caller's.
    pub async fn claim(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<(Identity, Claim)> {
        self.claim_and_learn(identity, request, &mut false).await
    }

    /// Likewise; and whether something stands in its way becomes known also where the claim then fails.
    pub(super) async fn claim_and_learn(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
        is_duplicate: &mut bool,
    ) -> Result<(Identity, Claim)> {
        match identity.other() {
            None => Ok((
                identity.clone(),
                self.claim_one(identity, request.clone()).await?,
            )),
            Some(other) => {
                let names = (identity, &other);
                Box::pin(self.claim_of_two(names, request, is_duplicate)).await
            }
        }
    }

    /// The record of an identity.
    ///
    /// # Errors
    /// The store's, and as for [`claim`](Self::claim).
    pub async fn look_up(&self, identity: &Identity) -> Result<Option<(Identity, Entry)>> {
        let (store, other) = (self.store(), identity.other());
        let (name, entry) = match &other {
            None => (identity, store.get(identity.digest()).await?),
            Some(other) => {
                let found = recorded(store, identity, other).await?;
                (found.name, found.entry)
            }
        };
        if let Some(State::Completed(outcome)) = entry.as_ref().map(|entry| &entry.record.state) {
            outcome.readable()?;
        }
        Ok(entry.map(|entry| (name.clone(), entry)))
    }

    async fn claim_one(&self, identity: &Identity, mut request: ClaimRequest) -> Result<Claim> {
        request.fingerprint = identity.fingerprint(request.fingerprint);
        let claim = self.store().claim(identity, &request).await?;
        if let Claim::Completed { outcome, .. } = &claim
            && let Err(error) = outcome.readable()
        {
            // The store knows of no failure.
            #[cfg(feature = "tracing")]
            tracing::error!(id = %identity.digest(), "{error}");
            return Err(error);
        }
        Ok(claim)
    }

    async fn claim_of_two(
        &self,
        (first, second): (&Identity, &Identity),
        request: &ClaimRequest,
        is_duplicate: &mut bool,
    ) -> Result<(Identity, Claim)> {
        let note = || request.note.iter().filter(|(name, _)| *name != PASSING);
        let new = ClaimRequest {
            on_lost: OnLost::Hold,
            note: Note::new(note()),
            ..request.clone()
        };
        let passing = ClaimRequest {
            note: Note::new(iter::once((PASSING, SAID)).chain(note())),
            ..new.clone()
        };
        let taking_over = ClaimRequest {
            nonce: request.nonce.taking_over(),
            on_lost: request.on_lost,
            ..new.clone()
        };
        let mut pauses = Backoff::new(FIRST_PAUSE, 16 * FIRST_PAUSE);
        let mut round = 1;
        loop {
            let [own, beside] = both(self.store(), first, second).await?;
            let (name, other, is_first) = (own.name, beside.name, own.name == first);
            let are_both_open = beside.stands() == Stands::Open && own.stands() == Stands::Open;
            *is_duplicate |= own.stands() > Stands::Nowhere;
            let mut sent = Instant::now();
            // What was given back in an earlier round is not acquired under the nonce that it had.
            let mut request_of = if is_first { &new } else { &passing }.clone();
            request_of.nonce = request.nonce.after(round - 1);
            let mut answer = self.claim_one(name, request_of).await?;
            // Given back by a call before this one.
            if answer.is_over() && round < ROUNDS {
                round += 1;
                continue;
            }
            let mut takes_over = false;
            if let Claim::InFlight { .. } | Claim::Unknown { .. } = answer
                && request.on_lost == OnLost::Retry
                && !are_both_open
            {
                takes_over = true;
                sent = Instant::now();
                answer = self.claim_one(name, taking_over.clone()).await?;
            }
            let Claim::Acquired(acquired) = answer else {
                return Ok((name.clone(), answer));
            };
            let looked = self.look(own.name, &acquired, other).await;
            let look = looked.as_ref().ok().copied().unwrap_or_default();
            *is_duplicate |= look.has_steps || look.beside > Some(Stands::Nowhere);
            let passes = look.passes.unwrap_or(!is_first && !takes_over);
            let mut failed = looked.err();
            let mut runs = match look.beside {
                Some(Stands::Nowhere) => takes_over || look.has_steps || !passes,
                Some(Stands::Open) => look.has_steps,
                _ => false,
            };
            if runs && acquired.is_repeated {
                // Its lease began then.
                sent = Instant::now();
                let (digest, token) = (name.digest(), &acquired.token);
                let renewed = self.store().renew(digest, token, request.lease).await;
                runs = matches!(renewed, Ok(Fenced::Applied));
                failed = renewed.err();
            }
            if runs && sent.elapsed() < request.lease {
                return Ok((name.clone(), Claim::Acquired(acquired)));
            }
            if !takes_over {
                self.give_back(name, &acquired).await?;
            }
            if let Some(error) = failed {
                return Err(error);
            }
            if round == ROUNDS {
                let in_flight = Claim::InFlight {
                    fence: acquired.token.fence,
                    remaining: request.lease,
                };
                return Ok((name.clone(), in_flight));
            }
            round += 1;
            sleep(pauses.pause()).await;
        }
    }

    /// What is to be known before anything runs under a name that is held now.
    async fn look(&self, name: &Identity, acquired: &Acquired, other: &Identity) -> Result<Look> {
        let mut look = Look::default();
        if acquired.attempt > 1 || acquired.is_repeated {
            let own = self.store().get(name.digest()).await?;
            look.has_steps = Stands::of(own.as_ref()) >= Stands::InSteps;
            look.passes = own.map(|own| is_passing(&own.record));
        }
        let beside = self.store().get(other.digest()).await?;
        look.beside = Some(Stands::of(beside.as_ref()));
        Ok(look)
    }

    /// Gives back a claim under which nothing ran. One that somebody took over is no longer there.
    async fn give_back(&self, name: &Identity, acquired: &Acquired) -> Result<()> {
        let (store, digest) = (self.store(), name.digest());
        let signal = |signal| self.tell(&Seen::of(name, signal));
        let abandon = || store.abandon(digest, &acquired.token);
        match self.insist(signal, abandon).await {
            Ok(Fenced::Applied | Fenced::Refused(_)) => Ok(()),
            Err(error) => {
                let what = "a claim that ran nothing may be left behind";
                Err(StoreError::new(StoreErrorKind::Unknown, what).with_source(error))
            }
        }
    }
}

/// The identity under that of two secrets which its record has; as it is where there is no record.
///
/// # Errors
/// The store's.
pub async fn name_of<S: Store>(store: &S, identity: &Identity) -> Result<Identity> {
    match identity.other() {
        None => Ok(identity.clone()),
        Some(other) => Ok(recorded(store, identity, &other).await?.name.clone()),
    }
}

/// Of two names, the one that has the record: that stands further where both have one.
async fn recorded<'a, S: Store>(
    store: &S,
    first: &'a Identity,
    second: &'a Identity,
) -> Result<Found<'a>> {
    let [own, beside] = both(store, first, second).await?;
    Ok(match (&own.entry, &beside.entry) {
        (None, Some(_)) => beside,
        _ => own,
    })
}

/// What is found after a claim.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    /// What stands under the other name; none where that is not known.
    beside: Option<Stands>,
    /// Whether steps were finished under this name before.
    has_steps: bool,
    /// Whether it is [`PASSING`], if it was read.
    passes: Option<bool>,
}

/// A name, and what was found under it.
struct Found<'a> {
    name: &'a Identity,
    entry: Option<Entry>,
}

impl Found<'_> {
    fn stands(&self) -> Stands {
        Stands::of(self.entry.as_ref())
    }
}

impl Stands {
    fn of(entry: Option<&Entry>) -> Self {
        let Some(Entry { record, .. }) = entry else {
            return Self::Nowhere;
        };
        match &record.state {
            State::Completed(_) => Self::Done,
            _ if !record.progress.is_bare() => Self::InSteps,
            State::InFlight | State::Unknown if !is_passing(record) => Self::Open,
            State::InFlight | State::Unknown | State::Released => Self::Nowhere,
        }
    }
}

fn is_passing(record: &Record) -> bool {
    record.note.get(PASSING).is_some()
}

/// Both names, the one to claim first: the same for all who find the same, unless nothing stands
/// anywhere.
async fn both<'a, S: Store>(
    store: &S,
    first: &'a Identity,
    second: &'a Identity,
) -> Result<[Found<'a>; 2]> {
    let found = tokio::try_join!(store.get(first.digest()), store.get(second.digest()))?;
    let mut both = [(first, found.0), (second, found.1)].map(|(name, entry)| Found { name, entry });
    both.sort_by_key(|found| {
        let stands = found.stands();
        let since = found.entry.as_ref().map(|entry| entry.record.created_at);
        let tie = (stands > Stands::Nowhere).then(|| (since, *found.name.digest()));
        (Reverse(stands), tie)
    });
    Ok(both)
}
