//! Processes of one kind, and what happens to them until it is calm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::guard::Guard;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::wire::Wire;
use super::world::{Process, World, millis};

/// Within this much virtual time after the last fault all must have come to its end.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// What runs in a process.
pub(super) trait Runs: Clone + Send + Sync + 'static {
    fn guard(&self) -> &Guard<Wire>;

    /// Returns when nothing runs any more.
    fn drain(&self) -> impl Future<Output = ()> + Send {
        self.guard().drain()
    }
}

/// A process and what runs in it.
#[derive(Clone)]
pub(super) struct Node<T> {
    pub(super) process: Arc<Process>,
    pub(super) runs: T,
    drains: Arc<AtomicBool>,
}

type Start<T> = dyn Fn(&Arc<Process>) -> T + Send + Sync;

/// All processes of a seed, those that are gone among them.
pub(super) struct Fleet<T> {
    world: World,
    lease: Duration,
    calm_from: Instant,
    start: Box<Start<T>>,
    nodes: Mutex<Vec<Node<T>>>,
}

impl<T: Runs> Fleet<T> {
    pub(super) fn new(
        world: &World,
        lease: Duration,
        calm_from: Instant,
        start: impl Fn(&Arc<Process>) -> T + Send + Sync + 'static,
    ) -> Self {
        Self {
            world: world.clone(),
            lease,
            calm_from,
            start: Box::new(start),
            nodes: Mutex::default(),
        }
    }

    /// Starts one more.
    pub(super) fn start(&self) -> Node<T> {
        let mut nodes = self.nodes.lock();
        let process = Process::new(u32::try_from(nodes.len()).unwrap_or(u32::MAX) + 1);
        let node = Node {
            runs: (self.start)(&process),
            process,
            drains: Arc::default(),
        };
        nodes.push(node.clone());
        node
    }

    /// One that takes calls.
    pub(super) fn any(&self) -> Option<Node<T>> {
        let nodes = self.nodes.lock();
        let is_up =
            |node: &&Node<T>| !node.process.is_dead() && !node.drains.load(Ordering::Relaxed);
        let up: Vec<_> = nodes.iter().filter(is_up).collect();
        match up.len() {
            0 => None,
            many => Some(up[self.world.draw(|chance| chance.usize(..many))].clone()),
        }
    }

    /// Processes die, stand still and drain until it is calm. Others take their places.
    async fn trouble(&self) {
        let lease = millis(self.lease);
        loop {
            let pause = self.world.millis(lease / 4..lease * 5);
            if Instant::now() + pause >= self.calm_from {
                return;
            }
            sleep(pause).await;
            let Some(node) = self.any() else {
                self.start();
                continue;
            };
            let (process, number) = (&node.process, node.process.number);
            match self.world.draw(|chance| chance.u32(..4)) {
                0 => {
                    self.world.saw("process died");
                    self.world.say(|| format!("process {number} dies"));
                    process.die();
                }
                1 => {
                    self.world.saw("process drained");
                    node.drains.store(true, Ordering::Relaxed);
                    tokio::spawn(drain(self.world.clone(), node));
                }
                _ => {
                    let time = self.world.millis(lease / 3..lease * 3);
                    self.world.saw("process stood still");
                    self.world
                        .say(|| format!("process {number} stands still for {time:?}"));
                    process.pause(time);
                }
            }
        }
    }

    /// Clients call while processes are in trouble, where there is any; then it is calm.
    pub(super) async fn until_calm(
        &self,
        calm_from: Instant,
        in_trouble: bool,
        clients: Vec<JoinHandle<()>>,
    ) {
        if in_trouble {
            self.trouble().await;
        }
        for client in clients {
            // It is no part of what is tested: its panics are the model's.
            if let Err(ended) = client.await {
                self.world.wrong(format!("a client of the model: {ended}"));
            }
        }
        sleep_until(calm_from).await;
        self.world.say(|| "calm".into());
    }

    /// What a client is told; nothing where the process dies before, or the client goes away, as some do.
    pub(super) async fn told<A>(
        &self,
        node: &Node<T>,
        may_leave: bool,
        asked: impl Future<Output = A>,
    ) -> Option<A> {
        let leaves = self.world.one_in(3) && may_leave;
        let patience = match leaves {
            true => self.world.millis(0..millis(self.lease) * 2),
            false => PATIENCE,
        };
        tokio::select! {
            biased;
            () = node.process.died() => None,
            told = asked => Some(told),
            () = sleep(patience) => {
                self.world.saw("client went away");
                if !leaves {
                    self.world.wrong("a call was not answered in five minutes");
                }
                None
            }
        }
    }

    /// Attempts go on until they end, and what the store was not told is told.
    pub(super) async fn settled(&self) {
        let nodes = self.nodes.lock().clone();
        let works = |node: &Node<T>| {
            let guard = node.runs.guard();
            !node.process.is_dead() && (guard.unsettled() > 0 || guard.running() > 0)
        };
        let settled = async {
            while nodes.iter().any(works) {
                sleep(Duration::from_millis(500)).await;
            }
        };
        if timeout(PATIENCE, settled).await.is_err() {
            self.world
                .wrong("something is not settled five minutes after the last fault");
        }
    }

    /// Nothing of it goes on.
    pub(super) fn end(&self) {
        for node in self.nodes.lock().iter() {
            node.process.die();
        }
    }
}

async fn drain<T: Runs>(world: World, node: Node<T>) {
    let number = node.process.number;
    world.say(|| format!("process {number} drains"));
    let drained = timeout(PATIENCE, node.runs.drain()).await;
    if drained.is_err() && !node.process.is_dead() {
        world.wrong("a process was not drained in five minutes");
    }
    world.say(|| format!("process {number} has drained"));
    node.process.die();
}
