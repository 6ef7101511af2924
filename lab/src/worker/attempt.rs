//! The steps of one operation against the store itself, each repeated under the same nonce or token
//! while the store does not answer.

use std::time::Duration;

use semel::store::{
    Acquired, Claim, ClaimRequest, Fence, Fenced, Nonce, Resolution, Result, StoreExt as _, Token,
    Verdict,
};
use semel::{Fingerprint, FinishedStep, Outcome, OutcomeKind, Store, StoreErrorKind};
use tokio::time::sleep;

use super::{Traits, Worker};
use crate::history::KeyIndex;

const REPEATS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(10);

/// Runs a step again while it may help. Only ever with the same nonce or token.
async fn repeated<T, F: Future<Output = Result<T>>>(step: impl Fn() -> F) -> Result<T> {
    let mut tries = 0;
    loop {
        match step().await {
            Err(error)
                if tries < REPEATS
                    && matches!(
                        error.kind(),
                        StoreErrorKind::NotApplied
                            | StoreErrorKind::Contended
                            | StoreErrorKind::Unknown
                    ) =>
            {
                sleep(PAUSE * 3_u32.pow(tries)).await;
                tries += 1;
            }
            answer => return answer,
        }
    }
}

/// What a key is asked for: the same by everybody, or something else.
pub(super) fn fingerprint(key: KeyIndex, other: bool) -> Fingerprint {
    let mut payload = key.to_le_bytes().to_vec();
    payload.push(u8::from(other));
    Fingerprint::of(&payload)
}

/// An outcome that no other attempt has, of every shape that there is.
pub(super) fn outcome(chance: &mut fastrand::Rng, token: &Token) -> Outcome {
    let kind = match chance.u8(..10) {
        0 => OutcomeKind::Failure,
        1 => OutcomeKind::Omitted,
        _ => OutcomeKind::Success,
    };
    let mut builder = Outcome::builder(kind)
        .code(chance.u16(200..600))
        .field("content-type", b"application/octet-stream")
        .field("x-nonce", token.nonce.as_bytes());
    for _ in 0..chance.usize(..3) {
        let value: Vec<u8> = (0..chance.usize(..20)).map(|_| chance.u8(..)).collect();
        builder = builder.field("x-more", &value);
    }
    // The last field is the one that a careless store drops.
    builder = builder.field("x-fence", token.fence.to_string().as_bytes());
    match chance.u8(..20) {
        0..4 => builder.void(),
        4..6 => builder.body(b""),
        6 => builder.body(&vec![0xa5; 20_000]),
        _ => builder.body(token.nonce.as_bytes()),
    }
}

impl Worker {
    pub(super) fn traits(&self, key: KeyIndex) -> Traits {
        Traits::of(key, self.settings.options.run.lease)
    }

    pub(super) fn request(&self, key: KeyIndex, other: bool) -> Result<ClaimRequest> {
        Ok(ClaimRequest::new(
            Nonce::random()?,
            fingerprint(key, other),
            self.settings.options.run.lease,
        )
        .with_on_lost(self.traits(key).on_lost))
    }

    pub(super) async fn claim(&self, key: KeyIndex, request: &ClaimRequest) -> Result<Claim> {
        let identity = self.names.identity(key);
        repeated(|| self.store.claim(identity, request)).await
    }

    pub(super) async fn renew(&self, key: KeyIndex, token: &Token) -> Result<Fenced> {
        let digest = self.names.identity(key).digest();
        self.store
            .renew(digest, token, self.settings.options.run.lease)
            .await
    }

    pub(super) async fn complete(
        &self,
        key: KeyIndex,
        token: &Token,
        outcome: &Outcome,
    ) -> Result<Fenced> {
        let digest = self.names.identity(key).digest();
        let retention = self.traits(key).retention;
        repeated(|| self.store.complete(digest, token, outcome, retention)).await
    }

    /// Keeps two parts of the work of a first attempt.
    pub(super) async fn keep_parts(&self, key: KeyIndex, token: &Token) -> Result<()> {
        let digest = self.names.identity(key).digest();
        let mut kept = 0;
        for name in ["charge", "ship"] {
            let Ok(part) = FinishedStep::new(name, token.nonce.as_bytes()) else {
                return Ok(());
            };
            let _ = repeated(|| self.store.keep_step(digest, token, &part, kept)).await?;
            kept += part.as_bytes().len();
        }
        Ok(())
    }

    pub(super) async fn abandon(&self, key: KeyIndex, token: &Token) -> Result<Fenced> {
        let digest = self.names.identity(key).digest();
        repeated(|| self.store.abandon(digest, token)).await
    }

    pub(super) async fn mark_unknown(&self, key: KeyIndex, token: &Token) -> Result<Fenced> {
        let digest = self.names.identity(key).digest();
        repeated(|| self.store.mark_unknown(digest, token)).await
    }

    pub(super) async fn wait(&self, key: KeyIndex, fence: Fence, at_most: Duration) {
        let digest = self.names.identity(key).digest();
        // Whatever it says, the next claim tells.
        let _ = self.store.wait(digest, fence, at_most).await;
    }

    pub(super) async fn resolve(
        &self,
        key: KeyIndex,
        fence: Fence,
        happened: Option<Outcome>,
    ) -> Result<Fenced> {
        let retention = self.traits(key).retention;
        let resolution = Resolution {
            verdict: match happened {
                Some(outcome) => Verdict::Happened { outcome, retention },
                None => Verdict::DidNotHappen,
            },
            by: "lab".into(),
            reason: "a torture run".into(),
            fence,
            nonce: Nonce::random()?,
        };
        let digest = self.names.identity(key).digest();
        repeated(|| self.store.resolve(digest, &resolution)).await
    }

    pub(super) fn effect(&self, key: KeyIndex, acquired: &Acquired) {
        let fenced = self.traits(key).fenced;
        self.ledger.effect(key, (&acquired.token).into(), fenced);
    }
}
