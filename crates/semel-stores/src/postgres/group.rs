//! Sending what is queued, as groups.

use std::collections::{HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use super::connect::{Connector, Link};
use super::error::Failed;
use super::pool::{Fate, Job, Shared, Slot, late};
use super::step::Step;

/// Sends what is queued, group by group, until nothing is.
pub(super) async fn drain(mut slot: Slot) {
    loop {
        let group = take(&slot.shared);
        if group.is_empty() {
            // Dropping the slot looks once more under the lock.
            return;
        }
        let deadline = Instant::now() + slot.shared.timeout;
        let link = match timeout_at(deadline, slot.link()).await {
            Ok(Ok(_)) => slot.link.as_ref(),
            Ok(Err(error)) => {
                for job in group {
                    let error = StoreError::new(error.kind(), error.to_string());
                    let _gone = job.answer.send(Err(Failed::Unsent(error)));
                }
                continue;
            }
            Err(_) => None,
        };
        let Some(link) = link else {
            for job in group {
                let _gone = job.answer.send(Err(Failed::Unsent(StoreError::new(
                    StoreErrorKind::NotApplied,
                    "PostgreSQL does not answer to a new connection",
                ))));
            }
            continue;
        };
        let shared = slot.shared.clone();
        let sound = timeout_at(deadline, send(link, &shared.connector, group)).await;
        if !matches!(sound, Ok(true)) {
            slot.discard();
        }
    }
}

/// The next group: in the order of digests, each at most once.
fn take(shared: &Shared) -> Vec<Job> {
    let mut state = shared.state.lock();
    let mut group: Vec<Job> = Vec::new();
    let mut digests = HashSet::new();
    let mut later = VecDeque::new();
    while group.len() < shared.group {
        let Some(job) = state.queue.pop_front() else {
            break;
        };
        let twice = job
            .step
            .digest
            .is_some_and(|digest| digests.contains(&digest));
        if twice || (job.alone && !group.is_empty()) {
            later.push_back(job);
            continue;
        }
        if !job.fate.settle(Fate::SENT) {
            continue;
        }
        let alone = job.alone;
        digests.extend(job.step.digest);
        group.push(job);
        if alone {
            break;
        }
    }
    // In front of those not looked at: the oldest first.
    later.append(&mut state.queue);
    state.queue = later;
    drop(state);
    group.sort_by_key(|job| job.step.digest);
    group
}

type Sending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failed>> + Send + 'a>>;

/// Sends a group and answers its callers. Whether the connection is still good.
async fn send(link: &Link, with: &Connector, group: Vec<Job>) -> bool {
    if let [_] = &*group {
        let mut sound = true;
        for job in group {
            let answer = link.run(with, &job.step).await;
            sound = !matches!(answer, Err(Failed::Lost(_)));
            let _gone = job.answer.send(answer);
        }
        return sound;
    }
    let steps: Vec<Arc<Step>> = group.iter().map(|job| job.step.clone()).collect();
    // Everything is sent before anything is waited for: a future sends on its first poll, and
    // answers come in the order of sending.
    let mut begin: Sending<'_, ()> =
        Box::pin(link.simple(with, "BEGIN ISOLATION LEVEL READ COMMITTED"));
    let mut runs: Vec<Sending<'_, Vec<Row>>> = steps
        .iter()
        .map(|step| -> Sending<'_, Vec<Row>> { Box::pin(link.run(with, step)) })
        .collect();
    let mut commit: Sending<'_, ()> = Box::pin(link.simple(with, "COMMIT"));
    let mut begun = first(&mut begin).await;
    let mut answers = Vec::with_capacity(runs.len());
    for run in &mut runs {
        answers.push(first(run).await);
    }
    let mut committed = first(&mut commit).await;
    if begun.is_none() {
        begun = Some(begin.await);
    }
    for (run, answer) in runs.into_iter().zip(&mut answers) {
        if answer.is_none() {
            *answer = Some(run.await);
        }
    }
    if committed.is_none() {
        committed = Some(commit.await);
    }
    let failed = [begun, committed]
        .into_iter()
        .flatten()
        .find_map(Result::err);
    let all: Result<Vec<Vec<Row>>, Failed> = answers.into_iter().flatten().collect();
    let failed = match (all, failed) {
        (Ok(all), None) if all.len() == group.len() => {
            for (job, rows) in group.into_iter().zip(all) {
                let _gone = job.answer.send(Ok(rows));
            }
            return true;
        }
        // A step's own error says more than what follows from it.
        (Err(failed), _) | (_, Some(failed)) => failed,
        (Ok(_), None) => Failed::Lost(late("PostgreSQL's answers do not match")),
    };
    for job in group {
        let copy = match &failed {
            Failed::Lost(error) | Failed::Late(error) | Failed::Unreadable(error) => {
                Failed::Lost(late(&error.to_string()))
            }
            // The server took none of the group.
            Failed::Unsent(error) | Failed::RolledBack(error) | Failed::Refused(error) => {
                Failed::RolledBack(StoreError::new(error.kind(), error.to_string()))
            }
        };
        let _gone = job.answer.send(Err(copy));
    }
    matches!(failed, Failed::RolledBack(_) | Failed::Refused(_))
}

/// Polls once.
async fn first<T>(future: &mut Sending<'_, T>) -> Option<Result<T, Failed>> {
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await
}
