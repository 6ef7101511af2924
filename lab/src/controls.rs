//! Controls: set-ups that are known to lose what they acknowledged. A lab that sees no loss in them
//! would see none anywhere; a control passes when the loss *is* detected.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Parser as _, ValueEnum};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{Redis, Server as _};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::clock::now;
use crate::named::Named as _;
use crate::nemesis::Fault;
use crate::reasons::line;
use crate::report::Report;
use crate::torture::{self, Options, Struck, Target};

/// A set-up that loses something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// A master that pauses while its replica is promoted, and goes on serving.
    RedisEverysecFailover,
    /// One without an append-only file is killed.
    RedisNoLog,
}

/// Runs these controls, or all of them. Whether each of them showed its loss.
///
/// # Errors
/// Where one could not be run.
pub async fn run(controls: &[Control]) -> Result<bool> {
    let mut detected = true;
    for control in Control::value_variants() {
        if !controls.is_empty() && !controls.contains(control) {
            continue;
        }
        let report = match control {
            Control::RedisEverysecFailover => redis_failover().await,
            Control::RedisNoLog => redis_without_log().await,
        };
        let report = report.with_context(|| format!("the control {}", control.name()))?;
        let seen = report.lost() > 0;
        detected &= seen;
        line(&serde_json::json!({ "control": control, "detected": seen, "run": report }))?;
    }
    Ok(detected)
}

fn options() -> Result<Options> {
    let words = ["", "--store", "redis", "--seconds", "8", "--seed", "1"];
    let smaller = ["--processes", "4", "--tasks", "10", "--keys", "300"];
    Ok(Options::try_parse_from(words.into_iter().chain(smaller))?)
}

/// Redis that syncs its log each second, with a replica, and a failover as a sentinel does it to a
/// master that pauses: the replica is promoted meanwhile, the master comes back and serves whoever
/// is connected to it, until the address leads to the new one. What it acknowledged since is lost.
async fn redis_failover() -> Result<Report> {
    let log = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let master = Redis::start(&log)?;
    let port = master.address().port().to_string();
    let mut arguments = log.to_vec();
    arguments.extend(["--replicaof", "127.0.0.1", &port]);
    let replica = Redis::start(&arguments)?;
    until(
        replica.address(),
        "INFO replication",
        "master_link_status:up",
    )
    .await?;

    let proxy = Proxy::start(master.address())?;
    let target = Target::at(master.url_through(proxy.address()));
    target.prepare().await?;
    let folder = tempfile::tempdir()?;
    let faults = async |_: &_| {
        sleep(Duration::from_secs(3)).await;
        let from = now();
        master.nodes()[0].pause();
        until(replica.address(), "REPLICAOF NO ONE", "OK").await?;
        sleep(Duration::from_millis(300)).await;
        master.nodes()[0].resume();
        sleep(Duration::from_secs(2)).await;
        proxy.lead_to(replica.address());
        Ok(Struck::by(Fault::Failover, from))
    };
    torture::through(&options()?, &target, folder.path(), faults).await
}

/// Redis without a log, killed and started again: everything is lost.
async fn redis_without_log() -> Result<Report> {
    let server = Redis::start(&["--appendonly", "no"])?;
    let target = Target::at(server.url());
    target.prepare().await?;
    let folder = tempfile::tempdir()?;
    let faults = async |_: &_| {
        sleep(Duration::from_secs(4)).await;
        let from = now();
        let node = server.nodes()[0];
        tokio::task::block_in_place(|| {
            node.kill();
            node.start()
        })?;
        Ok(Struck::by(Fault::KillServer, from))
    };
    torture::through(&options()?, &target, folder.path(), faults).await
}

/// Sends a Redis command until its answer has `wanted` in it.
async fn until(address: SocketAddr, command: &str, wanted: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let ask = async {
            let mut server = TcpStream::connect(address).await?;
            server
                .write_all(format!("{command}\r\n").as_bytes())
                .await?;
            let mut answer = vec![0; 8 << 10];
            let read = server.read(&mut answer).await?;
            std::io::Result::Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
        };
        let answer = ask.await;
        if answer.as_ref().is_ok_and(|text| text.contains(wanted)) {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{command} is not answered with {wanted}: {answer:?}");
        }
        sleep(Duration::from_millis(50)).await;
    }
}
