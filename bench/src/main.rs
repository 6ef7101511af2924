//! Benchmarks of semel: `cargo run --release --manifest-path bench/Cargo.toml -- TOPIC…`.
//!
//! One JSON line per measurement on stdout, progress on stderr; `docs/benchmarks.md` says what
//! each of them is, and has the tables that `tables` makes of runs;
//! `docs/growth.md` does for `growth`.

mod callers;
mod client;
mod disk;
mod effects;
mod embedded;
mod gateway;
mod growth;
mod http;
mod inputs;
mod memory;
mod reference;
mod run;
mod sealed;
mod server;
mod stores;

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use run::{Run, progress};

const USAGE: &str =
    "usage: semel-bench memory|sealed|embedded|http|gateway|stores|effects|growth|all… [--quick] [--only NAME]
       semel-bench tables RUN [RUN] DOCUMENT";

type Measure = fn(&Run) -> Result<()>;

const TOPICS: [(&str, Measure); 7] = [
    ("memory", memory::measure),
    ("sealed", sealed::measure),
    ("embedded", embedded::measure),
    ("http", http::measure),
    ("gateway", gateway::measure),
    ("stores", stores::measure),
    ("effects", effects::measure),
];

/// Not part of `all`: takes longer than the others together.
const GROWTH: (&str, Measure) = ("growth", growth::measure);

fn main() -> Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments = asked.iter().cloned();
    let mut topics = Vec::new();
    let mut run = Run::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => run.quick = true,
            "--only" => run.only = Some(arguments.next().context(USAGE)?),
            "tables" => return tables(arguments),
            // Not for people: what runs in a process of its own.
            memory::RESIDENT => return memory::resident(arguments),
            growth::PEER => return growth::peer(arguments),
            server::APPLICATION => return server::serve(arguments),
            "all" => topics.extend(TOPICS),
            topic => {
                let known = TOPICS
                    .into_iter()
                    .chain([GROWTH])
                    .find(|(name, _)| *name == topic);
                topics
                    .push(known.with_context(|| format!("there is no topic {topic:?}; {USAGE}"))?);
            }
        }
    }
    if topics.is_empty() {
        bail!(USAGE);
    }
    run::recorded(asked.join(" "), || {
        for (name, measure) in topics {
            let started = Instant::now();
            measure(&run)?;
            progress(format_args!("{name} took {:.0?}", started.elapsed()));
        }
        Ok(())
    })
}

/// Puts the tables of one run or two into a document.
fn tables(arguments: impl Iterator<Item = String>) -> Result<()> {
    let files: Vec<String> = arguments.collect();
    let (document, runs) = files.split_last().context(USAGE)?;
    let read = |file: &String| {
        let printed = fs::read_to_string(file).with_context(|| file.clone())?;
        semel_bench_report::Run::parse(&printed).with_context(|| file.clone())
    };
    let runs: Vec<_> = runs.iter().map(read).collect::<Result<_>>()?;
    let tables = semel_bench_report::tables(&runs)?;
    let before = fs::read_to_string(document).with_context(|| document.clone())?;
    fs::write(
        document,
        semel_bench_report::into_document(&before, &tables)?,
    )?;
    Ok(())
}
