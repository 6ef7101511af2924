//! The connections of a store, and how often a step is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisResult, Value};
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep, timeout_at};

use super::error::{self, Effect, Next};
use super::lane::{Lane, Maker};
use super::scripts::Scripts;
use super::target::Target;
use super::wire::{self, Answer, Call, Node, Wire};

/// How often a step goes out in all: its first time, after the script was gone, after its
/// connection broke, after the server became a replica. It carries the same nonce or token each time.
const TRIES: usize = 4;

/// Between two tries while a master is looked for.
const PAUSE: Duration = Duration::from_millis(100);

/// What came back.
pub(super) struct Sent<T> {
    pub(super) answer: T,
    /// Whether it was sent before, and that answer was lost.
    pub(super) again: bool,
}

/// The connections of one store.
pub(super) struct Link {
    maker: Arc<Maker>,
    lanes: Box<[Lane]>,
    next: AtomicUsize,
}

impl Link {
    pub(super) fn new(target: Target, connections: usize) -> Self {
        // A Cluster's client has a connection to each node already.
        let connections = if target.is_cluster() { 1 } else { connections };
        Self {
            maker: Arc::new(Maker {
                target,
                scripts: Scripts::new(),
            }),
            lanes: (0..connections.max(1)).map(|_| Lane::default()).collect(),
            next: AtomicUsize::new(0),
        }
    }

    pub(super) fn scripts(&self) -> &Scripts {
        &self.maker.scripts
    }

    pub(super) fn target(&self) -> &Target {
        &self.maker.target
    }

    fn lane(&self) -> &Lane {
        let turn = match self.lanes.len() {
            1 => 0,
            lanes => self.next.fetch_add(1, Ordering::Relaxed) % lanes,
        };
        &self.lanes[turn]
    }

    /// Runs a script: one round trip, unless the server does not know it, or fails.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Sent<Answer>> {
        let send = |mut wire: Wire, as_text| async move { wire.call(call, as_text).await };
        self.tries(call.script.effect, call.until, send).await
    }

    /// Runs several commands on one server. Errors are among the answers.
    pub(super) async fn pipeline(&self, pipeline: &Pipeline, node: &Node) -> Result<Vec<Value>> {
        let until = Instant::now() + self.target().timeout;
        let send = |mut wire: Wire, _| async move {
            let pipeline = pipeline.clone();
            wire.pipeline(pipeline, || wire::on(node)).await
        };
        Ok(self.tries(Effect::Read, until, send).await?.answer)
    }

    /// Runs one command on one server, and gives its answer or its error.
    pub(super) async fn command(&self, command: Cmd, node: &Node) -> Result<RedisResult<Value>> {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.add_command(command);
        let answer = self.pipeline(&pipeline, node).await?.pop();
        Ok(wire::checked(answer.unwrap_or_default()))
    }

    /// `send` is told whether a script is to be sent as such, and not by its digest.
    async fn tries<T, F: Future<Output = RedisResult<T>>>(
        &self,
        effect: Effect,
        deadline: Instant,
        send: impl Fn(Wire, bool) -> F,
    ) -> Result<Sent<T>> {
        let lane = self.lane();
        // A Cluster's client repeats a step by itself, and tells its last error only.
        let cluster = self.target().is_cluster();
        let mut was_sent = false;
        // The connection that is being used.
        let mut used = None;
        let run = async {
            let (mut last, mut as_text) = (None, false);
            for _ in 0..TRIES {
                let mut made = lane.latest(&self.maker);
                let wire = match made.wire().await {
                    Some(Ok(wire)) => wire,
                    Some(Err(error)) => {
                        let is_passing = error::next(&error) == Next::FindMaster;
                        last = Some(error);
                        if !is_passing {
                            break;
                        }
                        sleep(PAUSE).await;
                        continue;
                    }
                    None => continue,
                };
                used = Some(made.clone());
                let before = std::mem::replace(&mut was_sent, true);
                let error = match send(wire, as_text).await {
                    Ok(answer) => {
                        return Ok(Sent {
                            answer,
                            again: before,
                        });
                    }
                    Err(error) => error,
                };
                match error::next(&error) {
                    // This time it certainly did not run.
                    Next::SendScript => {
                        as_text = true;
                        was_sent = before;
                    }
                    Next::FindMaster => {
                        was_sent = before || cluster;
                        lane.forget(&made);
                        sleep(PAUSE).await;
                    }
                    Next::Reconnect => lane.forget(&made),
                    Next::Fail => return Err(error::sent(error, effect, before || cluster)),
                }
                last = Some(error);
            }
            Err(match last {
                Some(error) if was_sent => error::sent(error, effect, true),
                Some(error) => error::unsent(error),
                None => StoreError::new(StoreErrorKind::NotApplied, "redis was not reached"),
            })
        };
        if let Ok(result) = timeout_at(deadline, run).await {
            return result;
        }
        // It may stand without anybody at its other end.
        if let Some(made) = &used {
            lane.forget(made);
        }
        let after = format!("redis did not answer within {:?}", self.target().timeout);
        Err(if was_sent && effect == Effect::Write {
            let message = format!("{after}; the step may have happened");
            StoreError::new(StoreErrorKind::Unknown, message)
        } else {
            StoreError::new(StoreErrorKind::NotApplied, after)
        })
    }

    /// Forgets all connections: an answer was not the one that was asked for, or the store closes.
    pub(super) fn drop_all(&self) {
        for lane in &self.lanes {
            lane.clear();
        }
    }
}
