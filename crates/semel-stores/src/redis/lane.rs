//! A place for one connection, which is made when it is needed, and anew when it broke.

use std::io;
use std::sync::Arc;
use std::time::Duration;

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
    pub(super) timeout: Duration,
}

/// How an attempt to connect ended.
type Ended = Option<RedisResult<()>>;

#[derive(Default)]
enum State {
    #[default]
    Down,
    /// Somebody connects, and tells all who wait.
    Connecting(watch::Receiver<Ended>),
    /// The number tells a connection from the one made after it.
    Up(u64, Wire),
}

#[derive(Default)]
pub(super) struct Lane {
    // With the number of the last connection.
    state: Mutex<(State, u64)>,
}

impl Lane {
    /// The connection, and its number.
    ///
    /// It is made in a task of its own: a caller that gives up does not stop it, and the next one
    /// need not begin again.
    pub(super) async fn wire(self: &Arc<Self>, maker: &Arc<Maker>) -> RedisResult<(u64, Wire)> {
        loop {
            let mut ended = {
                let mut state = self.state.lock();
                match &state.0 {
                    State::Up(number, wire) => return Ok((*number, wire.clone())),
                    State::Connecting(ended) => ended.clone(),
                    State::Down => {
                        let (tell, ended) = watch::channel(None);
                        state.0 = State::Connecting(ended.clone());
                        tokio::spawn(self.clone().connect(maker.clone(), tell));
                        ended
                    }
                }
            };
            let gone = match ended.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(Err(error))) => return Err(error.clone()),
                Ok(_) => false,
                // Its runtime is gone, and the task with it.
                Err(_) => true,
            };
            let mut state = self.state.lock();
            if gone && matches!(&state.0, State::Connecting(other) if other.same_channel(&ended)) {
                state.0 = State::Down;
            }
        }
    }

    async fn connect(self: Arc<Self>, maker: Arc<Maker>, tell: watch::Sender<Ended>) {
        // The parts have limits of their own; this is for a server that takes connections, and
        // answers nothing.
        let made = timeout(maker.timeout * 2, maker.make()).await;
        let made = made.unwrap_or_else(|_| {
            let silent = "no connection was made in time";
            Err(io::Error::new(io::ErrorKind::TimedOut, silent).into())
        });
        let ended = match made {
            Ok(wire) => {
                let mut state = self.state.lock();
                state.1 += 1;
                state.0 = State::Up(state.1, wire);
                Ok(())
            }
            Err(error) => {
                self.put(State::Down);
                Err(error)
            }
        };
        tell.send_replace(Some(ended));
    }

    fn put(&self, state: State) {
        self.state.lock().0 = state;
    }

    /// Forgets this connection, unless another one has taken its place.
    pub(super) fn forget(&self, number: u64) {
        let mut state = self.state.lock();
        if matches!(&state.0, State::Up(standing, _) if *standing == number) {
            state.0 = State::Down;
        }
    }

    /// Forgets the connection.
    pub(super) fn drop_wire(&self) {
        let mut state = self.state.lock();
        if matches!(&state.0, State::Up(..)) {
            state.0 = State::Down;
        }
    }
}

impl Maker {
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
        let mut answers = answers.into_iter();
        match answers.next().map(checked) {
            Some(Ok(info)) => {
                let info: String = redis::from_redis_value(info)?;
                if info.lines().any(|line| line == "role:slave") {
                    return Err(redis::make_extension_error(
                        "READONLY".into(),
                        Some("the server is a replica".into()),
                    ));
                }
            }
            // Where `INFO` is forbidden the probe says so, and the first write would tell a replica.
            Some(Err(error)) if error.code() == Some("NOPERM") => {}
            Some(Err(error)) => return Err(error),
            None => {}
        }
        // A script that could not be loaded is sent with its first call. But who must log in is told now.
        for answer in answers {
            if let Err(error) = checked(answer)
                && error.code() == Some("NOAUTH")
            {
                return Err(error);
            }
        }
        Ok(())
    }
}
