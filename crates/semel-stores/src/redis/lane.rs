//! A place for one connection, which is made when it is needed, and anew when it broke.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::watch;
use tokio::time::timeout;

use super::scripts::Scripts;
use super::target::Target;
use super::wire::{Wire, checked};

/// What connections are made of.
pub(super) struct Maker {
    pub(super) target: Target,
    pub(super) scripts: Scripts,
}

/// A connection that is being made, was made or could not be. It is known from the one made after it by its
/// channel.
#[derive(Clone)]
pub(super) struct Made(watch::Receiver<Option<RedisResult<Wire>>>);

impl Made {
    /// The connection; `None` where its runtime ended before it was made.
    pub(super) async fn wire(&mut self) -> Option<RedisResult<Wire>> {
        let made = self.0.wait_for(Option::is_some).await;
        made.ok().and_then(|made| made.clone())
    }

    fn is_usable(&self) -> bool {
        // First: who tells goes away only after it was told.
        let is_coming = self.0.has_changed().is_ok();
        match &*self.0.borrow() {
            Some(made) => made.is_ok(),
            None => is_coming,
        }
    }
}

#[derive(Default)]
pub(super) struct Lane(Mutex<Option<Made>>);

impl Lane {
    /// The connection, made if there is none.
    ///
    /// It is made in a task of its own: a caller that gives up does not stop it, and the next one
    /// need not begin again.
    pub(super) fn latest(&self, maker: &Arc<Maker>) -> Made {
        let mut latest = self.0.lock();
        if let Some(made) = latest.as_ref().filter(|made| made.is_usable()) {
            return made.clone();
        }
        let (tell, made) = watch::channel(None);
        let maker = maker.clone();
        tokio::spawn(async move { tell.send_replace(Some(maker.connect().await)) });
        latest.insert(Made(made)).clone()
    }

    /// Forgets this connection, unless another one has taken its place.
    pub(super) fn forget(&self, made: &Made) {
        let mut latest = self.0.lock();
        latest.take_if(|latest| latest.0.same_channel(&made.0));
    }

    /// Forgets the connection.
    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }
}

impl Maker {
    async fn connect(&self) -> RedisResult<Wire> {
        // The parts have limits of their own; this is for a server that takes connections, and
        // answers nothing.
        let made = timeout(self.target.timeout * 2, self.make()).await;
        made.unwrap_or_else(|_| {
            let silent = "no connection was made in time";
            Err(io::Error::new(io::ErrorKind::TimedOut, silent).into())
        })
    }

    async fn make(&self) -> RedisResult<Wire> {
        if self.target.is_cluster() {
            return self.target.masters().await.map(Wire::Cluster);
        }
        let mut wire = self.target.single().await?;
        self.greet(&mut wire).await?;
        Ok(Wire::Single(wire))
    }

    /// Looks that the server is no replica, and loads the scripts.
    async fn greet(&self, wire: &mut MultiplexedConnection) -> RedisResult<()> {
        let mut greeting = redis::pipe();
        greeting.cmd("INFO").arg("replication");
        for script in self.scripts.all() {
            greeting.cmd("SCRIPT").arg("LOAD").arg(&script.code);
        }
        let count = greeting.len();
        let answers = wire.send_packed_commands(&greeting, 0, count).await?;
        // A script that could not be loaded is sent with its first call.
        match answers.into_iter().next().map(checked) {
            Some(Ok(info)) => {
                let info: String = redis::from_redis_value(info)?;
                if info.lines().any(|line| line == "role:slave") {
                    return Err(redis::make_extension_error(
                        "READONLY".into(),
                        Some("the server is a replica".into()),
                    ));
                }
                Ok(())
            }
            // Where `INFO` is forbidden the probe says so, and the first write would tell a replica.
            Some(Err(error)) if error.code() != Some("NOPERM") => Err(error),
            _ => Ok(()),
        }
    }
}
