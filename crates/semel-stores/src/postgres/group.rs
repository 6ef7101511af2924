//! Sending what is queued, as groups.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use semel::store::Result;
use semel::{IdentityDigest, StoreError};
use tokio::time::{Instant, timeout_at};

use super::connect::silent;
use super::error::Failed;
use super::pool::{Fate, Job, Shared, Slot, Wire, late};
use super::row::Columns;
use super::sql::Kind;
use super::step::{self, Step};

/// Sends what is queued, group by group, until nothing is.
pub(super) async fn drain<W: Wire>(mut slot: Slot<W>) {
    slot.arrived();
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
                let _gone = job.answer.send(Err(Failed::Unsent(silent())));
            }
            continue;
        };
        let shared = slot.shared.clone();
        let sound = timeout_at(deadline, send(&shared, link, group)).await;
        if !matches!(sound, Ok(true)) {
            slot.discard();
        }
    }
}

/// The next group, no digest twice: new claims, then the others, both in the order of digests. What a
/// crash may forget is not with what it may not.
fn take<W: Wire>(shared: &Shared<W>) -> Vec<Job<W::Row>> {
    let mut state = shared.state.lock();
    let mut group: Vec<Job<W::Row>> = Vec::new();
    let mut digests = HashSet::new();
    let mut later = VecDeque::new();
    let mut is_forgettable = None;
    while group.len() < shared.group {
        let Some(job) = state.queue.pop_front() else {
            break;
        };
        let twice = job
            .step
            .digest
            .is_some_and(|digest| digests.contains(&digest));
        let alone = job.alone || job.step.kind.alone();
        let other = is_forgettable.is_some_and(|is| is != job.step.is_forgettable());
        if twice || other || (alone && !group.is_empty()) {
            later.push_back(job);
            continue;
        }
        if !job.fate.settle(Fate::SENT) {
            continue;
        }
        digests.extend(job.step.digest);
        is_forgettable = Some(job.step.is_forgettable());
        group.push(job);
        if alone {
            break;
        }
    }
    // In front of those not looked at: the oldest first.
    later.append(&mut state.queue);
    state.queue = later;
    drop(state);
    group.sort_by_key(|job| (job.step.kind != Kind::ClaimNew, job.step.digest));
    group
}

/// The largest outcome that shares a statement with others.
const SHARES: usize = 64 << 10;

/// Whether two steps of a group that follow one another can be one statement.
fn joins(a: &Step, b: &Step) -> bool {
    a.kind == b.kind
        && match a.kind {
            Kind::ClaimNew => true,
            Kind::Complete => a.bytes() <= SHARES && b.bytes() <= SHARES,
            _ => false,
        }
}

/// A group as statements: each with the number of jobs that it is for.
fn statements<R>(group: &[Job<R>]) -> Vec<(Arc<Step>, usize)> {
    group
        .chunk_by(|a, b| joins(&a.step, &b.step))
        .flat_map(|run| {
            let steps: Vec<_> = run.iter().map(|job| job.step.clone()).collect();
            match step::many(&steps).filter(|_| steps.len() > 1) {
                Some(many) => vec![(Arc::new(many), steps.len())],
                None => steps.into_iter().map(|step| (step, 1)).collect(),
            }
        })
        .collect()
}

type Sending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failed>> + Send + 'a>>;

