//! Claims and look-ups of identities under a [secret](crate::secrets), and of what is
//! [sealed](crate::Outcome::is_sealed).

use super::Guard;
use crate::store::{Claim, ClaimRequest, Entry, Store};
use crate::{Identity, State, StoreError, StoreErrorKind};

impl<S: Store> Guard<S> {
    /// Claims an identity. The request's fingerprint is as it is without a secret.
    ///
    /// # Errors
    /// The store's. What cannot be opened for want of a key is [`Corrupt`](StoreErrorKind::Corrupt).
    pub async fn claim(
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

    /// The record of an identity.
    ///
    /// # Errors
    /// The store's, and as for [`claim`](Self::claim).
    pub async fn look_up(&self, identity: &Identity) -> Result<Option<Entry>, StoreError> {
        let found = self.store().get(identity.digest()).await?;
        match found.as_ref().map(|entry| &entry.record.state) {
            Some(State::Completed(outcome)) if outcome.is_sealed() => Err(sealed()),
            _ => Ok(found),
        }
    }
}

/// Of what is kept encrypted, where no key is given.
pub(super) fn sealed() -> StoreError {
    let what =
        "what is kept of the operation is encrypted, and its key is not among the keys given";
    StoreError::new(StoreErrorKind::Corrupt, what)
}
