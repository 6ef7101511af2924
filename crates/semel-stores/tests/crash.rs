//! Processes that write one store and are killed at random instants: what they acknowledged is there afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use semel::store::Claim;
use semel::{State, Store};

use crate::steps::{acquire, complete, identity, replayed, request};

const PATH: &str = "SEMEL_TEST_CRASH_PATH";
const NAME: &str = "SEMEL_TEST_CRASH_NAME";
const TASKS: usize = 8;

/// How a kind of store is tried.
pub(crate) struct Crash<S> {
    pub(crate) open: fn(&Path) -> S,
    /// The test that calls [`victim`](Self::victim).
    pub(crate) victim: &'static str,
    pub(crate) rounds: u64,
    /// How many processes write at once.
    pub(crate) together: u64,
    /// How long one of them lives, in microseconds from its first steps on. No two share an instant.
    pub(crate) lives: fn(round: u64, one: u64) -> u64,
    /// How many completions there are at least: most die before their first on a busy machine.
    pub(crate) least: usize,
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

impl<S: Store> Crash<S> {
    /// What is killed: claims and completes until then, and says what was acknowledged. A test only so
    /// that the test binary can start itself.
    pub(crate) async fn victim(&self) {
        let (Ok(path), Ok(name)) = (std::env::var(PATH), std::env::var(NAME)) else {
            return;
        };
        let store = Arc::new((self.open)(Path::new(&path)));
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

    fn start(&self, path: &Path, name: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", self.victim, "--nocapture", "--test-threads=1"])
            .env(PATH, path)
            .env(NAME, name)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Lets processes write the store at `path` and kills them, again and again. `sound` looks at what
    /// is there, with nobody on it.
    #[expect(clippy::print_stderr, reason = "what was measured")]
    pub(crate) fn survives_kills(&self, path: &Path, sound: impl Fn()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut all = BTreeMap::new();
        let mut highest = 0;
        for round in 0..self.rounds {
            let killed: Vec<_> = (0..self.together)
                .map(|one| {
                    let child = self.start(path, &format!("{round}-{one}"));
                    let lives = Duration::from_micros((self.lives)(round, one));
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
                "a fence was given out again in round {round}"
            );
            highest = fences.last().copied().unwrap_or(highest);
            fences.dedup();
            assert_eq!(
                fences.len(),
                new.len(),
                "two claims got one fence in round {round}"
            );
            all.extend(new);
            if round % 4 == 3 || round + 1 == self.rounds {
                runtime.block_on(self.check(path, &all));
                sound();
            }
        }
        let completed = all.values().filter(|a| a.completed).count();
        eprintln!(
            "{} claims and {completed} completions were acknowledged",
            all.len()
        );
        assert!(completed > self.least, "only {completed} completions");
    }

    async fn check(&self, path: &Path, all: &BTreeMap<String, Acknowledged>) {
        let store = (self.open)(path);
        for (key, acknowledged) in all {
            let entry = store.get(identity(key).digest()).await.unwrap();
            let record = entry.unwrap_or_else(|| panic!("{key} is gone")).record;
            assert_eq!(record.token.fence.0, acknowledged.fence, "{key}");
            if acknowledged.completed {
                assert_eq!(replayed(&store, key).await, key, "{key}");
            } else if record.state == State::InFlight {
                // R8: claimed and not completed is in flight, whatever happened since.
                let claim = store.claim(&identity(key), &request()).await.unwrap();
                assert!(matches!(claim, Claim::InFlight { .. }), "{key}: {claim:?}");
            }
        }
        store.close().await.unwrap();
    }
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
