//! Processes that write one file and are killed at random instants: what they acknowledged is
//! there afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use semel::store::Claim;
use semel::{State, Store};

use super::{acquire, complete, file, foreign, identity, open, replayed, request};

const FILE: &str = "SEMEL_TEST_SQLITE_CRASH_FILE";
const NAME: &str = "SEMEL_TEST_SQLITE_CRASH_NAME";
const ROUNDS: u64 = 16;
const TOGETHER: u64 = 2;
const TASKS: usize = 8;

/// What is killed: claims and completes until then, and says what was acknowledged. A test only so
/// that the test binary can start itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    let (Ok(path), Ok(name)) = (std::env::var(FILE), std::env::var(NAME)) else {
        return;
    };
    let store = Arc::new(open(Path::new(&path)));
    say("opened");
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (store, name) = (store.clone(), name.clone());
            tokio::spawn(async move {
                for n in 0_u64.. {
                    let key = format!("{name}-{task}-{n}");
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

fn start(path: &Path, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sqlite::crash::victim",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FILE, path)
        .env(NAME, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

// Lets a process go on for a while, kills it, and reads what it had said.
fn kill(mut child: Child, lives: Duration) -> BTreeMap<String, Acknowledged> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("opened")));
    let reader = std::thread::spawn(move || {
        let mut all: BTreeMap<String, Acknowledged> = BTreeMap::new();
        for line in lines.map_while(Result::ok) {
            if let [what, key, fence] = line.split(' ').collect::<Vec<_>>()[..] {
                let known = all.entry(key.to_owned()).or_default();
                known.fence = fence.parse().unwrap();
                known.completed |= what == "completed";
            }
        }
        all
    });
    std::thread::sleep(lives);
    assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

#[test]
#[expect(clippy::print_stderr, reason = "what was measured")]
fn what_was_acknowledged_survives_a_kill() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (_directory, path) = file();
    let mut all = BTreeMap::new();
    let mut highest = 0;
    for round in 0..ROUNDS {
        // Both write the file at once, and are killed at instants that no two rounds share.
        let killed: Vec<_> = (0..TOGETHER)
            .map(|one| {
                let child = start(&path, &format!("{round}-{one}"));
                let lives = Duration::from_micros(20_000 + round * 3_733 + one * 7_311);
                std::thread::spawn(move || kill(child, lives))
            })
            .collect();
        let mut new = BTreeMap::new();
        for one in killed {
            new.extend(one.join().unwrap());
        }
        let mut fences: Vec<u64> = new.values().map(|a: &Acknowledged| a.fence).collect();
        fences.sort_unstable();
        assert!(
            fences.first().is_none_or(|fence| *fence > highest),
            "round {round}"
        );
        highest = fences.last().copied().unwrap_or(highest);
        fences.dedup();
        assert_eq!(
            fences.len(),
            new.len(),
            "two claims got one fence in round {round}"
        );
        all.extend(new);
        if round % 4 == 3 {
            runtime.block_on(check(&path, &all));
        }
    }
    let completed = all.values().filter(|a| a.completed).count();
    eprintln!(
        "{} claims and {completed} completions were acknowledged",
        all.len()
    );
    // Most die before their first on a busy machine.
    assert!(completed > 20, "only {completed} completions");
}

async fn check(path: &Path, all: &BTreeMap<String, Acknowledged>) {
    let store = open(path);
    for (key, acknowledged) in all {
        let entry = store.get(identity(key).digest()).await.unwrap();
        let record = entry.unwrap_or_else(|| panic!("{key} is gone")).record;
        assert_eq!(record.token.fence.0, acknowledged.fence, "{key}");
        if acknowledged.completed {
            let outcome = replayed(&store, key).await;
            assert_eq!(outcome.body().unwrap(), key.as_bytes(), "{key}");
        } else if record.state == State::InFlight {
            // R8: claimed and not completed is in flight, whatever happened since.
            let claim = store.claim(&identity(key), &request()).await.unwrap();
            assert!(matches!(claim, Claim::InFlight { .. }), "{key}: {claim:?}");
        }
    }
    store.close().await.unwrap();
    let sound: String = foreign(path)
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(sound, "ok");
}
