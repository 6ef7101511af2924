//! Benchmarks of semel: `cargo run --release --manifest-path bench/Cargo.toml -- TOPIC…`.
//!
//! One JSON line per measurement on stdout, progress on stderr; `docs/benchmarks.md` says what
//! each of them is.

mod client;
mod disk;
mod effects;
mod embedded;
mod gateway;
mod http;
mod inputs;
mod memory;
mod reference;
mod report;
mod server;
mod stores;

use anyhow::{Result, bail};
use report::Run;

const USAGE: &str =
    "usage: semel-bench memory|embedded|http|gateway|stores|effects|all… [--quick] [--only NAME]";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut topics = Vec::new();
    let mut run = Run::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => run.quick = true,
            "--only" => run.only = arguments.next(),
            // Not for people: what runs in a process of its own.
            memory::RESIDENT => return memory::resident(arguments),
            server::APPLICATION => return server::serve(arguments),
            "all" => {
                topics.extend(
                    ["memory", "embedded", "http", "gateway", "stores", "effects"]
                        .map(String::from),
                );
            }
            _ => topics.push(argument),
        }
    }
    if topics.is_empty() {
        bail!(USAGE);
    }
    for topic in topics {
        match topic.as_str() {
            "memory" => memory::measure(&run)?,
            "embedded" => embedded::measure(&run)?,
            "http" => http::measure(&run)?,
            "gateway" => gateway::measure(&run)?,
            "stores" => stores::measure(&run)?,
            "effects" => effects::measure(&run)?,
            _ => bail!("there is no topic {topic:?}; {USAGE}"),
        }
    }
    Ok(())
}
