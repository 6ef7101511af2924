//! Controls: set-ups that are known to lose what they acknowledged. A lab that sees no loss in them
//! would see none anywhere; a control passes when the loss *is* detected.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use semel_testkit::servers::{Redis, Server as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::clock::now;
use crate::nemesis::{Fault, Switch};
use crate::report::Report;
use crate::torture::{self, Options, Struck, Target};

/// How to write the command.
pub const USAGE: &str = "controls [redis-everysec-failover] [redis-no-log]";

/// Runs the controls of these names, or all of them. Whether each of them showed its loss.
///
/// # Errors
/// Where one could not be run.
pub async fn run(names: &[String], program: &Path) -> Result<bool> {
    const ALL: [&str; 2] = ["redis-everysec-failover", "redis-no-log"];
    let mut detected = true;
    for name in names {
        if !ALL.contains(&name.as_str()) {
            bail!("there is no control {name:?}; usage: {USAGE}");
        }
    }
    let wanted = |name: &&str| names.is_empty() || names.iter().any(|n| n == name);
    for name in ALL.into_iter().filter(wanted) {
        let report = match name {
            "redis-everysec-failover" => redis_failover(program).await,
            _ => redis_without_log(program).await,
        };
        let report = report.with_context(|| format!("the control {name}"))?;
        let seen = report.lost() > 0;
        detected &= seen;
        let line = serde_json::json!({ "control": name, "detected": seen, "run": report });
        println!("{line}");
    }
    Ok(detected)
}

fn options() -> Result<Options> {
    let words = ["--store", "redis", "--seconds", "8", "--seed", "1"];
    let smaller = ["--processes", "4", "--tasks", "10", "--keys", "300"];
    let words = words.into_iter().chain(smaller).map(String::from);
    Options::parse(words)
}

/// Redis that syncs its log each second, with a replica, and a failover as a sentinel does it to a
/// master that pauses: the replica is promoted meanwhile, the master comes back and serves whoever
/// is connected to it, until the address leads to the new one. What it acknowledged since is lost.
async fn redis_failover(program: &Path) -> Result<Report> {
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

    let switch = Switch::start(master.address()).await?;
    let target = Target::at(master.url_through(switch.address()));
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
        switch.lead_to(replica.address());
        Ok(Struck::by(Fault::Failover, from))
    };
    torture::through(&options()?, &target, folder.path(), program, faults).await
}

/// Redis without a log, killed and started again: everything is lost.
async fn redis_without_log(program: &Path) -> Result<Report> {
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
    torture::through(&options()?, &target, folder.path(), program, faults).await
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
