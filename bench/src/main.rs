//! Benchmarks of semel: `cargo run --release --manifest-path bench/Cargo.toml -- TOPIC…`.
//!
//! One JSON line per measurement on stdout, progress on stderr; `docs/benchmarks.md` says what
//! each of them is.

mod memory;
mod reference;
mod report;

use anyhow::{Result, bail};
use report::Run;

const USAGE: &str = "usage: semel-bench memory|all… [--quick] [--only NAME]";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut topics = Vec::new();
    let mut run = Run::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => run.quick = true,
            "--only" => run.only = arguments.next(),
            // Not for people: one measurement in a process of its own.
            memory::RESIDENT => return memory::resident(arguments),
            "all" => topics.extend(["memory"].map(String::from)),
            _ => topics.push(argument),
        }
    }
    if topics.is_empty() {
        bail!(USAGE);
    }
    for topic in topics {
        match topic.as_str() {
            "memory" => memory::measure(&run)?,
            _ => bail!("there is no topic {topic:?}; {USAGE}"),
        }
    }
    Ok(())
}
