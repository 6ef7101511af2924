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
//! So no two groups wait for each other. What inserts and locks, or may wait for an application's
//! transaction, is sent alone.
//! An error of one step rolls back all; each is then sent alone.

mod group;
mod link;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::store::Result;
use semel::{IdentityDigest, StoreError, StoreErrorKind};
use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(crate) use self::link::{Failed, Idle, Open};

/// How often a step that the server rolled back is sent again.
const RETRIES: usize = 8;

/// How often a step is sent again whose connection broke.
const RESENDS: usize = 3;

/// So many connections are busy before steps queue.
const USUAL: usize = 2;

/// How long a step waits in the queue before one connection more is used, and then twice as long, and
/// so on: those at work may be held up by a lock, or by a slow disk.
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);

/// A step as the pool sees it.
pub(crate) trait Queued: Send + Sync + 'static {
    /// The record that it may lock; no two steps of one group have the same.
    fn digest(&self) -> Option<IdentityDigest>;

    /// Whether it is a claim that waits for inserts only.
    fn inserts(&self) -> bool;

    /// Whether it shares a transaction with no other step.
    fn alone(&self) -> bool;

    /// Whether a crash of the server may forget what it does: it shares a transaction only with such steps.
    fn is_forgettable(&self) -> bool {
        false
    }

    /// Whether it changes nothing: an error leaves nothing open.
    fn reads(&self) -> bool;

    /// Whether it may be sent again where its answer was lost.
    fn is_repeatable(&self) -> bool {
        true
    }

    /// What it takes of a group's [room](Wire::room).
    fn size(&self) -> usize {
        0
    }
}

/// What makes connections and sends on them: to a server, or to a simulated one.
pub(crate) trait Wire: Send + Sync + 'static {
    /// The server's name, and the store's, in messages.
    const SERVER: &str;
    const STORE: &str;

    type Link: Open + Send + 'static;
    type Step: Queued;
    type Answer: Send + 'static;

    /// A connection, ready for steps.
    fn connect(&self) -> impl Future<Output = Result<Self::Link>> + Send;

    /// Whether a connection that lay idle still leads to the server.
    fn is_alive(&self, _link: &mut Self::Link) -> impl Future<Output = bool> + Send {
        std::future::ready(true)
    }

    /// How long a step that was rolled back waits before it is sent again for this time, counted from
    /// 0; `None`: it is not.
    fn pause(&self, times: usize) -> Option<Duration> {
        (times < RETRIES).then_some(Duration::ZERO)
    }

    /// The most that a group of several steps may take, in bytes.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Runs one step by itself.
    fn run(
        &self,
        link: &mut Self::Link,
        step: &Self::Step,
    ) -> impl Future<Output = Result<Self::Answer, Failed>> + Send;

    /// Runs several steps as one transaction, and answers in their order.
    fn run_together(
        &self,
        link: &mut Self::Link,
        steps: &[Arc<Self::Step>],
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Failed>> + Send;
}

/// How many connections, how many steps in a group, and how long a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) group: usize,
    pub(crate) timeout: Duration,
}

/// The connections of one store.
pub(crate) struct Pool<W: Wire>(pub(crate) Arc<Shared<W>>);

pub(crate) struct Shared<W: Wire> {
    wire: Arc<W>,
    limits: Limits,
    timeout: Duration,
    pub(crate) state: Mutex<State<W>>,
}

pub(crate) struct State<W: Wire> {
    idle: Idle<W::Link>,
    // Slots in use: each has a connection or is making one.
    pub(crate) busy: usize,
    pub(crate) queue: VecDeque<Job<W>>,
    closed: bool,
}

/// A step in the queue, and where its answer goes.
pub(crate) struct Job<W: Wire> {
    step: Arc<W::Step>,
    // It was rolled back with others: send it by itself.
    alone: bool,
    fate: Arc<Fate>,
    answer: oneshot::Sender<Result<W::Answer, Failed>>,
    /// Of who waits for it.
    runtime: Handle,
}

/// Whether a queued step was sent, decided once between its caller and who sends it.
#[derive(Default)]
struct Fate(AtomicU8);

