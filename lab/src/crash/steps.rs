//! Work in steps: three calls of a service outside, each under the key that its step gives it; or
//! two of them, and between them a step that is one transaction with its effects.
//!
//! What a worker does is written to a file of [lines](crate::lines) that all append to: that a step
//! is called, and that it was kept. A kill can lose neither.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use semel::IdentityDigest;
use semel::guard::{Asked, Attempt, AttemptInfo, Done, RunError, StepError, TransactOptions};
use semel::store::Fence;
use serde::{Deserialize, Serialize};

use super::bugs::Bug;
use super::payments::{Client, Payment};
use super::point::{Point, Work};
use super::pointed::Pointed;
use super::transaction::{Effect, isolation, write};
use super::worker::Worker;
use crate::base::Base;

/// The steps' names, in their order.
pub(super) const NAMES: [&str; 3] = ["charge", "reserve", "ship"];
pub(super) const STEPS: u32 = 3;
/// The places of the service's, where all steps are, and where one has a transaction.
pub(super) const ALL: [u32; 3] = [0, 1, 2];
pub(super) const OUTSIDE: [u32; 2] = [0, 2];
/// The place of that one.
const INSIDE: usize = 1;

/// The answer of mixed steps: the transaction's part, and what the service answered.
pub(super) fn split(answer: &str) -> (String, String) {
    let words: Vec<&str> = answer.split(' ').collect();
    match words.as_slice() {
        [charge, inside @ .., ship] => (inside.join(" "), format!("{charge} {ship}")),
        _ => (answer.into(), answer.into()),
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed<E: Error + 'static> {
    #[error("the service was not reached")]
    Call(#[from] io::Error),
    #[error("a statement failed")]
    Driver(#[source] E),
}

/// What was done, as the file says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) kept: bool,
    pub(super) identity: String,
    pub(super) step: String,
    pub(super) fence: u64,
}

impl Line {
    pub(super) fn new(kept: bool, identity: &IdentityDigest, step: &str, fence: Fence) -> Self {
        Self {
            kept,
            identity: identity.to_string(),
            step: step.into(),
            fence: fence.0,
        }
    }
}

/// Asks for one key.
pub(super) async fn ask<B: Base>(
    worker: &Worker<B>,
    key: i64,
) -> Result<Done<String>, RunError<StepError<Failed<B::Error>>>> {
    let identity = worker.identity(key);
    let digest = *identity.digest();
    let (points, log) = (worker.points.clone(), worker.log.clone());
    let (client, bug) = (
        Client::of(worker.settings.payments),
        worker.settings.options.bug,
    );
    let (mixed, tables) = (
        worker.settings.options.work() == Work::Mixed,
        worker.tables.clone(),
    );
    let (effect, again) = (Effect::of(key), worker.again.clone());
    let asked = Asked::new(identity, worker.fingerprint(key)).in_steps();
    let run = worker
        .guard
        .run(asked, move |mut attempt: Attempt<Pointed<B>>| async move {
            let fence = attempt.fence;
            let mut parts = Vec::new();
            for (place, name) in NAMES.into_iter().enumerate() {
                if place > 0 {
                    points.pass(Point::BetweenSteps).await;
                }
                if mixed && place == INSIDE {
                    let inside = |info: AttemptInfo, tx| {
                        points.attempt(info.fence.0);
                        again.store(info.retry, Ordering::Relaxed);
                        let statements = tables.statements(&effect, info.fence.0, info.number);
                        let points = points.clone();
                        async move {
                            let written = write::<B>(tx, statements, &points).await;
                            written.map_err(Failed::Driver)?;
                            Ok(effect.answer(info.fence.0.cast_signed()))
                        }
                    };
                    let options = TransactOptions::default().with_isolation(isolation(key));
                    parts.push(attempt.transact(name, options, inside).await?);
                    continue;
                }
                let (points, log) = (&points, Arc::clone(&log));
                let call = async |step_key: String| {
                    log.record(&Line::new(false, &digest, name, fence));
                    points.pass(Point::BeforeCall).await;
                    points.pass(Point::WhileCalling).await;
                    let payment = Payment::of(key, place as u32);
                    let paid = client.pay(&step_key, &payment).await?;
                    points.pass(Point::Called).await;
                    Ok::<_, Failed<B::Error>>(paid)
                };
                let mut early = None;
                let part: String = attempt
                    .step(name, async |step_key| match bug {
                        Some(Bug::RandomStepKey) => call(format!("{:x}", fastrand::u128(..))).await,
                        Some(Bug::KeepsFirst) => {
                            early = Some(step_key.to_string());
                            Ok(format!("{key}/{place}"))
                        }
                        _ => call(step_key.to_string()).await,
                    })
                    .await?;
                if let Some(step_key) = early {
                    call(step_key).await.map_err(StepError::Failed)?;
                }
                parts.push(part);
            }
            Ok(parts.join(" "))
        });
    run.await
}