/// Sends a group and answers its callers. Whether the connection is still good.
async fn send<W: Wire>(shared: &Shared<W>, link: &W::Link, group: Vec<Job<W::Row>>) -> bool {
    let steps = statements(&group);
    let sent = match &*steps {
        [(step, _)] => shared.wire.run(link, step).await.map(|rows| vec![rows]),
        _ => transaction(shared, link, &steps).await,
    };
    let failed = match sent {
        Ok(all) => {
            hand_out(group, &steps, all);
            return true;
        }
        Err(failed) => failed,
    };
    let group = match <[Job<W::Row>; 1]>::try_from(group) {
        Ok([job]) => {
            let sound = !matches!(failed, Failed::Lost(_));
            let _gone = job.answer.send(Err(failed));
            return sound;
        }
        Err(group) => group,
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

/// Answers a group's callers, each with its own rows.
fn hand_out<R: Columns>(group: Vec<Job<R>>, steps: &[(Arc<Step>, usize)], all: Vec<Vec<R>>) {
    let mut jobs = group.into_iter();
    for ((_, count), rows) in steps.iter().zip(all) {
        if *count == 1 {
            if let Some(job) = jobs.next() {
                let _gone = job.answer.send(Ok(rows));
            }
            continue;
        }
        let mut each: HashMap<Option<IdentityDigest>, Vec<R>> = HashMap::with_capacity(*count);
        for row in rows {
            let digest = row.column::<&[u8]>(0).ok();
            let digest = digest.and_then(|digest| digest.try_into().ok());
            let digest = digest.map(IdentityDigest::from_bytes);
            each.entry(digest).or_default().push(row);
        }
        for job in jobs.by_ref().take(*count) {
            let rows = each.remove(&job.step.digest).unwrap_or_default();
            let _gone = job.answer.send(Ok(rows));
        }
    }
}

/// A row may be locked for long, by a transaction that completes it. Who shares a group with a step
/// on it does not wait that long, but for longer than a commit takes, to a standby far away too: then
/// the group is rolled back, and each sent by itself.
fn begin(timeout: Duration) -> String {
    let wait = (timeout / 10).as_millis().max(1);
    format!("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {wait}")
}

/// Runs statements as one transaction.
async fn transaction<W: Wire>(
    shared: &Shared<W>,
    link: &W::Link,
    steps: &[(Arc<Step>, usize)],
) -> Result<Vec<Vec<W::Row>>, Failed> {
    let statements = steps.iter().map(|(step, _)| &**step);
    let begin = begin(shared.timeout);
    let answers = pipeline(&*shared.wire, link, &begin, statements, "COMMIT").await;
    // A step's own error says more than what follows from it.
    let all = answers.steps.into_iter().collect::<Result<_, Failed>>()?;
    answers.first?;
    answers.last?;
    Ok(all)
}

/// The answers to what was sent together.
pub(super) struct Pipelined<R> {
    pub(super) first: Result<(), Failed>,
    pub(super) steps: Vec<Result<Vec<R>, Failed>>,
    pub(super) last: Result<(), Failed>,
}

/// Sends everything before it waits for anything: a future sends on its first poll, and answers come in
/// the order of sending.
pub(super) async fn pipeline<'a, W: Wire>(
    wire: &W,
    link: &W::Link,
    first: &str,
    steps: impl Iterator<Item = &'a Step>,
    last: &str,
) -> Pipelined<W::Row> {
    let mut first: Sending<'_, ()> = Box::pin(wire.simple(link, first));
    let mut runs: Vec<Sending<'_, Vec<W::Row>>> = steps
        .map(|step| -> Sending<'_, Vec<W::Row>> { Box::pin(wire.run(link, step)) })
        .collect();
    let mut last: Sending<'_, ()> = Box::pin(wire.simple(link, last));
    let begun = poll_once(&mut first).await;
    let mut answers = Vec::with_capacity(runs.len());
    for run in &mut runs {
        answers.push(poll_once(run).await);
    }
    let ended = poll_once(&mut last).await;
    let first = rest(begun, first).await;
    let mut steps = Vec::with_capacity(runs.len());
    for (answer, run) in answers.into_iter().zip(runs) {
        steps.push(rest(answer, run).await);
    }
    let last = rest(ended, last).await;
    Pipelined { first, steps, last }
}

async fn poll_once<T>(future: &mut Sending<'_, T>) -> Poll<Result<T, Failed>> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

async fn rest<T>(polled: Poll<Result<T, Failed>>, future: Sending<'_, T>) -> Result<T, Failed> {
    match polled {
        Poll::Ready(done) => done,
        Poll::Pending => future.await,
    }
}
