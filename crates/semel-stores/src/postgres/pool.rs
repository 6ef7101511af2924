//! The connections, who uses which, and what waits for one.
//!
//! A caller that finds fewer than [`USUAL`] connections busy uses one itself: no queue, no other
//! task. Else its step is queued, and the next connection that comes free takes all that is queued
//! as one transaction: one commit, and one wait for the disk, for many steps. So a group is as large
//! as the load makes it. Two connections take turns, one at work while the other waits for the disk;
//! more of them make groups smaller and steps dearer, and are used where a step waited too long.
//!
//! No two steps of a group have the same digest. New claims come first: they wait for inserts only,
//! and nobody waits for what they inserted but them. The others follow, in the order of digests.
//! So no two groups wait for each other. A claim in full, which inserts and locks, is sent alone, and
//! so is a versioned write, which may wait for an application's transaction.
//! An error of one step rolls back all; each is then sent alone.

#[cfg(test)]
mod simulation;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::connect::{Connector, Idle, Link, Open, silent};
use super::error::Failed;
use super::group;
use super::row::Columns;
use super::step::Step;

/// How often a step that the server rolled back is sent again.
const RETRIES: usize = 8;

/// How often a step is sent again whose connection broke.
const RESENDS: usize = 3;

/// So many connections are busy before steps queue.
const USUAL: usize = 2;

/// How long a step waits in the queue before one connection more is used, and then twice as long, and
/// so on: those at work may be held up by a lock, or by a slow disk.
const PATIENCE: Duration = Duration::from_millis(10);

/// What makes connections and sends on them: to PostgreSQL, or to a simulated server.
pub(super) trait Wire: Send + Sync + 'static {
    type Link: Open + Send + Sync + 'static;
    type Row: Columns + Send + 'static;

    /// A connection, ready for steps.
    fn connect(&self) -> impl Future<Output = Result<Self::Link>> + Send;

    /// Runs one statement. On its first poll it is sent.
    fn run(
        &self,
        link: &Self::Link,
        step: &Step,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Failed>> + Send;

    /// Runs a statement without parameters or rows. On its first poll it is sent.
    fn simple(
        &self,
        link: &Self::Link,
        text: &str,
    ) -> impl Future<Output = Result<(), Failed>> + Send;
}

/// The connections of one store.
pub(super) struct Pool<W: Wire = Connector>(Arc<Shared<W>>);

pub(super) struct Shared<W: Wire> {
    pub(super) wire: Arc<W>,
    connections: usize,
    pub(super) group: usize,
    pub(super) timeout: Duration,
    runtime: Handle,
    pub(super) state: Mutex<State<W>>,
}

pub(super) struct State<W: Wire> {
    idle: Idle<W::Link>,
    // Slots in use: each has a connection or is making one.
    busy: usize,
    pub(super) queue: VecDeque<Job<W::Row>>,
    closed: bool,
}

/// A step in the queue, and where its rows go.
pub(super) struct Job<R> {
    pub(super) step: Arc<Step>,
    // It was rolled back with others: send it by itself.
    pub(super) alone: bool,
    pub(super) fate: Arc<Fate>,
    pub(super) answer: oneshot::Sender<Result<Vec<R>, Failed>>,
}

/// Whether a queued step was sent, decided once between its caller and who sends it.
#[derive(Default)]
pub(super) struct Fate(AtomicU8);

