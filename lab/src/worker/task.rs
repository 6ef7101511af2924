//! One task: an endless row of operations on keys that everybody uses.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use semel::guard::{Asked, Attempt, OnError, Policy};
use semel::store::{Acquired, Claim, Result, Token};
use semel::{Outcome, Store};
use tokio::time::sleep;

use super::Worker;
use super::attempt::{fingerprint, outcome};
use crate::history::{KeyIndex, Recorder, forged};

/// So many keys get a third of all operations.
const HOT: KeyIndex = 16;

struct Task {
    worker: Arc<Worker>,
    chance: fastrand::Rng,
    /// Tokens of earlier attempts, to come late with.
    old: VecDeque<(KeyIndex, Token, Outcome)>,
}

pub(super) async fn run(worker: Arc<Worker>, chance: fastrand::Rng) {
    let mut task = Task {
        worker,
        chance,
        old: VecDeque::new(),
    };
    while !task.worker.is_stopped() {
        // An error ends the operation, not the task: the history holds it.
        let _ = task.operation().await;
        let pace = task.worker.settings.options.run.pace;
        sleep(pace.mul_f64(task.chance.f64() * 2.0)).await;
    }
}

impl Task {
    fn key(&mut self) -> KeyIndex {
        let keys = self.worker.settings.options.keys;
        match self.chance.u8(..3) {
            0 => self.chance.u32(..keys.min(HOT)),
            _ => self.chance.u32(..keys),
        }
    }

    /// True in so many of a hundred cases.
    fn odds(&mut self, percent: u8) -> bool {
        self.chance.u8(..100) < percent
    }

    async fn lease_share(&mut self, from: f64, to: f64) {
        let share = from + self.chance.f64() * (to - from);
        sleep(self.worker.settings.options.run.lease.mul_f64(share)).await;
    }

    async fn operation(&mut self) -> Result<()> {
        let key = self.key();
        match self.chance.u8(..100) {
            0..64 => self.attempt(key, false).await,
            64..70 => self.attempt(key, true).await,
            70..86 => self.guarded(key).await,
            86..92 => {
                let digest = self.worker.names.identity(key).digest();
                self.worker.store.get(digest).await.map(drop)
            }
            _ => self.late().await,
        }
    }

