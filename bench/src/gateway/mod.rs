//! The gateway beside other proxies, in front of the same upstream; its claim API beside the library.

mod claims;
mod proxies;
mod semel;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_bench_report::{Goal, Measurement};

use crate::client::{CONNECTIONS, Target, latencies, rate};
use crate::disk;
use crate::run::{Run, progress};
use crate::server::{Application, Server};
use proxies::{Certificate, Proxies};

/// What is measured, what it is compared with, and what is hoped for.
const RATES: [(&str, &str, Option<Goal>); 8] = [
    ("unkeyed", "nginx", Some(Goal::RatioAtLeast(0.95))),
    ("unkeyed", "haproxy", None),
    ("unkeyed-tls", "nginx-tls", Some(Goal::RatioAtLeast(0.9))),
    ("unkeyed-tls", "haproxy-tls", None),
    ("replay", "nginx-cache", Some(Goal::RatioAtLeast(0.8))),
    ("replay", "unkeyed", None),
    ("fresh", "unkeyed", None),
    ("fresh-in-memory", "unkeyed", Some(Goal::RatioAtLeast(0.75))),
];

/// A percentile of the time that a proxy adds while nginx would keep the machine half busy, and the most that
/// ours may be of nginx's.
const LATENCIES: [(&str, f64, f64); 2] = [("p50", 0.50, 1.1), ("p99", 0.99, 1.5)];

pub(crate) fn measure(run: &Run) -> Result<()> {
    proxied(run)?;
    claims::measure(run)
}

fn proxied(run: &Run) -> Result<()> {
    let rates: Vec<_> = RATES
        .into_iter()
        .map(|(measured, other, goal)| {
            let name = format!("gateway/{measured}/beside-{other}");
            (name, measured, other, goal)
        })
        .filter(|(name, ..)| run.wants(name))
        .collect();
    let percentiles: Vec<_> = LATENCIES
        .into_iter()
        .map(|(name, part, goal)| (format!("gateway/added-{name}/beside-nginx"), part, goal))
        .filter(|(name, ..)| run.wants(name))
        .collect();
    if rates.is_empty() && percentiles.is_empty() {
        return Ok(());
    }
    let directory = disk::directory()?;
    let upstream = Server::start(Application::Plain)?;
    let certificate = Certificate::make(directory.path())?;
    let proxies = Proxies::start(directory.path(), upstream.address, &certificate)?;
    measure_rates(run, &proxies, &rates)?;
    if !percentiles.is_empty() {
        let direct = Target::plain(upstream.address);
        measure_latencies(run, &proxies, &direct, &percentiles)?;
    }
    Ok(())
}

type Row = (String, &'static str, &'static str, Option<Goal>);

fn measure_rates(run: &Run, proxies: &Proxies, rows: &[Row]) -> Result<()> {
    let mut rates = BTreeMap::new();
    for (_, measured, other, _) in rows {
        rates.insert(*measured, Vec::new());
        rates.insert(*other, Vec::new());
    }
    for round in 1..=run.rounds() {
        progress(format_args!("gateway: round {round}"));
        for (name, rates) in &mut rates {
            let (target, keys) = proxies.load(name)?;
            rates.push(rate(&target, keys, run.turn())?);
        }
    }
    let of = |name| rates.get(name).context("a load that was measured");
    for (name, measured, other, goal) in rows {
        let described = match *other {
            "unkeyed" => "the gateway, requests without a key".to_owned(),
            other => other.replacen('-', ", ", 1),
        };
        Measurement::new(name, "requests/s", of(measured)?.clone())
            .against(&described, of(other)?)
            .goal(*goal)
            .print();
    }
    Ok(())
}

fn measure_latencies(
    run: &Run,
    proxies: &Proxies,
    direct: &Target,
    percentiles: &[(String, f64, f64)],
) -> Result<()> {
    let (nginx, _) = proxies.load("nginx")?;
    let (semel, _) = proxies.load("unkeyed")?;
    let pause = half_load(&nginx, run.turn())?;
    let mut rounds = Vec::new();
    for round in 1..=run.rounds() {
        progress(format_args!("gateway: latency, round {round}"));
        let sorted = |target: &Target| -> Result<Vec<Duration>> {
            let mut all = latencies(target, pause, run.turn())?;
            all.sort_unstable();
            Ok(all)
        };
        rounds.push([sorted(&semel)?, sorted(&nginx)?, sorted(direct)?]);
    }
    for (name, part, goal) in percentiles {
        let at = |sorted: &[Duration]| -> f64 {
            let place = (sorted.len() as f64 * part) as usize;
            sorted[place.min(sorted.len() - 1)].as_secs_f64() * 1e6
        };
        let added = |proxy: usize| -> Vec<f64> {
            let rounds = rounds.iter();
            rounds.map(|it| at(&it[proxy]) - at(&it[2])).collect()
        };
        Measurement::new(name, "µs", added(0))
            .against("nginx", &added(1))
            .goal(Goal::RatioAtMost(*goal))
            .print();
    }
    Ok(())
}

/// How often a connection asks where the machine is half busy. Not half of the highest rate: that one takes many
/// requests at each wake-up, and a request that comes alone costs more than twice as much.
fn half_load(proxy: &Target, time: Duration) -> Result<Duration> {
    let most = latencies(proxy, Duration::ZERO, time)?.len();
    let mut pause = time.mul_f64(8.0 * CONNECTIONS as f64 / most as f64);
    // What a request costs depends a little on the rate.
    for _ in 0..3 {
        let before = processors()?;
        latencies(proxy, pause, time)?;
        let after = processors()?;
        let busy = (after.busy - before.busy) / (after.all - before.all);
        pause = pause.mul_f64(busy / 0.5);
    }
    Ok(pause)
}

/// The time of all processors since the machine started, in ticks.
struct Processors {
    busy: f64,
    all: f64,
}

fn processors() -> Result<Processors> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("a line for all processors")?;
    let times = line.split_whitespace().skip(1).map(str::parse);
    // user, nice, system, idle, waiting for disks, …: proc_stat(5).
    let times: Vec<f64> = times.collect::<Result<_, _>>()?;
    let idle: f64 = times.iter().skip(3).take(2).sum();
    // Guests are in user and nice as well.
    let all: f64 = times.iter().take(8).sum();
    let busy = all - idle;
    Ok(Processors { busy, all })
}