impl Fate {
    pub(super) const SENT: u8 = 1;
    const GIVEN_UP: u8 = 2;

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    pub(super) fn settle(&self, fate: u8) -> bool {
        self.0
            .compare_exchange(0, fate, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// What is known of the sendings of one call, through all its steps.
#[derive(Debug, Default)]
pub(super) struct Sent {
    in_doubt: bool,
}

impl Sent {
    /// Whether a sending whose answer was lost may have had its effect.
    pub(super) const fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// The error as the call's: one of a later step never makes an earlier sending undone.
    pub(super) fn error(&self, error: StoreError) -> StoreError {
        match error.kind() {
            StoreErrorKind::Unknown => error,
            _ if self.in_doubt => again(StoreErrorKind::Unknown, error),
            _ => error,
        }
    }
}

impl<W: Wire> Pool<W> {
    pub(super) fn new(wire: Arc<W>, options: &super::PostgresOptions) -> Self {
        Self(Arc::new(Shared {
            wire,
            connections: options.connections,
            group: options.group,
            timeout: options.timeout,
            runtime: Handle::current(),
            state: Mutex::new(State {
                idle: Idle::default(),
                busy: 0,
                queue: VecDeque::new(),
                closed: false,
            }),
        }))
    }

    /// Runs a step, within the time that a call has. Sent again where the server rolled it back,
    /// and where the connection broke: the nonce or token in it makes that the same step. `sent` is
    /// one for all steps of a call.
    ///
    /// # Errors
    /// `Unknown` where any sending of it, or of an earlier step, may have happened.
    pub(super) async fn run(&self, step: Step, sent: &mut Sent) -> Result<Vec<W::Row>> {
        let step = Arc::new(step);
        let deadline = Instant::now() + self.0.timeout;
        let (mut lost, mut late, mut retries) = (0, false, 0);
        let error = loop {
            match self.once(&step, retries > 0, deadline).await {
                Ok(rows) => {
                    sent.in_doubt |= lost > 0 && !step.kind.reads();
                    return Ok(rows);
                }
                Err(Failed::RolledBack(error)) if retries == RETRIES => break error,
                Err(Failed::RolledBack(_)) => retries += 1,
                Err(Failed::Lost(error)) if lost == RESENDS => break error,
                Err(Failed::Lost(_)) => lost += 1,
                Err(Failed::Late(error)) => {
                    late = true;
                    break error;
                }
                Err(Failed::Unsent(error) | Failed::Refused(error) | Failed::Unreadable(error)) => {
                    break error;
                }
            }
        };
        if step.kind.reads() {
            return Err(sent.error(match error.kind() {
                StoreErrorKind::Unknown => again(StoreErrorKind::NotApplied, error),
                _ => error,
            }));
        }
        sent.in_doubt |= late || lost > 0;
        Err(sent.error(error))
    }

    async fn once(
        &self,
        step: &Arc<Step>,
        alone: bool,
        deadline: Instant,
    ) -> Result<Vec<W::Row>, Failed> {
        // Without groups there is nothing to wait for.
        let usual = match self.0.group {
            1 => self.0.connections,
            _ => USUAL,
        };
        let (mut slot, waiting) = {
            let mut state = self.0.state.lock();
            if state.closed {
                return Err(Failed::Unsent(closed()));
            }
            match self.take(&mut state, usual) {
                Some(slot) => (Some(slot), None),
                None => {
                    let (answer, waiting) = oneshot::channel();
                    let fate = Arc::new(Fate::default());
                    state.queue.push_back(Job {
                        step: step.clone(),
                        alone,
                        fate: fate.clone(),
                        answer,
                    });
                    (None, Some((waiting, fate)))
                }
            }
        };
        if let Some((mut waiting, fate)) = waiting {
            let mut patience = PATIENCE;
            // Once would not do: the connection that this step asks for may be taken by another one
            // that is before it, and held up as well.
            while fate.is_open() && Instant::now() + patience < deadline {
                if let Ok(answer) = timeout(patience, &mut waiting).await {
                    return answer.unwrap_or_else(|_| Err(given_up()));
                }
                patience *= 2;
                let more = if fate.is_open() {
                    self.take(&mut self.0.state.lock(), self.0.connections)
                } else {
                    None
                };
                if let Some(slot) = more {
                    self.0.runtime.spawn(group::drain(slot));
                }
            }
            return match timeout_at(deadline, waiting).await {
                Ok(Ok(answer)) => answer,
                // The task that had it is gone with its runtime.
                Ok(Err(_)) => Err(given_up()),
                Err(_) if fate.settle(Fate::GIVEN_UP) => Err(Failed::Unsent(StoreError::new(
                    StoreErrorKind::NotApplied,
                    "no connection to PostgreSQL came free in time",
                ))),
                Err(_) => Err(Failed::Late(late("PostgreSQL did not answer in time"))),
            };
        }
        let Some(slot) = &mut slot else {
            return Err(Failed::Unsent(closed()));
        };
        let link = match timeout_at(deadline, slot.link()).await {
            Ok(link) => link.map_err(Failed::Unsent)?,
            Err(_) => {
                return Err(Failed::Unsent(silent()));
            }
        };
        match timeout_at(deadline, self.0.wire.run(link, step)).await {
            Ok(Err(Failed::Lost(error))) => {
                slot.discard();
                Err(Failed::Lost(error))
            }
            Ok(answer) => answer,
            Err(_) => {
                slot.discard();
                Err(Failed::Late(late("PostgreSQL did not answer in time")))
            }
        }
    }

    /// A connection's slot, where fewer than `limit` are in use.
    fn take(&self, state: &mut State<W>, limit: usize) -> Option<Slot<W>> {
        if state.closed || state.busy >= limit.min(self.0.connections) {
            return None;
        }
        state.busy += 1;
        Some(Slot {
            shared: self.0.clone(),
            link: state.idle.pop(),
            on_its_way: false,
        })
    }

    /// Gives up the connections. Steps under way are done by then.
    pub(super) fn close(&self) {
        let links = {
            let mut state = self.0.state.lock();
            state.closed = true;
            std::mem::take(&mut state.idle)
        };
        drop(links);
    }
}

impl Pool {
    pub(super) fn connector(&self) -> &Connector {
        &self.0.wire
    }

    /// A connection for whoever needs more than a step.
    pub(super) async fn link(&self) -> Result<Link> {
        self.0.wire.connect_bare().await
    }
}

pub(super) fn late(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unknown, message)
}

pub(super) fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Closed, "the postgres store was closed")
}

