//! Redis beside `redis-benchmark`'s `SET`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use semel_testkit::servers::{Redis, Server as _};

use super::{ROW_BYTES, Reference, compare, number_after};
use crate::run::Run;

pub(super) fn measure(run: &Run) -> Result<()> {
    // With the log synced once a second, as most run it; and at every write, as we recommend.
    for (name, sync) in [("redis-everysec", "everysec"), ("redis-always", "always")] {
        let server = Redis::start(&["--appendonly", "yes", "--appendfsync", sync])?;
        let port = server.address().port().to_string();
        let mut references = [Reference {
            name: "redis-benchmark",
            what: "redis-benchmark SET, as many in flight on one connection",
            groups: false,
            goals: [Some(0.5); 2],
            rate: Box::new(|callers, time| set(&port, callers, time)),
        }];
        compare(run, name, &server.url(), &mut references)?;
    }
    Ok(())
}

fn set(port: &str, in_flight: usize, time: Duration) -> Result<f64> {
    // It counts requests, not seconds: a short run says how many fill the time.
    let rate = requests(port, in_flight, 100 * in_flight)?;
    requests(port, in_flight, (rate * time.as_secs_f64()) as usize + 1)
}

/// How many a second it does of so many requests.
fn requests(port: &str, in_flight: usize, count: usize) -> Result<f64> {
    let done = Command::new("redis-benchmark")
        .args(["-p", port, "-t", "set", "-c", "1", "--csv"])
        .args(["-r", "100000000", "-d", &ROW_BYTES.to_string()])
        .args(["-P", &in_flight.to_string(), "-n", &count.to_string()])
        .output()
        .context("redis-benchmark is not installed: run scripts/setup")?;
    let printed = String::from_utf8(done.stdout)?;
    ensure!(done.status.success(), "redis-benchmark failed: {printed}");
    number_after(&printed, "\"SET\",").with_context(|| format!("no rate in {printed}"))
}
