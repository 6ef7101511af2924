//! Faults as they happen: to the store, the gateways and the upstream, side by side.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use super::bugs::Bug;
use super::judge::{Exit, Place, Trouble};
use super::process::{Gateway, Upstream};
use super::upstream::Mood;
use super::work::Board;
use crate::clock::{Nanos, nanos, now};
use crate::named::Named as _;
use crate::nemesis::{Fault, Lane, Planned};
use crate::torture::{Target, on_store};

/// A store that is back is used again by then, a gateway or an upstream that is back as well.
pub(super) const AFTERMATH: Nanos = 1_000_000_000;

/// What there is to be broken.
pub(super) struct Scene {
    pub(super) target: Target,
    pub(super) gateways: Vec<Mutex<Gateway>>,
    pub(super) upstream: Mutex<Upstream>,
    pub(super) bug: Option<Bug>,
}

/// What became of the planned faults.
#[derive(Debug, Default)]
pub(super) struct Struck {
    pub(super) faults: Vec<Fault>,
    pub(super) troubles: Vec<Trouble>,
    pub(super) exits: Vec<Exit>,
}

/// Lets the planned faults happen, from `begun` until `end`. Those of the store come one after the other,
/// and whatever was broken is then well for as long as it was not: what the gateways do in a trouble is
/// excused.
pub(super) async fn all(
    planned: &[Planned],
    scene: &Scene,
    board: &Board,
    begun: Instant,
    end: Instant,
) -> Result<Struck> {
    let struck = Mutex::new(Struck::default());
    let row = async |lanes: &[Lane]| {
        let own = |one: &&Planned| lanes.contains(&one.fault.lane());
        for one in fairly(planned.iter().filter(own)) {
            sleep_until(begun + one.at).await;
            let from = Instant::now();
            if from + one.lasts > end {
                break;
            }
            strike(one, scene, &struck)
                .await
                .with_context(|| format!("the fault {}", one.fault.name()))?;
            sleep(Duration::from_nanos(AFTERMATH)).await;
            if lanes == STORE {
                elected(scene.target.elects(), board).await;
            }
            sleep(from.elapsed()).await;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(row(STORE), row(&[Lane::Gateway]), row(&[Lane::Upstream]))?;
    Ok(struck.into_inner())
}

/// Every kind before any comes up again: there is room for fewer than were planned.
fn fairly<'a>(planned: impl Iterator<Item = &'a Planned>) -> Vec<&'a Planned> {
    let mut turns: HashMap<Fault, usize> = HashMap::new();
    let mut all: Vec<_> = planned
        .map(|one| {
            let turn = turns.entry(one.fault).or_default();
            *turn += 1;
            (*turn, one)
        })
        .collect();
    all.sort_by_key(|(turn, _)| *turn);
    all.into_iter().map(|(_, one)| one).collect()
}

const STORE: &[Lane] = &[Lane::Server, Lane::Network];

/// A store that elects a leader has one: something new was done, or it took as long as it may.
async fn elected(within: Duration, board: &Board) {
    if within.is_zero() {
        return;
    }
    let (from, until) = (now(), now() + nanos(within));
    while board.newest.load(Ordering::Relaxed) < from && now() < until {
        sleep(Duration::from_millis(20)).await;
    }
    sleep(Duration::from_nanos(AFTERMATH)).await;
}

async fn strike(one: &Planned, scene: &Scene, struck: &Mutex<Struck>) -> Result<()> {
    let from = now();
    let (hit, place) = match one.fault.lane() {
        Lane::Gateway => {
            let number = one.whom as usize % scene.gateways.len();
            let code = on_gateway(one, scene, number).await?;
            if let Some(code) = code {
                struck.lock().await.exits.push(Exit {
                    gateway: number,
                    from,
                    until: now(),
                    code,
                });
            }
            (true, Place::Gateway(number))
        }
        Lane::Upstream => {
            on_upstream(one, scene).await?;
            (true, Place::Upstream)
        }
        _ => (on_store(one, &scene.target).await?, Place::Store),
    };
    let mut struck = struck.lock().await;
    if hit {
        struck.faults.push(one.fault);
    }
    struck.troubles.push(Trouble {
        from,
        until: now() + AFTERMATH,
        place,
    });
    Ok(())
}

/// The exit code of a gateway that was asked to end.
async fn on_gateway(one: &Planned, scene: &Scene, number: usize) -> Result<Option<Option<i32>>> {
    let mut gateway = scene.gateways[number].lock().await;
    match one.fault {
        Fault::PauseGateway => {
            gateway.signal(Signal::STOP)?;
            sleep(one.lasts).await;
            gateway.signal(Signal::CONT)?;
            Ok(None)
        }
        Fault::RestartGateway => {
            let code = gateway.terminate().await?.code();
            sleep(one.lasts).await;
            gateway.revive().await?;
            let planted = scene.bug == Some(Bug::EndsBadly);
            Ok(Some(if planted { Some(1) } else { code }))
        }
        _ => {
            gateway.kill().await?;
            sleep(one.lasts).await;
            gateway.revive().await?;
            Ok(None)
        }
    }
}

async fn on_upstream(one: &Planned, scene: &Scene) -> Result<()> {
    let mut upstream = scene.upstream.lock().await;
    let mood = match one.fault {
        Fault::HangUpstream => Mood::Hangs,
        Fault::CutUpstream => Mood::Cuts,
        Fault::FailUpstream => Mood::Fails,
        _ => {
            upstream.kill().await?;
            sleep(one.lasts).await;
            return upstream.revive().await;
        }
    };
    upstream.be(mood).await?;
    sleep(one.lasts).await;
    upstream.be(Mood::Well).await
}

/// Notes when the machine itself stood still: nobody's renewals go out then. Runs until its task ends.
pub(super) async fn watch(lease: Duration, stalls: Arc<parking_lot::Mutex<Vec<Trouble>>>) {
    const TICK: Duration = Duration::from_millis(20);
    loop {
        let (from, before) = (now(), Instant::now());
        sleep(TICK).await;
        if before.elapsed() > TICK + lease / 4 {
            stalls.lock().push(Trouble {
                from,
                until: now() + AFTERMATH,
                place: Place::Machine,
            });
        }
    }
}
