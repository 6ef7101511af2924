//! Claims where two secrets are in use: [`crate::secrets`] says why nothing runs twice.

use super::Guard;
use crate::store::{Acquired, Claim, ClaimRequest, Entry, Fenced, OnLost, Store, StoreExt as _};
use crate::{FinishedStep, Identity, Record, State, StoreError, StoreErrorKind};

impl<S: Store> Guard<S> {
    /// Claims an identity under the secret in use, and answers by the record under the other one where
    /// there is one ([`secrets`](crate::secrets)). The fingerprint is as it is without a secret. The
    /// answer comes with the identity that it is about: changes, and waiting, are by its digest.
    ///
    /// # Errors
    /// The store's; of kind [`Unknown`](StoreErrorKind::Unknown) where a claim may be left behind: under
    /// the identity or its [`other`](Identity::other), with the request's nonce. What cannot be opened
    /// for want of a key is [`Corrupt`](StoreErrorKind::Corrupt).
    pub async fn claim(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<(Identity, Claim), StoreError> {
        let first = self.claim_one(identity, request).await?;
        let other = match &first {
            Claim::Completed { .. } | Claim::Expired => None,
            _ => identity.other(),
        };
        let Some(other) = other else {
            return Ok((identity.clone(), first));
        };
        let own = match first {
            Claim::Acquired(own) => Some(own),
            _ => None,
        };
        match self.beside(identity, own, &other, request).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Ok((identity.clone(), first)),
            Err(error) => {
                if let Some(own) = own
                    && let Err(left) = self.give_back(identity, &own, request).await
                {
                    let what = format!("a claim may be left behind: {error}");
                    return Err(StoreError::new(StoreErrorKind::Unknown, what).with_source(left));
                }
                Err(error)
            }
        }
    }

    /// The record of an identity, under whichever secret it is, and the identity under that.
    ///
    /// # Errors
    /// The store's.
    pub async fn look_up(
        &self,
        identity: &Identity,
    ) -> Result<Option<(Identity, Entry)>, StoreError> {
        let get = async |identity: Identity| {
            let entry = self.store().get(identity.digest()).await?;
            Ok::<_, StoreError>(entry.map(|entry| (identity, entry)))
        };
        let found = get(identity.clone()).await?;
        let stands = found.as_ref().is_some_and(|(_, e)| stands(&e.record));
        let found = match identity.other() {
            Some(other) if !stands => get(other).await?.or(found),
            _ => found,
        };
        match &found {
            Some((_, entry)) => refuse_sealed(&entry.record).map(|()| found),
            None => Ok(None),
        }
    }

    async fn claim_one(
        &self,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let request = ClaimRequest {
            fingerprint: identity.fingerprint(request.fingerprint),
            ..request.clone()
        };
        let claim = self.store().claim(identity, &request).await?;
        match &claim {
            Claim::Completed { outcome, .. } if outcome.is_sealed() => {
                let error = sealed();
                // The store knows of no failure.
                #[cfg(feature = "tracing")]
                tracing::error!(id = %identity.digest(), "{error}");
                Err(error)
            }
            _ => Ok(claim),
        }
    }

    /// What a record under the other secret has to answer; `None` where that under the first does.
    async fn beside(
        &self,
        identity: &Identity,
        own: Option<Acquired>,
        other: &Identity,
        request: &ClaimRequest,
    ) -> Result<Option<(Identity, Claim)>, StoreError> {
        let found = self.store().get(other.digest()).await?;
        let Some(Entry { record, .. }) = found.filter(|entry| stands(&entry.record)) else {
            return Ok(None);
        };
        // What another attempt left under the first secret may be a claim that only stepped back late.
        if own.is_none() && !matches!(record.state, State::Completed(_)) {
            return Ok(None);
        }
        let second = self.claim_one(other, request).await?;
        match (own, second) {
            // A lapsed one was taken over, or it was released meanwhile. Both are held.
            (Some(own), Claim::Acquired(theirs)) => {
                let theirs = (other, theirs);
                self.keep_one((identity, own), theirs, request).await
            }
            (Some(own), second) => {
                // Refused where its lease lapsed: then it is no longer ours.
                let _: Fenced = self.give_back(identity, &own, request).await?;
                Ok(Some((other.clone(), second)))
            }
            // Its retention ended meanwhile.
            (None, Claim::Acquired(theirs)) => {
                let _: Fenced = self.give_back(other, &theirs, request).await?;
                Ok(None)
            }
            (None, Claim::InFlight { .. } | Claim::Unknown { .. }) => Ok(None),
            (None, second) => Ok(Some((other.clone(), second))),
        }
    }

    /// Of two claims of one attempt, the one whose record has finished steps.
    async fn keep_one(
        &self,
        (identity, own): (&Identity, Acquired),
        (other, theirs): (&Identity, Acquired),
        request: &ClaimRequest,
    ) -> Result<Option<(Identity, Claim)>, StoreError> {
        let has_steps = match own.attempt {
            1 => false,
            _ => {
                let entry = self.store().get(identity.digest()).await?;
                entry.is_some_and(|entry| !entry.record.progress.is_bare())
            }
        };
        let (kept, given_back) = match has_steps {
            true => ((identity, own), (other, theirs)),
            false => ((other, theirs), (identity, own)),
        };
        let answer = match self.give_back(given_back.0, &given_back.1, request).await? {
            Fenced::Applied => Claim::Acquired(kept.1),
            // Somebody has the one that lapsed: what they do under it goes first.
            Fenced::Refused(_) => {
                let _: Fenced = self.give_back(kept.0, &kept.1, request).await?;
                Claim::InFlight {
                    fence: kept.1.token.fence,
                    remaining: request.lease,
                }
            }
        };
        Ok(Some((kept.0.clone(), answer)))
    }

    /// Gives a claim back under which nothing ran. Attempts before it may have given out step keys: the
    /// next one is to give the same.
    async fn give_back(
        &self,
        identity: &Identity,
        acquired: &Acquired,
        request: &ClaimRequest,
    ) -> Result<Fenced, StoreError> {
        let (store, token) = (self.store(), &acquired.token);
        let digest = identity.digest();
        if acquired.attempt > 1
            && request.on_lost == OnLost::Retry
            && let Some(Entry { record, .. }) = store.get(digest).await?
            && record.token == *token
            && record.progress.is_bare()
        {
            let mark = FinishedStep::keys_given();
            let kept = record.progress.as_bytes().len();
            let _: Fenced = store.keep_step(digest, token, &mark, kept).await?;
        }
        store.abandon(digest, token).await
    }
}

/// Whether a record is more than a claim that was given back.
fn stands(record: &Record) -> bool {
    !matches!(record.state, State::Released) || !record.progress.is_bare()
}

fn refuse_sealed(record: &Record) -> Result<(), StoreError> {
    match &record.state {
        State::Completed(outcome) if outcome.is_sealed() => Err(sealed()),
        _ => Ok(()),
    }
}

/// Of what is kept encrypted, where no key is given.
pub(super) fn sealed() -> StoreError {
    let what =
        "what is kept of the operation is encrypted, and its key is not among the keys given";
    StoreError::new(StoreErrorKind::Corrupt, what)
}
