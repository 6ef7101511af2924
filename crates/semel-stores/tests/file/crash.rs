//! A process that is killed at random instants: what it acknowledged is there afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::Claim;
use semel::{State, Store};

use super::{acquire, complete, identity, open, replayed, request};

const DIRECTORY: &str = "SEMEL_TEST_CRASH_DIRECTORY";
const ROUND: &str = "SEMEL_TEST_CRASH_ROUND";
const ROUNDS: u64 = 32;
const TASKS: usize = 8;

/// What is killed: claims and completes until then, and says what was acknowledged. A test only so
/// that the test binary can start itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stdout, reason = "the acknowledgements")]
async fn victim() {
    let (Ok(directory), Ok(round)) = (std::env::var(DIRECTORY), std::env::var(ROUND)) else {
        return;
    };
    let store = Arc::new(open(Path::new(&directory)));
    println!("opened");
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (store, round) = (store.clone(), round.clone());
            tokio::spawn(async move {
                for n in 0_u64.. {
                    let key = format!("{round}-{task}-{n}");
                    let token = acquire(&store, &key).await.token;
                    say(&format!("claimed {key} {}", token.fence));
                    if n % 5 == 4 {
                        continue;
                    }
                    complete(&store, &key, &token, key.as_bytes()).await;
                    say(&format!("completed {key} {}", token.fence));
                    if n % 16 == 0 {
                        store.purge(8).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

// A line in one write, so that a kill does not tear it.
fn say(line: &str) {
    let _ = std::io::stdout()
        .lock()
        .write_all(format!("{line}\n").as_bytes());
}

#[derive(Default)]
struct Acknowledged {
    fence: u64,
    completed: bool,
}

// Starts the victim, lets it go on for a while, kills it, and reads what it had said.
fn round(directory: &Path, round: u64, lives: Duration, all: &mut BTreeMap<String, Acknowledged>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "file::crash::victim",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(DIRECTORY, directory)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut killed_at = None;
    let mut child = Some(child);
    while let Some(Ok(line)) = lines.next() {
        if line.ends_with("opened") {
            killed_at = Some(Instant::now() + lives);
        }
        let mut words = line.split(' ');
        if let (Some(what @ ("claimed" | "completed")), Some(key), Some(fence)) =
            (words.next(), words.next(), words.next())
        {
            let known = all.entry(key.to_owned()).or_default();
            known.fence = fence.parse().unwrap();
            known.completed |= what == "completed";
        }
        if killed_at.is_some_and(|at| Instant::now() >= at)
            && let Some(mut child) = child.take()
        {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
    assert!(
        child.is_none(),
        "the victim ended by itself in round {round}"
    );
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut all = BTreeMap::new();
    let (mut highest, mut checked) = (0, 0);
    for n in 0..ROUNDS {
        // Spread over instants that no two rounds share: from the first steps on.
        let lives = Duration::from_micros(n * 1_733 + n * n * 31);
        let mut new = BTreeMap::new();
        round(directory.path(), n, lives, &mut new);
        let fences = || new.values().map(|a: &Acknowledged| a.fence);
        assert!(
            fences().all(|fence| fence > highest),
            "a fence was given out again in round {n}"
        );
        let mut distinct: Vec<u64> = fences().collect();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(
            distinct.len(),
            new.len(),
            "two claims got one fence in round {n}"
        );
        highest = fences().max().unwrap_or(highest);
        all.extend(new);
        if n % 8 == 7 || n + 1 == ROUNDS {
            checked += runtime.block_on(check(directory.path(), &all));
        }
    }
    assert!(checked > 100, "only {checked} records were checked");
}

async fn check(directory: &Path, all: &BTreeMap<String, Acknowledged>) -> usize {
    let store = open(directory);
    for (key, acknowledged) in all {
        let entry = store.get(identity(key).digest()).await.unwrap();
        let record = entry.unwrap_or_else(|| panic!("{key} is gone")).record;
        assert_eq!(record.token.fence.0, acknowledged.fence, "{key}");
        if acknowledged.completed {
            assert_eq!(replayed(&store, key).await.as_deref(), Some(key.as_bytes()));
        } else if record.state == State::InFlight {
            // R8: claimed and not completed is in flight, whatever happened since.
            let claim = store.claim(&identity(key), &request()).await.unwrap();
            assert!(matches!(claim, Claim::InFlight { .. }), "{key}: {claim:?}");
        }
    }
    store.close().await.unwrap();
    all.len()
}
