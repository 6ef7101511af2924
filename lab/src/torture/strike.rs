//! Faults as they happen.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_testkit::proxy;
use semel_testkit::servers::Signal;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use super::fleet::Fleet;
use super::target::Target;
use crate::base::start;
use crate::check::Trouble;
use crate::clock::{Nanos, now};
use crate::named::Named as _;
use crate::nemesis::{Fault, Lane, Planned, SHORTEST_REST, Wrong};

/// What became of the planned faults.
#[derive(Debug, Default)]
pub(crate) struct Struck {
    /// Those that hit somebody.
    pub(crate) faults: Vec<Fault>,
    /// When something was broken.
    pub(crate) troubles: Vec<Trouble>,
    /// When the first of them began.
    pub(super) first: Option<Nanos>,
}

/// Connections that broke are made anew by then.
const AFTERMATH: Nanos = 250_000_000;

impl Struck {
    /// For a run with this fault alone, which is over now.
    pub(crate) fn by(fault: Fault, from: Nanos) -> Self {
        let mut struck = Self {
            first: Some(from),
            ..Self::default()
        };
        struck.push(fault, from, None);
        struck
    }

    fn push(&mut self, fault: Fault, from: Nanos, worker: Option<u32>) {
        self.faults.push(fault);
        self.note(from, worker);
    }

    fn note(&mut self, from: Nanos, worker: Option<u32>) {
        let until = now() + AFTERMATH;
        self.troubles.push(Trouble {
            from,
            until,
            worker,
        });
    }
}

const HOUR: i64 = 3600;
/// A server's clock is set forward for good so often at most. One key in eight is kept for longer.
pub(super) const MOST_HOURS: u64 = 10;

/// How wrong a clock is to be.
fn wrong(one: &Planned, ahead: bool) -> Wrong {
    match one.fault {
        Fault::ClockDrift | Fault::ServerClockDrift => Wrong {
            times: if ahead { 1.1 } else { 0.9 },
            ..Wrong::NOT
        },
        _ => Wrong {
            by: if ahead { HOUR } else { -HOUR },
            ..Wrong::NOT
        },
    }
}

/// By chance.
const fn is_ahead(one: &Planned) -> bool {
    one.whom & 0x100 == 0
}

/// Lets the planned faults happen, from `begun` until `end`: a server that starts slowly delays
/// those after it, so that something can succeed in between, and does not prolong the run.
pub(super) async fn all(
    planned: &[Planned],
    target: &Target,
    fleet: &Mutex<Fleet>,
    begun: Instant,
    end: Instant,
) -> Result<Struck> {
    let row = |lane| async move {
        let mut struck = Struck::default();
        let mut rested = begun;
        for one in planned.iter().filter(|one| one.fault.lane() == lane) {
            sleep_until(rested.max(begun + one.at)).await;
            if Instant::now() > end {
                break;
            }
            strike(one, target, fleet, &mut struck)
                .await
                .with_context(|| format!("the fault {}", one.fault.name()))?;
            rested = Instant::now() + SHORTEST_REST;
        }
        anyhow::Ok(struck)
    };
    let [worker, server, network] = [Lane::Worker, Lane::Server, Lane::Network].map(row);
    let mut all = Struck::default();
    for struck in <[_; 3]>::from(tokio::try_join!(worker, server, network)?) {
        all.faults.extend(struck.faults);
        all.troubles.extend(struck.troubles);
        all.first = all.first.into_iter().chain(struck.first).min();
    }
    Ok(all)
}

/// Lets one happen, now.
pub(crate) async fn strike(
    one: &Planned,
    target: &Target,
    fleet: &Mutex<Fleet>,
    struck: &mut Struck,
) -> Result<()> {
    let from = now();
    struck.first.get_or_insert(from);
    let hit = match one.fault.lane() {
        Lane::Worker => return on_worker(one, fleet, from, struck).await,
        _ => on_store(one, target).await?,
    };
    match hit {
        true => struck.push(one.fault, from, None),
        false => struck.note(from, None),
    }
    Ok(())
}

async fn on_worker(
    one: &Planned,
    fleet: &Mutex<Fleet>,
    from: Nanos,
    struck: &mut Struck,
) -> Result<()> {
    if one.fault.is_of_clocks() {
        fleet
            .lock()
            .await
            .set_clock(one.whom, wrong(one, is_ahead(one)))
            .await?;
        sleep(one.lasts).await;
        fleet.lock().await.set_clock(one.whom, Wrong::NOT).await?;
        // Nothing is excused by it.
        struck.faults.push(one.fault);
    } else if one.fault == Fault::KillWorker {
        let number = fleet.lock().await.kill(one.whom).await?;
        sleep(one.lasts).await;
        fleet.lock().await.revive(number)?;
        // Its own calls are without an answer, and nobody else is the worse for it.
        struck.faults.push(one.fault);
    } else {
        let number = fleet.lock().await.pause(one.whom).await?;
        sleep(one.lasts).await;
        fleet.lock().await.resume(number)?;
        // Who was paused finds its answer late, or not at all, and asks again.
        struck.push(one.fault, from, Some(u32::try_from(number)?));
    }
    Ok(())
}

/// A fault of the server or the network, while it lasts. Whether it hit anybody.
pub(crate) async fn on_store(one: &Planned, target: &Target) -> Result<bool> {
    match one.fault.lane() {
        Lane::Server => on_server(one, target).await,
        _ => on_network(one, target).await,
    }
}

async fn on_server(one: &Planned, target: &Target) -> Result<bool> {
    let server = target.server.as_ref().context("there is no server")?;
    let nodes = server.nodes();
    let node = nodes[one.whom as usize % nodes.len()];
    if node.pid().is_none() {
        return Ok(false);
    }
    match one.fault {
        Fault::ServerClockStep | Fault::ServerClockDrift => {
            let wall = target
                .wall
                .as_ref()
                .context("the server has no clock of its own")?;
            let hours = target.hours.load(Ordering::SeqCst);
            let ahead = is_ahead(one) && hours.unsigned_abs() < MOST_HOURS;
            let Wrong { by, times } = wrong(one, ahead);
            let by = by + hours * HOUR;
            wall.set(Wrong { by, times })?;
            sleep(one.lasts).await;
            // Leases that were given out by a clock that is ahead would last for an hour after it
            // was set right.
            let hours = hours + i64::from(ahead && one.fault == Fault::ServerClockStep);
            target.hours.store(hours, Ordering::SeqCst);
            wall.set(Wrong {
                by: hours * HOUR,
                ..Wrong::NOT
            })?;
        }
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
