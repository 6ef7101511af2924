//! Faults as they happen.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_testkit::proxy;
use semel_testkit::servers::{Node, Signal};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use super::fleet::Fleet;
use super::target::Target;
use crate::nemesis::{Fault, Lane, Planned};

/// How often each fault struck: one that was planned and hit nobody does not count.
pub(crate) type Struck = BTreeMap<Fault, usize>;

/// Lets the planned faults happen, from `begun` until `end`: a server that starts slowly delays
/// those after it, and does not prolong the run.
pub(super) async fn all(
    planned: &[Planned],
    target: &Target,
    fleet: &Mutex<Fleet>,
    begun: Instant,
    end: Instant,
) -> Result<Struck> {
    let workers = |p: &&Planned| p.fault.lane() == Lane::Worker;
    let (own, others): (Vec<Planned>, Vec<Planned>) = planned.iter().partition(workers);
    let row = |planned: Vec<Planned>| async move {
        let mut struck = Struck::new();
        for one in planned {
            sleep_until(begun + one.at).await;
            if Instant::now() > end {
                break;
            }
            let hit = strike(&one, target, fleet)
                .await
                .with_context(|| format!("the fault {}", one.fault.name()))?;
            if hit {
                *struck.entry(one.fault).or_default() += 1;
            }
        }
        anyhow::Ok(struck)
    };
    let (mut struck, others) = tokio::try_join!(row(own), row(others))?;
    struck.extend(others);
    Ok(struck)
}

async fn strike(one: &Planned, target: &Target, fleet: &Mutex<Fleet>) -> Result<bool> {
    match one.fault.lane() {
        Lane::Worker => on_worker(one, fleet).await,
        Lane::Server => on_server(one, target).await,
        Lane::Network => on_network(one, target).await,
    }
}

async fn on_worker(one: &Planned, fleet: &Mutex<Fleet>) -> Result<bool> {
    match one.fault {
        Fault::KillWorker => {
            let number = fleet.lock().await.kill(one.whom).await?;
            sleep(one.lasts).await;
            fleet.lock().await.revive(number)?;
        }
        _ => {
            let number = fleet.lock().await.pause(one.whom).await?;
            sleep(one.lasts).await;
            fleet.lock().await.resume(number)?;
        }
    }
    Ok(true)
}

async fn on_server(one: &Planned, target: &Target) -> Result<bool> {
    let server = target.server.as_ref().context("there is no server")?;
    let nodes = server.nodes();
    let node = nodes[one.whom as usize % nodes.len()];
    if node.pid().is_none() {
        return Ok(false);
    }
    match one.fault {
        Fault::PauseServer => {
            node.pause();
            sleep(one.lasts).await;
            node.resume();
        }
        fault => {
            let signal = match fault {
                Fault::RestartServer if target.is_postgres() => Some(Signal::QUIT),
                Fault::RestartServer => Some(Signal::TERM),
                _ => None,
            };
            tokio::task::block_in_place(|| match signal {
                Some(signal) => node.end(signal),
                None => node.kill(),
            });
            sleep(one.lasts).await;
            tokio::task::block_in_place(|| start(node))?;
        }
    }
    Ok(true)
}

/// Starts it again. A server's children may outlive it for a moment and hold what it needs, as
/// PostgreSQL's do.
fn start(node: &Node) -> Result<()> {
    let mut tries = 0;
    while let Err(error) = node.start() {
        tries += 1;
        if tries == 20 {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

async fn on_network(one: &Planned, target: &Target) -> Result<bool> {
    let proxy = target.proxy.as_ref().context("there is no proxy")?;
    let before = proxy.hits();
    let fault = match one.fault {
        Fault::Cut => {
            let end = Instant::now() + one.lasts;
            while Instant::now() < end {
                proxy.cut();
                sleep(Duration::from_millis(60)).await;
            }
            return Ok(proxy.hits() > before);
        }
        Fault::Delay => proxy::Fault::Delay(Duration::from_millis(u64::from(one.whom % 80) + 20)),
        Fault::DropAnswers => proxy::Fault::CutAnswers,
        Fault::HalveAnswers => proxy::Fault::HalveAnswers,
        Fault::Blackhole => proxy::Fault::Blackhole,
        _ => proxy::Fault::Refuse,
    };
    proxy.set(fault);
    sleep(one.lasts).await;
    proxy.set(proxy::Fault::None);
    Ok(proxy.hits() > before)
}
