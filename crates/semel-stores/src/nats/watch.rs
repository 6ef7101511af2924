//! One consumer per handle that tells of changes, while somebody waits.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, push};
use futures_util::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::link::timestamp;
use super::shared::Shared;
use crate::common::Waiters;
use crate::common::subscription::{Listen, Up};

/// How long the consumer is kept after the last wait.
const LINGER: Duration = Duration::from_secs(10);
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Follows the bucket for those who wait.
pub(super) struct Listener {
    /// Who no longer has the store follows nothing.
    pub(super) shared: Weak<Shared>,
    pub(super) waiters: Arc<Waiters>,
    /// Told by each look of a waiter.
    pub(super) looks: Arc<Notify>,
}

impl Listen for Listener {
    async fn listen(&self, up: &Up, _times: usize) {
        while self.waiters.is_empty() {
            self.looks.notified().await;
        }
        if let Some(shared) = self.shared.upgrade() {
            follow(&shared, up).await;
        }
    }
}

/// Makes a consumer and follows it until it fails, or nobody has waited for a while.
async fn follow(shared: &Shared, up: &Up) {
    let link = &shared.link;
    let until = Instant::now() + link.timeout;
    if link.connected(until).await.is_err() {
        return;
    }
    let config = push::Config {
        deliver_subject: link.client.new_inbox(),
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
    let created = link.stream.create_consumer(config);
    let Ok(Ok(consumer)) = link.answered(link.timeout, created).await else {
        return;
    };
    shared
        .clock
        .sample(timestamp(consumer.cached_info().created), asked);
    let Ok(mut messages) = consumer.messages().await else {
        return;
    };
    up.begins();
    let (mut count, mut waited) = (0, Instant::now());
    loop {
        let next = link.answered(LINGER, messages.next()).await;
        if !shared.waiters.is_empty() {
            waited = Instant::now();
        }
        // What was sent while there was no connection is lost.
        if link.losses() != losses || waited.elapsed() >= LINGER {
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
            Err(_) => {}
            // Its heartbeat has stopped.
            _ => break,
        }
    }
    let name = &consumer.cached_info().name;
    let _ = timeout(Duration::from_secs(1), link.stream.delete_consumer(name)).await;
}
