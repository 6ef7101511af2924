//! Processes of one kind, and what happens to them until it is calm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::world::{Process, World};

/// Within this much virtual time after the last fault all must have come to its end.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// What runs in a process.
pub(super) trait Runs: Clone + Send + 'static {
    /// Returns when nothing runs any more.
    fn drain(&self) -> impl Future<Output = ()> + Send;
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

    pub(super) fn all(&self) -> Vec<Node<T>> {
        self.nodes.lock().clone()
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
    pub(super) async fn trouble(&self) {
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(1000);
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
