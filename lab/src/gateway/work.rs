//! What the clients do: ask for new things and for what others ask, retry, leave, ask for something else
//! under a used key; and in the end ask until everything has an end.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::bugs::Liar;
use super::client::{Client, Wish};
use super::records::{Call, Identity, Said};
use crate::lines::Lines;

/// Principals of each service; the first is anonymous.
const PRINCIPALS: u8 = 4;

/// What all clients share.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) seed: u64,
    pub(super) pace: Duration,
    pub(super) liar: Option<Liar>,
    /// Service and address of each gateway.
    pub(super) gateways: Vec<(u8, watch::Receiver<SocketAddr>)>,
    pub(super) calls: Lines,
    pub(super) next_call: AtomicU64,
    pub(super) next_key: AtomicU32,
    /// When the latest call was sent that did something new.
    pub(super) newest: AtomicU64,
    pub(super) asked: Mutex<Asked>,
    pub(super) stopped: AtomicBool,
    /// An identity that has no end after so long never has one.
    pub(super) settle_within: Duration,
    /// Whether "unknown" is an end.
    pub(super) holds: bool,
}

/// What was asked for, in the order in which it was first.
#[derive(Debug, Default)]
pub(super) struct Asked {
    order: Vec<Identity>,
    known: HashSet<Identity>,
}

impl Board {
    pub(super) fn next_call(&self) -> u64 {
        self.next_call.fetch_add(1, Ordering::Relaxed)
    }

    /// How many were asked for.
    pub(super) fn identities(&self) -> usize {
        self.asked.lock().order.len()
    }

    pub(super) fn address(&self, gateway: usize) -> SocketAddr {
        *self.gateways[gateway].1.borrow()
    }

    pub(super) fn note(&self, call: &Call) {
        // A run whose history cannot be written proves nothing.
        self.calls.record(call);
        if call.said.is_new() {
            self.newest.fetch_max(call.sent, Ordering::Relaxed);
        }
    }

    /// One of the gateways of a service.
    fn gateway(&self, service: u8, chance: &mut fastrand::Rng) -> usize {
        let own = |n: &usize| self.gateways[*n].0 == service;
        let all: Vec<usize> = (0..self.gateways.len()).filter(own).collect();
        chance.choice(all).unwrap_or(0)
    }

    fn fresh(&self, chance: &mut fastrand::Rng) -> Identity {
        Identity {
            service: if chance.u32(..6) == 0 { self.last() } else { 0 },
            principal: chance.u8(..PRINCIPALS),
            key: self.next_key.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The last of the services.
    fn last(&self) -> u8 {
        let services = self.gateways.iter().map(|(service, _)| *service);
        services.max().unwrap_or(0)
    }

    /// The same key, of somebody else.
    fn beside(&self, of: Identity, chance: &mut fastrand::Rng) -> Identity {
        Identity {
            service: chance.u8(..=self.last()),
            principal: chance.u8(..PRINCIPALS),
            key: of.key,
        }
    }

    fn choose(&self, chance: &mut fastrand::Rng) -> Identity {
        let fresh = self.fresh(chance);
        let mut asked = self.asked.lock();
        let all = &asked.order;
        let recent = &all[all.len().saturating_sub(12)..];
        let identity = match chance.u32(..100) {
            0..55 => None,
            55..65 => chance.choice(recent).map(|of| self.beside(*of, chance)),
            65..90 => chance.choice(recent).copied(),
            _ => chance.choice(all).copied(),
        };
        let identity = identity.unwrap_or(fresh);
        if asked.known.insert(identity) {
            asked.order.push(identity);
        }
        identity
    }

    async fn rest(&self, chance: &mut fastrand::Rng) {
        sleep(self.pace.mul_f64(2.0 * chance.f64())).await;
    }
}

/// Lets `count` clients work until they are stopped.
pub(super) fn start(board: &Arc<Board>, count: u32) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for number in 0..count {
        clients.spawn(work(board.clone(), number));
    }
    clients
}

async fn work(board: Arc<Board>, number: u32) {
    let place = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut chance = fastrand::Rng::with_seed(board.seed ^ place);
    let mut client = Client::new(number % 2 == 1);
    while !board.stopped.load(Ordering::Relaxed) {
        let identity = board.choose(&mut chance);
        let odd = chance.u32(..12) == 0;
        for _ in 0..1 + chance.u32(..4) {
            let leaves = || Duration::from_millis(chance_below(identity, 60));
            let wish = Wish {
                identity,
                odd,
                gateway: board.gateway(identity.service, &mut chance),
                leaves: (chance.u32(..15) == 0).then(leaves),
            };
            match client.call(&board, wish).await {
                // Some ask again although they know.
                Said::Answer(_) if chance.u32(..4) > 0 => break,
                Said::Problem { code, .. } if code == "mismatch" => break,
                _ => board.rest(&mut chance).await,
            }
        }
        board.rest(&mut chance).await;
    }
}

fn chance_below(identity: Identity, most: u64) -> u64 {
    u64::from(identity.key) % most + 1
}

/// Asks for everything until it has an end.
pub(super) async fn settle(board: &Arc<Board>, lanes: usize) {
    let all = Arc::new(std::mem::take(&mut *board.asked.lock()).order);
    let mut tasks = JoinSet::new();
    for lane in 0..lanes {
        let (board, all) = (board.clone(), all.clone());
        tasks.spawn(async move {
            let mut client = Client::new(lane % 2 == 1);
            let mut chance = fastrand::Rng::with_seed(board.seed ^ lane as u64);
            for identity in all.iter().skip(lane).step_by(lanes) {
                if !end(&board, &mut client, *identity, &mut chance).await {
                    // The run has failed, and needs no other example.
                    break;
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// Whether it has an end.
async fn end(
    board: &Board,
    client: &mut Client,
    identity: Identity,
    chance: &mut fastrand::Rng,
) -> bool {
    let until = Instant::now() + board.settle_within;
    let mut odd = false;
    while Instant::now() < until {
        let wish = Wish {
            identity,
            odd,
            gateway: board.gateway(identity.service, chance),
            leaves: None,
        };
        match client.call(board, wish).await {
            Said::Answer(_) => return true,
            Said::Problem { code, .. } => match code.as_str() {
                "outcome-unknown" if board.holds => return true,
                // Somebody asked for something else first.
                "mismatch" => odd = !odd,
                _ => {}
            },
            _ => {}
        }
        sleep(Duration::from_millis(20)).await;
    }
    false
}
