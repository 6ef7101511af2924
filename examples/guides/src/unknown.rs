//! `docs/unknown.md`.

use std::error::Error;
use std::sync::Arc;

use semel::guard::{
    Answered, Asked, Background, Case, Finding, Guard, OnError, Policy, Reconciler, StepKey,
};
use semel::store::{Nonce, OnLost, Resolution, Store, StoreExt as _, Verdict};
use semel::{Fingerprint, Identity, IdentityDigest, Outcome};

enum ChargeError {
    Declined,
    Busy,
    TimedOut,
}

fn classified(identity: Identity, fingerprint: Fingerprint) -> Asked {
    let asked = Asked::new(identity, fingerprint);
    asked.classify(|error: &ChargeError| match error {
        ChargeError::Declined => OnError::Keep,
        ChargeError::Busy => OnError::Release,
        ChargeError::TimedOut => OnError::Unknown,
    })
}

struct Bank;

struct Charge {
    id: String,
}

impl Bank {
    async fn charge_with_key(&self, _: StepKey) -> Result<Option<Charge>, std::io::Error> {
        Ok(None)
    }
}

struct AskTheBank {
    bank: Bank,
}

impl Reconciler for AskTheBank {
    fn reconcile<'a>(&'a self, case: &'a Case<'_>) -> Answered<'a> {
        Box::pin(async move {
            let charge = self.bank.charge_with_key(case.step_key("charge")).await?;
            Ok(match charge {
                Some(charge) => Finding::Happened(Outcome::success(b"paid"))
                    .because(format!("charge {}", charge.id)),
                None => Finding::StillUnknown.into(),
            })
        })
    }
}

fn reconciling<S: Store + Clone>(store: S, bank: Bank) -> Guard<S> {
    let guard = Guard::builder(store)
        .policy(Policy::default().with_on_lost(OnLost::Reconcile))
        .reconciler(Arc::new(AskTheBank { bank }))
        .build();
    tokio::spawn(Background::new(guard.clone(), [("pay", *guard.policy())]).run());
    guard
}

async fn by_hand(store: impl Store, id: &str) -> Result<(), Box<dyn Error>> {
    let digest = IdentityDigest::from_hex(id).ok_or("64 hexadecimal digits")?;
    let entry = store.get(&digest).await?.ok_or("there is no such record")?;
    let resolution = Resolution {
        verdict: Verdict::DidNotHappen, // or Happened { outcome, retention }
        by: "ada".into(),
        reason: "no charge in the bank's books of today".into(),
        fence: entry.record.token.fence,
        nonce: Nonce::random()?,
    };
    // Refused: the record changed in the meantime. Look again.
    println!("{:?}", store.resolve(&digest, &resolution).await?);
    Ok(())
}
