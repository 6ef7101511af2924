//! A group of steps as one transaction.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use semel::IdentityDigest;
use semel::store::Result;

use super::error::Failed;
use super::pool::Wire;
use super::row::Columns;
use super::sql::Kind;
use super::step::{self, Step};

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

/// A group as statements: each with the number of steps that it is for.
fn statements(group: &[Arc<Step>]) -> Vec<(Arc<Step>, usize)> {
    group
        .chunk_by(|a, b| joins(a, b))
        .flat_map(|run| match step::many(run).filter(|_| run.len() > 1) {
            Some(many) => vec![(Arc::new(many), run.len())],
            None => run.iter().map(|step| (step.clone(), 1)).collect(),
        })
        .collect()
}

type Sending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failed>> + Send + 'a>>;

/// Runs a group; the rows of each step, in the group's order.
pub(super) async fn run<W: Wire>(
    wire: &W,
    link: &W::Link,
    group: &[Arc<Step>],
    timeout: Duration,
) -> Result<Vec<Vec<W::Row>>, Failed> {
    let steps = statements(group);
    let all = match &*steps {
        [(step, _)] => vec![wire.run(link, step).await?],
        _ => transaction(wire, link, &steps, timeout).await?,
    };
    Ok(hand_out(group, &steps, all))
}

/// The rows of each step of a group.
fn hand_out<R: Columns>(
    group: &[Arc<Step>],
    steps: &[(Arc<Step>, usize)],
    all: Vec<Vec<R>>,
) -> Vec<Vec<R>> {
    let mut rest = group.iter();
    let mut answers = Vec::with_capacity(group.len());
    for ((_, count), rows) in steps.iter().zip(all) {
        let steps = rest.by_ref().take(*count);
        if *count == 1 {
            steps.for_each(drop);
            answers.push(rows);
            continue;
        }
        let mut each: HashMap<Option<IdentityDigest>, Vec<R>> = HashMap::with_capacity(*count);
        for row in rows {
            let digest = row.column::<&[u8]>(0).ok();
            let digest = digest.and_then(|digest| digest.try_into().ok());
            let digest = digest.map(IdentityDigest::from_bytes);
            each.entry(digest).or_default().push(row);
        }
        answers.extend(steps.map(|step| each.remove(&step.digest).unwrap_or_default()));
    }
    answers
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
    wire: &W,
    link: &W::Link,
    steps: &[(Arc<Step>, usize)],
    timeout: Duration,
) -> Result<Vec<Vec<W::Row>>, Failed> {
    let statements = steps.iter().map(|(step, _)| &**step);
    let begin = begin(timeout);
    let answers = pipeline(wire, link, &begin, statements, "COMMIT").await;
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
