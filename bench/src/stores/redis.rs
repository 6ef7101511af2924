//! Redis beside `redis-benchmark`'s `SET`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use semel_testkit::servers::{Redis, Server as _};

use super::{Comparison, ROW_BYTES, number_after};
use crate::report::Run;

pub(super) fn measure(run: &Run) -> Result<()> {
    // With the log synced once a second, as most run it; and at every write, as we recommend.
    for (name, sync) in [("redis-everysec", "everysec"), ("redis-always", "always")] {
        let server = Redis::start(&["--appendonly", "yes", "--appendfsync", sync])?;
        let port = server.address().port().to_string();
        Comparison {
            name,
            url: &server.url(),
            reference: "redis-benchmark SET, one connection, as many requests in flight",
            goals: [Some(0.5); 2],
        }
        .measure(run, |callers, time| set(&port, callers, time))?;
    }
    Ok(())
}

fn set(port: &str, in_flight: usize, time: Duration) -> Result<f64> {
    // It counts requests, not seconds: about as many as one connection does in that time.
    let requests = (time.as_secs_f64() * if in_flight == 1 { 8_000.0 } else { 60_000.0 }) as u64;
    let done = Command::new("redis-benchmark")
        .args([
            "-p",
            port,
            "-t",
            "set",
            "-c",
            "1",
            "--csv",
            "-r",
            "100000000",
        ])
        .args(["-P", &in_flight.to_string(), "-n", &requests.to_string()])
        .args(["-d", &ROW_BYTES.to_string()])
        .output()
        .context("redis-benchmark is not installed: run scripts/setup")?;
    let printed = String::from_utf8(done.stdout)?;
    ensure!(done.status.success(), "redis-benchmark failed: {printed}");
    number_after(&printed, "\"SET\",").context("redis-benchmark printed no rate")
}