fn given_up() -> Failed {
    Failed::Lost(late("the step was given up"))
}

/// The same error with another kind.
fn again(kind: StoreErrorKind, error: StoreError) -> StoreError {
    StoreError::new(kind, error.to_string()).with_source(error)
}

/// The right to one connection. Whoever drops it hands it to the queue.
pub(super) struct Slot<W: Wire> {
    pub(super) shared: Arc<Shared<W>>,
    pub(super) link: Option<W::Link>,
    /// Handed to a task that has not begun.
    on_its_way: bool,
}

impl<W: Wire> Slot<W> {
    /// The task that it was handed to has begun.
    pub(super) fn arrived(&mut self) {
        self.on_its_way = false;
    }

    /// The connection, made where there is none.
    pub(super) async fn link(&mut self) -> Result<&W::Link> {
        let link = match self.link.take().filter(W::Link::is_open) {
            Some(link) => link,
            None => self.shared.wire.connect().await?,
        };
        Ok(self.link.insert(link))
    }

    /// Ends the connection: an answer is outstanding that nobody will wait for.
    pub(super) fn discard(&mut self) {
        self.link = None;
    }
}

impl<W: Wire> Drop for Slot<W> {
    fn drop(&mut self) {
        let link = self.link.take();
        let mut state = self.shared.state.lock();
        if self.on_its_way {
            // The runtime has ended, and drops every task before it begins: the next one too. Who
            // waits learns that the step was given up.
            state.closed = true;
            let queue = std::mem::take(&mut state.queue);
            drop(state);
            drop(queue);
            return;
        }
        if state.queue.is_empty() || state.closed {
            state.busy -= 1;
            match link {
                Some(link) if !state.closed => state.idle.push(link),
                dropped => {
                    drop(state);
                    drop(dropped);
                }
            }
            return;
        }
        drop(state);
        // The slot goes on in a task of its own, which ends when nothing is queued.
        let slot = Self {
            shared: self.shared.clone(),
            link,
            on_its_way: true,
        };
        self.shared.runtime.spawn(group::drain(slot));
    }
}
