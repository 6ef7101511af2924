//! Waiters are told by pub/sub: scripts publish the digest of a record that somebody waits for when it is no
//! longer in flight under the fence it had, on one channel for each prefix. In a Cluster every node passes it on to all others,
//! so that it does not matter which one is listened to.

use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, RedisResult, Value};
use semel::IdentityDigest;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::target::Target;
use crate::common::Waiters;
use crate::common::subscription::{Listen, Up};

/// How often the connection is tried, so that one without anybody at its other end is noticed.
const PING: Duration = Duration::from_secs(5);

/// What listens, and where.
pub(super) struct Listener {
    pub(super) target: Target,
    pub(super) channel: String,
    pub(super) waiters: Arc<Waiters>,
}

impl Listen for Listener {
    async fn listen(&self, up: &Up, times: usize) {
        // Another node of a Cluster may be there.
        let _never_heard = self.hear(times, up).await;
    }
}

impl Listener {
    async fn hear(&self, node: usize, up: &Up) -> RedisResult<()> {
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
        up.begins();
        while timeout(PING, ended.notified()).await.is_err() {
            redis::cmd("PING").exec_async(&mut connection).await?;
        }
        Ok(())
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
