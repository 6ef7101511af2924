//! One consumer per handle that tells of changes, while somebody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, push};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::link::timestamp;
use super::shared::Shared;

/// How long the consumer is kept after the last wait.
const LINGER: Duration = Duration::from_secs(10);
const HEARTBEAT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Watch {
    waits: AtomicUsize,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// Ends the task.
    pub(super) fn stop(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A wait under way.
pub(super) struct Watching(Arc<Shared>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watch.waits.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Joins those who wait.
pub(super) fn join(shared: &Arc<Shared>) -> Watching {
    shared.watch.waits.fetch_add(1, Ordering::SeqCst);
    Watching(shared.clone())
}

/// Starts the task where there is none. For each look of a waiter: the runtime of the one that began may have
/// ended since.
pub(super) fn start(shared: &Arc<Shared>) {
    let mut task = shared.watch.task.lock();
    // A task that is about to end takes this lock before it does.
    if task.as_ref().is_none_or(JoinHandle::is_finished) {
        let weak = Arc::downgrade(shared);
        *task = Some(tokio::spawn(async move {
            while let Some(shared) = weak.upgrade() {
                watch_once(&shared).await;
                if idle(&shared) {
                    return;
                }
                drop(shared);
                sleep(Duration::from_millis(50)).await;
            }
        }));
    }
}

/// Whether nobody waits; then the next wait starts a task of its own.
fn idle(shared: &Shared) -> bool {
    let mut task = shared.watch.task.lock();
    let idle = shared.watch.waits.load(Ordering::SeqCst) == 0;
    if idle {
        *task = None;
    }
    idle
}

/// Makes a consumer and follows it until it fails, or nobody has waited for a while.
async fn watch_once(shared: &Shared) {
    let link = &shared.link;
    let until = Instant::now() + link.timeout();
    if link.connected(until).await.is_err() {
        return;
    }
    let config = push::Config {
        deliver_subject: link.client().new_inbox(),
        deliver_policy: DeliverPolicy::New,
        ack_policy: AckPolicy::None,
        headers_only: true,
        idle_heartbeat: HEARTBEAT,
        inactive_threshold: HEARTBEAT * 4,
        memory_storage: true,
        num_replicas: 1,
        ..push::Config::default()
    };
    let (losses, asked) = (link.losses(), Instant::now());
    let created = link.stream().create_consumer(config);
    let Ok(Ok(consumer)) = link.answered(link.timeout(), created).await else {
        return;
    };
    shared
        .clock
        .sample(timestamp(consumer.cached_info().created), asked);
    let Ok(mut messages) = consumer.messages().await else {
        return;
    };
    // What changed before there was a consumer was told to nobody.
    shared.waiters.wake_all();
    let mut count = 0;
    loop {
        let next = link.answered(LINGER, messages.next()).await;
        // What was sent while there was no connection is lost.
        if link.losses() != losses {
            break;
        }
        match next {
            Ok(Some(Ok(message))) => {
                let Ok(info) = message.info() else { break };
                count += 1;
                if let Some(identity) = link.identity(&message.subject) {
                    shared.seen.changed(&identity, info.stream_sequence);
                    shared.waiters.wake(&identity);
                }
                if info.consumer_sequence != count {
                    count = info.consumer_sequence;
                    shared.waiters.wake_all();
                }
            }
            // Nothing has changed for long.
            Err(_) if shared.watch.waits.load(Ordering::SeqCst) > 0 => {}
            // Nobody waits, or its heartbeat has stopped.
            _ => break,
        }
    }
    let name = &consumer.cached_info().name;
    let _ = timeout(Duration::from_secs(1), link.stream().delete_consumer(name)).await;
}
