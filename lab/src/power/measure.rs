//! One cut of the power: before, during, after.

use std::collections::BTreeSet;
use std::ops::AddAssign;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use semel::store::Claim;
use semel::{AnyStore, Store as _, StoreError};
use semel_stores::OpenOptions;
use semel_testkit::servers::Node;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::callers::{self, Heard, Said};
use super::disk::Disk;
use super::setup::{Running, Setup};
use crate::part::Part;
use crate::process::Process;
use crate::worker::process::open;

/// What came of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Completions that were acknowledged before the power went.
    pub acknowledged: usize,
    /// Those of them that are not replayed afterwards, byte for byte.
    pub lost: usize,
    /// Completions that were under way, or answered "unknown".
    pub unknown: usize,
    /// Those of them that are replayed afterwards.
    pub unknown_kept: usize,
    /// Why the store could not be used afterwards: it replays nothing then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl AddAssign for Measured {
    fn add_assign(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.lost += other.lost;
        self.unknown += other.unknown;
        self.unknown_kept += other.unknown_kept;
        self.error = self.error.take().or(other.error);
    }
}

// Until signals have reached processes that another processor runs.
const ARRIVED: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(60);
const ASKERS: usize = 16;

/// Lets callers complete identities for so long, cuts the power, and looks what is still there.
pub(super) async fn measure(
    setup: &Setup,
    folder: &Path,
    place: &Path,
    length: Duration,
) -> Result<Measured> {
    let mut disk = Disk::mount(folder, place)?;
    let running = setup.start(place)?;
    semel_stores::migrate(&running.url, &OpenOptions::default())
        .await
        .context("the store cannot be prepared")?;
    // It was made long ago; what counts is what is done from now on.
    disk.sync()?;

    let mut callers = Process::start(&Part::PowerLossCallers(running.url.clone()))?;
    let mut heard = Heard::default();
    heard.listen(&mut callers, length).await?;
    cut(&mut disk, &running, callers, &mut heard).await?;
    let mut measured = Measured {
        acknowledged: heard.acknowledged.len(),
        unknown: heard.unknown.len(),
        ..Measured::default()
    };
    let after = async {
        start_again(&running)?;
        let store = open(&running.url).await?;
        let replayed = replayed(&store, heard.acknowledged).await?;
        measured.lost = measured.acknowledged - replayed;
        measured.unknown_kept = self::replayed(&store, heard.unknown).await?;
        store.close().await?;
        anyhow::Ok(())
    };
    if let Err(error) = after.await {
        measured.error = Some(format!("{error:#}"));
        measured.lost = measured.acknowledged;
    }
    Ok(measured)
}

fn nodes(running: &Running) -> Vec<&Node> {
    let server = running.server.as_ref();
    server.map(|server| server.nodes()).unwrap_or_default()
}

/// Cuts the power of all nodes at once, and lets the disk come back with what it had.
async fn cut(
    disk: &mut Disk,
    running: &Running,
    mut callers: Process,
    heard: &mut Heard,
) -> Result<()> {
    let nodes = nodes(running);
    for node in &nodes {
        node.pause();
    }
    if nodes.is_empty() {
        callers.signal(Signal::STOP)?;
    }
    sleep(ARRIVED).await;
    let image = disk.cut();
    // What is acknowledged after this is not heard: nobody is served before.
    for said in callers.kill::<Said>().await? {
        heard.take(said);
    }
    for node in &nodes {
        // PostgreSQL's other processes notice by themselves that the first is gone, if they run.
        node.resume();
        node.kill();
    }
    disk.restore(image?)
}

fn start_again(running: &Running) -> Result<()> {
    let nodes = nodes(running);
    for node in &nodes {
        node.launch()?;
    }
    match nodes.as_slice() {
        [node] => node.wait_until_ready(),
        // A cluster may serve although one of its nodes does not call itself healthy.
        _ => Ok(()),
    }
}

/// How many of these completions are replayed.
async fn replayed(store: &AnyStore, keys: BTreeSet<u64>) -> Result<usize> {
    let keys: Vec<u64> = keys.into_iter().collect();
    let mut askers = tokio::task::JoinSet::new();
    for part in keys.chunks(keys.len().div_ceil(ASKERS).max(1)) {
        let (store, part) = (store.clone(), part.to_vec());
        askers.spawn(async move {
            let mut found = 0;
            for key in part {
                let answer = asked(&store, key).await?;
                let wanted = callers::outcome(key);
                found += usize::from(
                    matches!(answer, Claim::Completed { outcome, .. } if outcome == wanted),
                );
            }
            Ok::<_, StoreError>(found)
        });
    }
    let mut found = 0;
    while let Some(ended) = askers.join_next().await {
        found += ended?.context("asking for what was acknowledged")?;
    }
    Ok(found)
}

async fn asked(store: &AnyStore, key: u64) -> Result<Claim, StoreError> {
    let end = Instant::now() + PATIENCE;
    loop {
        match callers::claim(store, key).await {
            Err(_) if Instant::now() < end => {
                sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}
