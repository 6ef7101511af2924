//! The connections of a store, and how often a step is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Pipeline, Value};
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep, timeout_at};

use super::error::{self, Effect, Next};
use super::lane::{Lane, Maker};
use super::scripts::Scripts;
use super::target::Target;
use super::wire::{Answer, Call, Node, Request};

/// How often a step goes out in all: its first time, after the script was gone, after its
/// connection broke, after the server became a replica. It carries the same nonce or token each time.
const TRIES: usize = 4;

/// Between two tries while a master is looked for.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of one store.
pub(super) struct Link {
    maker: Arc<Maker>,
    timeout: Duration,
    lanes: Box<[Arc<Lane>]>,
    next: AtomicUsize,
}

impl Link {
    pub(super) fn new(target: Target, timeout: Duration, connections: usize) -> Self {
        // A Cluster's client has a connection to each node already.
        let connections = if target.is_cluster() { 1 } else { connections };
        Self {
            maker: Arc::new(Maker {
                target,
                scripts: Scripts::new(),
                timeout,
            }),
            timeout,
            lanes: (0..connections.max(1)).map(|_| Arc::default()).collect(),
            next: AtomicUsize::new(0),
        }
    }

    pub(super) fn scripts(&self) -> &Scripts {
        &self.maker.scripts
    }

    pub(super) fn target(&self) -> &Target {
        &self.maker.target
    }

    fn lane(&self) -> &Arc<Lane> {
        let turn = match self.lanes.len() {
            1 => 0,
            lanes => self.next.fetch_add(1, Ordering::Relaxed) % lanes,
        };
        &self.lanes[turn]
    }

    /// Runs a script: one round trip, unless the server does not know it, or fails.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Answer> {
        let request = Request::Call(call);
        self.tries(call.script.effect, request, call.until).await
    }

    /// Runs several commands on one server. Errors are among the answers.
    pub(super) async fn pipeline(&self, pipeline: &Pipeline, node: &Node) -> Result<Vec<Value>> {
        let request = Request::Pipeline(pipeline, node);
        let until = Instant::now() + self.timeout;
        Ok(self.tries(Effect::Read, request, until).await?.more)
    }

    async fn tries(
        &self,
        effect: Effect,
        request: Request<'_>,
        deadline: Instant,
    ) -> Result<Answer> {
        let lane = self.lane();
        // A Cluster's client repeats a step by itself, and tells its last error only.
        let cluster = self.target().is_cluster();
        let was_sent = AtomicBool::new(false);
        // The number of the connection that is being used.
        let used = Mutex::new(None);
        let run = async {
            let (mut last, mut text) = (None, false);
            for _ in 0..TRIES {
                let (number, mut wire) = match lane.wire(&self.maker).await {
                    Ok(made) => made,
                    Err(error) => match error::next(&error) {
                        Next::FindMaster => {
                            last = Some(error);
                            sleep(PAUSE).await;
                            continue;
                        }
                        _ => {
                            last = Some(error);
                            break;
                        }
                    },
                };
                *used.lock() = Some(number);
                let before = was_sent.swap(true, Ordering::Relaxed);
                let error = match wire.send(request, text).await {
                    Ok(answer) => {
                        return Ok(Answer {
                            resent: before,
                            ..answer
                        });
                    }
                    Err(error) => error,
                };
                match error::next(&error) {
                    // This time it certainly did not run.
                    Next::SendScript => {
                        text = true;
                        was_sent.store(before, Ordering::Relaxed);
                    }
                    Next::FindMaster => {
                        was_sent.store(before || cluster, Ordering::Relaxed);
                        lane.forget(number);
                        sleep(PAUSE).await;
                    }
                    Next::Reconnect => lane.forget(number),
                    Next::Fail => return Err(error::sent(error, effect, before || cluster)),
                }
                last = Some(error);
            }
            let was_sent = was_sent.load(Ordering::Relaxed);
            Err(match last {
                Some(error) if was_sent => error::sent(error, effect, true),
                Some(error) => error::unsent(error),
                None => StoreError::new(StoreErrorKind::NotApplied, "redis was not reached"),
            })
        };
        match timeout_at(deadline, run).await {
            Ok(result) => result,
            Err(_) => {
                // It may stand without anybody at its other end.
                if let Some(number) = *used.lock() {
                    lane.forget(number);
                }
                let after = format!("redis did not answer within {:?}", self.timeout);
                Err(
                    if was_sent.load(Ordering::Relaxed) && effect == Effect::Write {
                        let message = format!("{after}; the step may have happened");
                        StoreError::new(StoreErrorKind::Unknown, message)
                    } else {
                        StoreError::new(StoreErrorKind::NotApplied, after)
                    },
                )
            }
        }
    }

    /// Forgets all connections: an answer was not the one that was asked for, or the store closes.
    pub(super) fn drop_all(&self) {
        for lane in &self.lanes {
            lane.drop_wire();
        }
    }
}
