//! Several processes on one server.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use redis::{Client, cmd};
use semel::Store as _;
use semel_bench_load::workers;
use semel_testkit::servers::{Postgres, Redis, Server};

use super::turn::{Turn, Work, turn};
use super::usage::Usage;
use super::{Measured, Row, postgres, print, redis as redis_store, wants};
use crate::run::{Run, progress};
use crate::stores::{number_after, open};

/// How many processes there are, and callers in each. The last has as many callers in all as the first.
const COLUMNS: [(&str, usize, usize); 4] = [
    ("1-process", 1, 32),
    ("2-processes", 2, 32),
    ("4-processes", 4, 32),
    ("4-processes-of-8", 4, 8),
];
/// Each process has so many identities for itself in a round.
const APART: usize = 100_000_000;

const ROWS: [Row; 6] = [
    ("steps", "steps/s", None),
    ("p50", "ms", None),
    ("p99", "ms", None),
    ("processor-time", "µs a step", None),
    ("processors", "processors", None),
    ("connections", "to the server", None),
];

pub(super) fn measure(run: &Run) -> Result<()> {
    let labels = COLUMNS.map(|(label, ..)| label.to_owned());
    if wants(run, "postgres-shared", &labels, &ROWS) {
        let server = Postgres::start(&postgres::SETTINGS)?;
        let connections = || {
            let count = "SELECT count(*) FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
            Ok(postgres::psql(&server, count)?.parse()?)
        };
        let measured = rounds(run, "postgres-shared", &server, connections)?;
        print(run, "postgres-shared", &labels, &ROWS, measured);
    }
    if wants(run, "redis-shared", &labels, &ROWS) {
        let server = Redis::start(&redis_store::SETTINGS)?;
        let connections = || {
            let mut connection = Client::open(server.url())?.get_connection()?;
            let info: String = cmd("INFO").arg("clients").query(&mut connection)?;
            let all = number_after(&info, "connected_clients:");
            // Without this one.
            Ok(all.context("how many connections there are")? - 1.0)
        };
        let measured = rounds(run, "redis-shared", &server, connections)?;
        print(run, "redis-shared", &labels, &ROWS, measured);
    }
    Ok(())
}

fn rounds(
    run: &Run,
    name: &str,
    server: &dyn Server,
    connections: impl Fn() -> Result<f64>,
) -> Result<Vec<Measured>> {
    let process = server.nodes()[0].pid().context("the server runs")?;
    let mut measured = vec![Measured::new(); COLUMNS.len()];
    let mut from = 0;
    for round in 1..=run.few_rounds() {
        progress(format_args!("growth/{name}: round {round}"));
        for ((_, processes, callers), measured) in COLUMNS.into_iter().zip(&mut measured) {
            let mut peers = Vec::new();
            for _ in 0..processes {
                peers.push(Peer::start(&server.url(), from, callers, run.turn())?);
                from += APART;
            }
            for peer in &mut peers {
                peer.wait_until_ready()?;
            }
            let before = Usage::of(process)?;
            for peer in &mut peers {
                peer.begin()?;
            }
            let (mut rate, mut seconds, mut times) = (0.0, 0.0_f64, Vec::new());
            for peer in &mut peers {
                let its = peer.turn()?;
                rate += its.rate();
                seconds = seconds.max(its.seconds);
                times.extend_from_slice(its.times());
            }
            let used = Usage::of(process)?.since(&before);
            let all = Turn::new(seconds, times);
            for (what, value) in [
                ("steps", rate),
                ("p50", all.percentile(0.50)),
                ("p99", all.percentile(0.99)),
                ("processor-time", used.seconds * 1e6 / all.steps()),
                ("processors", used.seconds / seconds),
                ("connections", connections()?),
            ] {
                measured.entry(what).or_default().push(value);
            }
        }
    }
    Ok(measured)
}

/// Names the request for a process that claims and completes.
pub(crate) const PEER: &str = "peer";

/// Such a process. It ends with its input.
struct Peer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(url: &str, from: usize, callers: usize, time: Duration) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([PEER, url])
            .args([from, callers, time.as_millis() as usize].map(|it| it.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().context("a pipe")?;
        let output = BufReader::new(process.stdout.take().context("a pipe")?);
        Ok(Self {
            process,
            input,
            output,
        })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line)?;
        ensure!(read > 0, "a process that shares the store ended");
        Ok(line)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let line = self.line()?;
        ensure!(line == "ready\n", "a process said {line:?}");
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"begin\n")?)
    }

    fn turn(&mut self) -> Result<Turn> {
        let line = self.line()?;
        let mut numbers = line.split_whitespace().map(str::parse);
        let seconds = numbers.next().context("a time")??;
        Ok(Turn::new(seconds, numbers.collect::<Result<_, _>>()?))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody to tell.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The process: `URL FROM CALLERS MILLISECONDS`. Says when it is ready, is told to begin, and says how long its callers
/// worked, in seconds, and how long each step took, in milliseconds.
pub(crate) fn peer(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let url = arguments.next().context("a URL")?;
    let mut next = || anyhow::Ok(arguments.next().context("a number")?.parse::<usize>()?);
    let (mut from, callers, time) = (next()?, next()?, next()? as u64);
    let time = Duration::from_millis(time);
    workers().block_on(async {
        let store = open(&url).await?;
        // Until its connections are made.
        turn(&store, Work::Pairs, callers, time / 4, &mut from).await?;
        println!("ready");
        let mut input = std::io::stdin().lines();
        input.next().context("to begin")??;
        let done = turn(&store, Work::Pairs, callers, time, &mut from).await?;
        let times: Vec<String> = done.times().iter().map(|ms| format!("{ms:.4}")).collect();
        println!("{} {}", done.seconds, times.join(" "));
        // Its connections are counted.
        input.next().transpose()?;
        store.close().await?;
        Ok(())
    })
}
