//! Drives claim + complete pairs and replays against anything that can do them, the same way for
//! all of them.

use std::future::Future;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};

/// Bytes in every stored answer.
pub const ANSWER: usize = 200;

/// The 200-byte answer number `index`; no two are the same.
pub fn answer(index: usize) -> Vec<u8> {
    let mut answer = format!(r#"{{"id":"ord_{index:012}","state":"placed","note":""#).into_bytes();
    answer.resize(ANSWER - 2, b'x');
    answer.extend_from_slice(br#""}"#);
    answer
}

/// The key number `index`: 36 characters, as long as a UUID.
pub fn key(index: usize) -> String {
    format!("0198c0de-5eed-7000-8000-{index:012}")
}

/// Something that does operations once.
pub trait Subject: Send + Sync + 'static {
    /// What a caller has in hand before it asks: made once, outside the measured time.
    type Inputs: Send + Sync + 'static;

    /// An empty store with room for every input; background work goes to `runtime`.
    fn build(inputs: Arc<Self::Inputs>, runtime: &Handle) -> Self;

    /// Claims input `index`, which must be free, and completes it.
    fn pair(&self, index: usize) -> impl Future<Output = ()> + Send;

    /// Claims input `index`, which must be completed, and takes its answer.
    fn replay(&self, index: usize) -> impl Future<Output = ()> + Send;
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A claim and its completion, on keys never seen before.
    Pair,
    /// A claim on a completed key.
    Replay,
}

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// Threads of their own, each with a runtime of one thread.
    Threads(usize),
    /// Tasks on one runtime with two workers.
    Tasks(usize),
}

/// How many operations a task does before it lets others run, and a thread before it looks at the time.
const AT_ONCE: usize = 32;
const WORKERS: usize = 2;
/// After this, callers stop before they have done all: some published stores would take minutes.
const LONGEST: Duration = Duration::from_secs(3);

/// Runs up to `count` operations on a fresh subject; operations per second.
pub fn rate<S: Subject>(
    operation: Operation,
    callers: Callers,
    count: usize,
    inputs: &Arc<S::Inputs>,
) -> f64 {
    let (done, elapsed) = match callers {
        Callers::Threads(threads) => on_threads::<S>(operation, threads, count, inputs),
        Callers::Tasks(tasks) => on_tasks::<S>(operation, tasks, count, inputs),
    };
    done as f64 / elapsed.as_secs_f64()
}

async fn prepare<S: Subject>(operation: Operation, subject: &S, count: usize) {
    if operation == Operation::Replay {
        for index in 0..count {
            subject.pair(index).await;
        }
    }
}

async fn step<S: Subject>(operation: Operation, subject: &S, index: usize, count: usize) {
    match operation {
        Operation::Pair => subject.pair(index).await,
        // A prime stride visits every record, none next to the one before.
        Operation::Replay => subject.replay(index * 1_000_003 % count).await,
    }
}

fn on_threads<S: Subject>(
    operation: Operation,
    threads: usize,
    count: usize,
    inputs: &Arc<S::Inputs>,
) -> (usize, Duration) {
    let runtimes: Vec<Runtime> = (0..threads)
        .map(|_| {
            let mut builder = Builder::new_current_thread();
            builder.enable_time().build().expect("a runtime")
        })
        .collect();
    let subject = S::build(inputs.clone(), runtimes[0].handle());
    runtimes[0].block_on(prepare(operation, &subject, count));
    let start = Barrier::new(threads);
    // Awaited, not blocked on: the first thread's runtime may carry the subject's background work.
    let end = tokio::sync::Barrier::new(threads);
    let caller = |thread: usize, runtime: &Runtime| {
        let range = share(thread, threads, count);
        start.wait();
        let started = Instant::now();
        let (done, ended) = runtime.block_on(async {
            let mut done = 0;
            for index in range {
                step(operation, &subject, index, count).await;
                done += 1;
                if done % AT_ONCE == 0 && started.elapsed() > LONGEST {
                    break;
                }
            }
            let ended = Instant::now();
            end.wait().await;
            (done, ended)
        });
        (done, started, ended)
    };
    let spans: Vec<(usize, Instant, Instant)> = thread::scope(|scope| {
        let caller = &caller;
        let running: Vec<_> = runtimes
            .iter()
            .enumerate()
            .map(|(thread, runtime)| scope.spawn(move || caller(thread, runtime)))
            .collect();
        let joined = running.into_iter().map(|t| t.join().expect("a caller"));
        joined.collect()
    });
    let done = spans.iter().map(|s| s.0).sum();
    let first = spans.iter().map(|s| s.1).min().expect("a caller");
    let last = spans.iter().map(|s| s.2).max().expect("a caller");
    (done, last - first)
}

fn on_tasks<S: Subject>(
    operation: Operation,
    tasks: usize,
    count: usize,
    inputs: &Arc<S::Inputs>,
) -> (usize, Duration) {
    let runtime = workers();
    let subject = Arc::new(S::build(inputs.clone(), runtime.handle()));
    runtime.block_on(async {
        prepare(operation, &*subject, count).await;
        let started = Instant::now();
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let subject = subject.clone();
                tokio::spawn(async move {
                    let mut done = 0;
                    for index in share(task, tasks, count) {
                        step(operation, &*subject, index, count).await;
                        done += 1;
                        if done % AT_ONCE == 0 {
                            if started.elapsed() > LONGEST {
                                break;
                            }
                            tokio::task::yield_now().await;
                        }
                    }
                    done
                })
            })
            .collect();
        let mut done = 0;
        for task in running {
            done += task.await.expect("a caller");
        }
        (done, started.elapsed())
    })
}

/// A runtime with two workers and everything enabled that this build has.
pub fn workers() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn share(caller: usize, callers: usize, count: usize) -> std::ops::Range<usize> {
    caller * count / callers..(caller + 1) * count / callers
}
