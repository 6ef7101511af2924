//! What processes and the store take, as the kernel and the store say.

use std::fmt::Write as _;
use std::path::Path;

use semel::store::ListQuery;
use semel::{AnyStore, StateKind, Store as _};
use semel_testkit::servers::Server;

use crate::clock::{Nanos, millis, now};

/// The columns of a sample.
pub(super) const NAMES: [&str; 8] = [
    "worker_memory_mib",
    "worker_descriptors",
    "worker_threads",
    "server_memory_mib",
    "server_descriptors",
    "server_threads",
    "records",
    "store_mib",
];

/// One look; nothing where nothing can be seen.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) at: Nanos,
    pub(super) values: [Option<f64>; NAMES.len()],
}

/// Looks at the first worker, at the server with its children, and at the store's files: those in
/// `folder`, or in the folder that the server works in.
pub(super) fn sample(
    worker: u32,
    server: Option<&dyn Server>,
    folder: &Path,
    rows: Option<usize>,
) -> Sample {
    let of_worker = [worker];
    let roots: Vec<u32> = server.map_or_else(Vec::new, |server| {
        server
            .nodes()
            .iter()
            .filter_map(|node| node.pid())
            .collect()
    });
    let of_server: Vec<u32> = roots.iter().flat_map(|root| tree(*root)).collect();
    let [memory, descriptors, threads] = [memory, descriptors, threads].map(|of| {
        let sum = |ids: &[u32]| -> Option<f64> { ids.iter().map(|id| of(*id)).sum() };
        [
            sum(&of_worker),
            sum(&of_server).filter(|_| !roots.is_empty()),
        ]
    });
    let size = match server {
        None => Some(size(folder)),
        Some(_) => roots
            .iter()
            .map(|root| Some(size(&std::fs::read_link(format!("/proc/{root}/cwd")).ok()?)))
            .sum::<Option<u64>>()
            .filter(|_| !roots.is_empty()),
    };
    Sample {
        at: now(),
        values: [
            memory[0],
            descriptors[0],
            threads[0],
            memory[1],
            descriptors[1],
            threads[1],
            rows.map(|rows| rows as f64),
            size.map(|bytes| bytes as f64 / MIB),
        ],
    }
}

const MIB: f64 = 1024.0 * 1024.0;

/// A process and those that it started.
fn tree(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(id) = all.get(next).copied() {
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        all.extend(
            children
                .split_whitespace()
                .filter_map(|id| id.parse::<u32>().ok()),
        );
        next += 1;
    }
    all
}

/// What others do not share, and its part of what they do: in MiB.
fn memory(id: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup"));
    Some(number(&text.unwrap_or_default(), "Pss:") / 1024.0)
}

fn threads(id: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status"));
    Some(number(&text.unwrap_or_default(), "Threads:"))
}

fn descriptors(id: u32) -> Option<f64> {
    let open = std::fs::read_dir(format!("/proc/{id}/fd"));
    Some(open.map_or(0.0, |open| open.count() as f64))
}

/// A process may be gone by now: it takes nothing then.
fn number(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// The log of what was written is recycled by a rule of its own, up to a gigabyte.
const NOT_DATA: [&str; 1] = ["pg_wal"];

fn size(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => match entry.file_name().to_str() {
            Some(name) if NOT_DATA.contains(&name) => 0,
            _ => size(&entry.path()),
        },
        // The lab's own are beside it.
        Ok(_) if entry.path().extension().is_some_and(|e| e == "beats") => 0,
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

/// How many records there are, whatever their state.
pub(super) async fn rows(store: &AnyStore) -> Option<usize> {
    let mut count = 0;
    let states = [
        StateKind::InFlight,
        StateKind::Unknown,
        StateKind::Completed,
        StateKind::Released,
    ];
    for state in states {
        let mut query = ListQuery::new(state);
        loop {
            let page = store.list(&query).await.ok()?;
            count += page.entries.len();
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
    }
    Some(count)
}

/// All samples as a table.
pub(super) fn csv(samples: &[Sample], begun: Nanos) -> String {
    let mut text = format!("seconds,{}\n", NAMES.join(","));
    for sample in samples {
        let _ = write!(
            text,
            "{:.1}",
            millis(sample.at.saturating_sub(begun)) / 1000.0
        );
        for value in sample.values {
            let _ = match value {
                Some(value) => write!(text, ",{value:.1}"),
                None => write!(text, ","),
            };
        }
        text.push('\n');
    }
    text
}
