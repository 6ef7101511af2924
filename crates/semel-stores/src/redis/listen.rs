//! Waiters are told by pub/sub: scripts publish the digest of a record that somebody waits for when it is no
//! longer in flight under the fence it had, on one channel for each prefix. In a Cluster every node passes it on to all others,
//! so that it does not matter which one is listened to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{PushInfo, PushKind, RedisResult, Value};
use semel::IdentityDigest;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::target::Target;
use crate::common::Waiters;

/// How often the connection is tried, so that one without anybody at its other end is noticed.
const PING: Duration = Duration::from_secs(5);

const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The subscriber of one store, started by its first waiter.
pub(super) struct Listener {
    channel: String,
    hears: Arc<AtomicBool>,
    task: Mutex<Option<AbortHandle>>,
}

impl Listener {
    pub(super) fn new(channel: String) -> Self {
        Self {
            channel,
            hears: Arc::default(),
            task: Mutex::new(None),
        }
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Whether changes are heard of now. Who waits is woken when that begins, and when it ends.
    pub(super) fn hears(&self) -> bool {
        self.hears.load(Ordering::SeqCst)
    }

    pub(super) fn start(&self, target: &Target, waiters: &Arc<Waiters>) {
        let mut task = self.task.lock();
        if task.is_none() {
            let subscriber = Subscriber {
                target: target.clone(),
                channel: self.channel.clone(),
                waiters: waiters.clone(),
                hears: self.hears.clone(),
            };
            *task = Some(tokio::spawn(subscriber.run()).abort_handle());
        }
    }

    pub(super) fn stop(&self) {
        if let Some(task) = &*self.task.lock() {
            task.abort();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Subscriber {
    target: Target,
    channel: String,
    waiters: Arc<Waiters>,
    hears: Arc<AtomicBool>,
}

impl Subscriber {
    async fn run(self) {
        let mut pause = RETRY.0;
        let mut node = 0;
        loop {
            let lasted = self.listen(node).await.is_ok();
            self.hears.store(false, Ordering::SeqCst);
            self.waiters.wake_all();
            if lasted {
                pause = RETRY.0;
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
            // Another node of a Cluster may be there.
            node += 1;
        }
    }

    /// Listens until the connection ends. An error: it was never heard.
    async fn listen(&self, node: usize) -> RedisResult<()> {
        let ended = Arc::new(Notify::new());
        let (waiters, ends) = (self.waiters.clone(), ended.clone());
        let hear = move |push: PushInfo| match push.kind {
            PushKind::Message => match digest(&push.data) {
                Some(digest) => waiters.wake(&digest),
                None => waiters.wake_all(),
            },
            PushKind::Disconnection => ends.notify_one(),
            _ => {}
        };
        let mut connection = self.target.subscriber(node, hear).await?;
        connection.subscribe(&*self.channel).await?;
        self.hears.store(true, Ordering::SeqCst);
        // What was published before is lost.
        self.waiters.wake_all();
        loop {
            if timeout(PING, ended.notified()).await.is_ok() {
                return Ok(());
            }
            let ping = redis::cmd("PING").exec_async(&mut connection).await;
            if ping.is_err() {
                return Ok(());
            }
        }
    }
}

// A message is the channel and what was published: a digest's 32 bytes.
fn digest(message: &[Value]) -> Option<IdentityDigest> {
    match message {
        [_, Value::BulkString(bytes)] => {
            let bytes = bytes.as_slice().try_into().ok()?;
            Some(IdentityDigest::from_bytes(bytes))
        }
        _ => None,
    }
}