    /// Claims, by hand, and does what the answer asks for.
    async fn attempt(&mut self, key: KeyIndex, other: bool) -> Result<()> {
        let worker = self.worker.clone();
        let request = worker.request(key, other)?;
        for _ in 0..3 {
            match worker.claim(key, &request).await? {
                Claim::Acquired(acquired) => {
                    if self.odds(5) {
                        // The winner asks once more, as after a lost answer.
                        worker.claim(key, &request).await?;
                    }
                    return self.own(key, acquired).await;
                }
                Claim::InFlight { fence, remaining } => match self.chance.u8(..20) {
                    0 => worker.wait(key, fence, Duration::from_secs(4)).await,
                    1..9 => {
                        // A lease that was given out by a clock that was behind seems to last.
                        let longest = worker.settings.options.run.lease * 3;
                        let lapse = remaining.min(longest) + Duration::from_millis(1);
                        worker.wait(key, fence, lapse).await;
                    }
                    _ => return Ok(()),
                },
                Claim::Unknown { fence } if self.odds(40) => {
                    let token = Token {
                        fence,
                        nonce: request.nonce,
                    };
                    let happened = self.odds(50).then(|| outcome(&mut self.chance, &token));
                    let _ = worker.resolve(key, fence, happened).await?;
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// What the owner of a claim does.
    async fn own(&mut self, key: KeyIndex, acquired: Acquired) -> Result<()> {
        let worker = self.worker.clone();
        let token = acquired.token;
        let outcome = outcome(&mut self.chance, &token);
        self.old.push_back((key, token, outcome.clone()));
        if self.old.len() > 8 {
            self.old.pop_front();
        }
        if self.odds(8) {
            let forged = forged(&token, self.odds(50));
            let _ = match self.odds(50) {
                true => worker.renew(key, &forged).await?,
                false => worker.complete(key, &forged, &outcome).await?,
            };
        }
        if self.odds(30) {
            self.lease_share(0.0, 0.2).await;
        }
        if acquired.attempt == 1 && self.odds(8) {
            worker.keep_parts(key, &token).await?;
        }
        match self.chance.u8(..100) {
            // Without an effect.
            0..12 => {
                let _ = worker.abandon(key, &token).await?;
                return Ok(());
            }
            // A crash before the effect.
            12..15 => return Ok(()),
            // Long work, with renewals.
            15..22 => {
                for _ in 0..3 {
                    self.lease_share(0.3, 0.5).await;
                    let _ = worker.renew(key, &token).await?;
                }
                worker.effect(key, &acquired);
            }
            // Stalled past the lease, and on as if nothing had been.
            22..26 => {
                if self.odds(50) {
                    worker.effect(key, &acquired);
                    self.lease_share(1.0, 1.6).await;
                } else {
                    self.lease_share(1.0, 1.6).await;
                    worker.effect(key, &acquired);
                }
            }
            26..29 => {
                worker.effect(key, &acquired);
                let _ = worker.mark_unknown(key, &token).await?;
                return Ok(());
            }
            // A crash after the effect.
            29..31 => {
                worker.effect(key, &acquired);
                return Ok(());
            }
            _ => worker.effect(key, &acquired),
        }
        let _ = worker.complete(key, &token, &outcome).await?;
        match self.chance.u8(..20) {
            0 => {
                let _ = worker.complete(key, &token, &outcome).await?;
            }
            1 => {
                let other = super::attempt::outcome(&mut self.chance, &token);
                let _ = worker.complete(key, &token, &other).await?;
            }
            2 => {
                let _ = worker.abandon(key, &token).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Comes late with the token of an earlier attempt.
    async fn late(&mut self) -> Result<()> {
        let worker = self.worker.clone();
        let at = self.chance.usize(..8);
        let Some((key, token, outcome)) = self.old.get(at).cloned() else {
            return Ok(());
        };
        let _ = match self.chance.u8(..5) {
            0 => worker.renew(key, &token).await?,
            1 => worker.abandon(key, &token).await?,
            2 => worker.mark_unknown(key, &token).await?,
            _ => worker.complete(key, &token, &outcome).await?,
        };
        Ok(())
    }

    /// The same through the helper that applications use.
    async fn guarded(&mut self, key: KeyIndex) -> Result<()> {
        let worker = self.worker.clone();
        let traits = worker.traits(key);
        let wait = match self.odds(50) {
            true => worker.settings.options.run.lease / 2,
            false => Duration::ZERO,
        };
        let on_error = match self.odds(50) {
            true => OnError::Release,
            false => OnError::Unknown,
        };
        let policy = Policy::default()
            .with_lease(worker.settings.options.run.lease)
            .with_retention(traits.retention)
            .with_on_lost(traits.on_lost)
            .with_wait(wait)
            .with_on_error(on_error);
        let (fails, long) = (self.odds(10), self.odds(10));
        let share = self.chance.f64();
        let of = worker.clone();
        let work = move |attempt: Attempt<Recorder>| async move {
            let lease = of.settings.options.run.lease;
            sleep(lease.mul_f64(share * if long { 1.5 } else { 0.05 })).await;
            if fails {
                return Err("declined");
            }
            of.ledger.effect_of_fence(key, attempt.fence.0);
            Ok(format!("{key} under {}", attempt.fence))
        };
        let identity = worker.names.identity(key).clone();
        let asked = Asked::new(identity, fingerprint(key, false)).with_policy(policy);
        // Its errors are in the history.
        let _ = worker.guard.run(asked, work).await;
        Ok(())
    }
}
