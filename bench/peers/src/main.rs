//! Published in-memory idempotency stores, driven as semel's is.
//!
//! A program of its own because two of them ask for a later compiler than semel does, and only the
//! command line can lift that (`--ignore-rust-version`). It reads one request per line and answers
//! with one number per line, so that the main program can let everybody take turns:
//! `rate PEER pair|replay threads|tasks CALLERS COUNT` → operations per second,
//! `stall PEER COUNT` → longest claim in milliseconds while COUNT expired records are swept.

mod idempotent;
mod minco;
mod ullun;

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_bench_load::{Callers, Operation, Subject};

use crate::{idempotent::Idempotent, minco::Minco, ullun::Ullun};

/// Longer than any run.
const KEPT: Duration = Duration::from_secs(3600);

fn main() {
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("requests are text");
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["rate", peer, operation, kind, callers, count] => {
                let operation = match operation {
                    "pair" => Operation::Pair,
                    _ => Operation::Replay,
                };
                let callers = match kind {
                    "threads" => Callers::Threads(number(callers)),
                    _ => Callers::Tasks(number(callers)),
                };
                rate(peer, operation, callers, number(count))
            }
            ["stall", "idempotent", count] => idempotent::stall(number(count)),
            ["stall", "ullun-api", count] => ullun::stall(number(count)),
            _ => panic!("not a request: {line}"),
        };
        writeln!(out, "{answer}")
            .and_then(|()| out.flush())
            .expect("somebody reads the answers");
    }
}

fn number(word: &str) -> usize {
    word.parse().expect("a number")
}

fn rate(peer: &str, operation: Operation, callers: Callers, count: usize) -> f64 {
    fn of<S: Subject>(inputs: S::Inputs, op: Operation, callers: Callers, count: usize) -> f64 {
        semel_bench_load::rate::<S>(op, callers, count, &Arc::new(inputs))
    }
    match peer {
        "idempotent" => of::<Idempotent>(idempotent::inputs(count), operation, callers, count),
        "ullun-api" => of::<Ullun>(ullun::inputs(count), operation, callers, count),
        "minco-plugin-idempotency" => of::<Minco>(minco::inputs(count), operation, callers, count),
        _ => panic!("not a peer: {peer}"),
    }
}

/// The longest of the times that `claim` takes, until `done`, in milliseconds.
async fn longest(mut claim: impl AsyncFnMut(usize), done: impl Fn(usize) -> bool) -> f64 {
    let mut longest = Duration::ZERO;
    let mut claims = 0;
    while !done(claims) {
        let started = Instant::now();
        claim(claims).await;
        longest = longest.max(started.elapsed());
        claims += 1;
    }
    longest.as_secs_f64() * 1000.0
}