impl Fate {
    const SENT: u8 = 1;
    const GIVEN_UP: u8 = 2;

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    fn settle(&self, fate: u8) -> bool {
        self.0
            .compare_exchange(0, fate, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// What is known of the sendings of one call, through all its steps.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    in_doubt: bool,
    met_others: bool,
}

impl Sent {
    /// Whether a sending whose answer was lost may have had its effect.
    pub(crate) const fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Others came in between two of the call's steps.
    pub(crate) const fn meet_others(&mut self) {
        self.met_others = true;
    }

    pub(crate) const fn has_met_others(&self) -> bool {
        self.met_others
    }

    /// The error as the call's: one of a later step never makes an earlier sending undone, nor others unmet.
    pub(crate) fn error(&self, error: StoreError) -> StoreError {
        let error = match self.met_others {
            true => error.having_met_others(),
            false => error,
        };
        match error.kind() {
            StoreErrorKind::Unknown => error,
            _ if self.in_doubt => {
                StoreError::new(StoreErrorKind::Unknown, error.to_string()).with_source(error)
            }
            _ => error,
        }
    }
}

impl<W: Wire> Pool<W> {
    pub(crate) fn new(wire: Arc<W>, limits: impl Into<Limits>) -> Self {
        let limits = limits.into();
        Self(Arc::new(Shared {
            wire,
            limits,
            timeout: limits.timeout,
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
    pub(crate) async fn run(&self, step: W::Step, sent: &mut Sent) -> Result<W::Answer> {
        self.run_by(self.deadline(), step, sent).await
    }

    /// When a call that begins now has to end.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.0.timeout
    }

    /// The same, where the call began earlier.
    pub(crate) async fn run_by(
        &self,
        deadline: Instant,
        step: W::Step,
        sent: &mut Sent,
    ) -> Result<W::Answer> {
        let step = Arc::new(step);
        let (mut lost, mut open, mut retries) = (0, false, 0);
        let error = loop {
            match self.once(&step, retries > 0, deadline).await {
                Ok(answer) => {
                    sent.in_doubt |= lost > 0 && !step.reads();
                    return Ok(answer);
                }
                Err(Failed::RolledBack(error)) => {
                    sent.met_others |= error.met_others();
                    match self.0.wire.pause(retries) {
                        Some(pause) if Instant::now() + pause < deadline => {
                            retries += 1;
                            if !pause.is_zero() {
                                sleep(pause).await;
                            }
                        }
                        _ => break error,
                    }
                }
                Err(Failed::Lost(error)) => {
                    if lost == RESENDS || !step.is_repeatable() {
                        open = true;
                        break error;
                    }
                    lost += 1;
                }
                Err(Failed::Late(error)) => {
                    open = true;
                    break error;
                }
                Err(Failed::Unsent(error) | Failed::Refused(error) | Failed::Unreadable(error)) => {
                    break error;
                }
            }
        };
        if step.reads() {
            return Err(sent.error(error.known_not_applied()));
        }
        sent.in_doubt |= open || lost > 0;
        Err(sent.error(error))
    }

    async fn once(
        &self,
        step: &Arc<W::Step>,
        alone: bool,
        deadline: Instant,
    ) -> Result<W::Answer, Failed> {
        // Without groups there is nothing to wait for.
        let usual = match self.0.limits.group {
            1 => self.0.limits.connections,
            _ => USUAL,
        };
        let (mut slot, waiting) = {
            let mut state = self.0.state.lock();
            if state.closed {
                return Err(Failed::Unsent(closed::<W>()));
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
                        runtime: Handle::current(),
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
                    return answer.unwrap_or_else(|_| Err(given_up(&fate)));
                }
                patience *= 2;
                let more = if fate.is_open() {
                    self.take(&mut self.0.state.lock(), self.0.limits.connections)
                } else {
                    None
                };
                // It goes on with the queue.
                drop(more);
            }
            return match timeout_at(deadline, waiting).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(given_up(&fate)),
                Err(_) if fate.settle(Fate::GIVEN_UP) => Err(Failed::Unsent(StoreError::new(
                    StoreErrorKind::NotApplied,
                    format!("no connection to {} came free in time", W::SERVER),
                ))),
                Err(_) => Err(Failed::Late(unanswered::<W>())),
            };
        }
        let Some(slot) = &mut slot else {
            return Err(Failed::Unsent(closed::<W>()));
        };
        let link = match timeout_at(deadline, slot.link()).await {
            Ok(link) => link.map_err(Failed::Unsent)?,
            Err(_) => {
                return Err(Failed::Unsent(silent::<W>()));
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
                Err(Failed::Late(unanswered::<W>()))
            }
        }
    }

    pub(crate) fn wire(&self) -> &Arc<W> {
        &self.0.wire
    }

    /// A connection's slot, where fewer than `limit` are in use.
    fn take(&self, state: &mut State<W>, limit: usize) -> Option<Slot<W>> {
        if state.closed || state.busy >= limit.min(self.0.limits.connections) {
            return None;
        }
        state.busy += 1;
        Some(Slot {
            shared: self.0.clone(),
            link: state.idle.pop(),
            on_its_way: None,
        })
    }

    /// Gives up the connections, and returns those that nobody uses. Steps under way are done by then.
    pub(crate) fn close(&self) -> Vec<W::Link> {
        let mut state = self.0.state.lock();
        state.closed = true;
        std::mem::take(&mut state.idle).into_links()
    }
}

pub(crate) fn late(message: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Unknown, message)
}

fn unanswered<W: Wire>() -> StoreError {
    late(format!("{} did not answer in time", W::SERVER))
}

/// Nothing was sent: nobody answered.
pub(crate) fn silent<W: Wire>() -> StoreError {
    let message = format!("{} does not answer to a new connection", W::SERVER);
    StoreError::new(StoreErrorKind::NotApplied, message)
}

pub(crate) fn closed<W: Wire>() -> StoreError {
    let message = format!("the {} store was closed", W::STORE);
    StoreError::new(StoreErrorKind::Closed, message)
}

/// The task that had the step is gone.
fn given_up(fate: &Fate) -> Failed {
    let message = "the step was given up";
    match fate.settle(Fate::GIVEN_UP) {
        true => Failed::RolledBack(StoreError::new(StoreErrorKind::NotApplied, message)),
        false => Failed::Lost(late(message)),
    }
}

/// The right to one connection. Whoever drops it hands it to the queue.
struct Slot<W: Wire> {
    shared: Arc<Shared<W>>,
    link: Option<W::Link>,
    /// The runtime of the task that it was handed to, which has not begun.
    on_its_way: Option<runtime::Id>,
}

impl<W: Wire> Slot<W> {
    /// The task that it was handed to has begun.
    fn arrived(&mut self) {
        self.on_its_way = None;
    }

    /// The connection, made where there is none.
    async fn link(&mut self) -> Result<&mut W::Link> {
        if let Some(mut link) = self.link.take().filter(W::Link::is_open)
            && self.shared.wire.is_alive(&mut link).await
        {
            return Ok(self.link.insert(link));
        }
        let link = self.shared.wire.connect().await?;
        Ok(self.link.insert(link))
    }

    /// Ends the connection: an answer is outstanding that nobody will wait for.
    fn discard(&mut self) {
        self.link = None;
    }
}

impl<W: Wire> Drop for Slot<W> {
    fn drop(&mut self) {
        let link = self.link.take();
        let mut state = self.shared.state.lock();
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
        let next = match self.on_its_way {
            // Of the first that waits: others may stand still, or have ended.
            None => state.queue.front().map(|job| job.runtime.clone()),
            // One that has ended drops every task before it begins.
            Some(ended) => Handle::try_current().ok().filter(|here| here.id() != ended),
        };
        let Some(next) = next else {
            // Who waits learns that nothing was sent.
            state.busy -= 1;
            let queue = std::mem::take(&mut state.queue);
            drop(state);
            drop(queue);
            return;
        };
        drop(state);
        // The slot goes on in a task of its own, which ends when nothing is queued.
        let slot = Self {
            shared: self.shared.clone(),
            link,
            on_its_way: Some(next.id()),
        };
        next.spawn(group::drain(slot));
    }
}
