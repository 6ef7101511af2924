//! Several processes on one file.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use semel::store::{
    Acquired, Claim, ClaimRequest, Fenced, OnLost, Refusal, Retention, StoreExt as _,
};
use semel::{Outcome, Store};

use super::{LONG, complete, file, identity, open, replayed, request};

const FILE: &str = "SEMEL_TEST_SQLITE_RACE";
const PROCESSES: usize = 6;
const KEYS: usize = 150;

fn child(test: &str, variable: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(variable, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

// A line in one write.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    line
}

/// One of those who race: claims every key, and completes what it won. A test only so that the
/// test binary can start itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racer() {
    let Ok(path) = std::env::var(FILE) else {
        return;
    };
    let store = open(Path::new(&path));
    say("ready");
    hear();
    for n in 0..KEYS {
        let key = format!("key-{n}");
        let me = std::process::id().to_string();
        match store.claim(&identity(&key), &request()).await.unwrap() {
            Claim::Acquired(Acquired { token, attempt, .. }) => {
                say(&format!("won {key} {} {attempt}", token.fence));
                complete(&store, &key, &token, me.as_bytes()).await;
            }
            Claim::InFlight { fence, .. } => {
                store
                    .wait(identity(&key).digest(), fence, Duration::from_secs(20))
                    .await
                    .unwrap();
                let body = replayed(&store, &key).await;
                say(&format!("saw {key} {}", String::from_utf8_lossy(&body)));
            }
            Claim::Completed { outcome, .. } => {
                say(&format!(
                    "saw {key} {}",
                    String::from_utf8_lossy(&outcome.body().unwrap())
                ));
            }
            other => panic!("{other:?}"),
        }
    }
    say("done");
}

#[test]
#[expect(clippy::print_stderr, reason = "what was measured")]
fn of_many_processes_one_wins_each_key_and_all_see_its_outcome() {
    let (_directory, path) = file();
    // The file is made by one of them, too.
    let mut children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut child = child("sqlite::processes::racer", FILE, &path);
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            (child, lines)
        })
        .collect();
    for (_, lines) in &mut children {
        assert!(lines.any(|line| line.unwrap().ends_with("ready")));
    }
    for (child, _) in &mut children {
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    let mut winners: BTreeMap<String, u32> = BTreeMap::new();
    let mut seen: Vec<(String, String)> = Vec::new();
    let (mut fences, mut done) = (Vec::new(), 0);
    let readers: Vec<_> = children
        .into_iter()
        .map(|(mut child, lines)| {
            std::thread::spawn(move || {
                let lines: Vec<String> = lines.map(|line| line.unwrap()).collect();
                assert!(child.wait().unwrap().success(), "{lines:?}");
                (child.id(), lines)
            })
        })
        .collect();
    for reader in readers {
        let (id, lines) = reader.join().unwrap();
        for line in lines {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["won", key, fence, attempt] => {
                    assert_eq!(attempt, "1");
                    fences.push(fence.to_owned());
                    assert_eq!(winners.insert(key.into(), id), None, "two won {key}");
                }
                ["saw", key, who] => seen.push((key.into(), who.into())),
                ["done"] => done += 1,
                _ => {}
            }
        }
    }
    assert_eq!((done, winners.len()), (PROCESSES, KEYS));
    assert_eq!(seen.len(), KEYS * (PROCESSES - 1));
    for (key, who) in seen {
        assert_eq!(who, winners[&key].to_string(), "{key}");
    }
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), KEYS, "no fence was given out twice");
    let distinct: std::collections::BTreeSet<_> = winners.values().collect();
    eprintln!("{} of {PROCESSES} processes won keys", distinct.len());
}

const PAUSED: &str = "SEMEL_TEST_SQLITE_PAUSED";
const LEASE: Duration = Duration::from_millis(200);

/// Who is stopped past its lease. A test only so that the test binary can start itself.
#[tokio::test]
async fn sleeper() {
    let Ok(path) = std::env::var(PAUSED) else {
        return;
    };
    let store = open(Path::new(&path));
    let request = ClaimRequest {
        lease: LEASE,
        ..request()
    };
    let Claim::Acquired(acquired) = store.claim(&identity("key"), &request).await.unwrap() else {
        panic!("not acquired");
    };
    say("claimed");
    hear();
    let late = store
        .complete(
            identity("key").digest(),
            &acquired.token,
            &Outcome::success(b"late"),
            Retention::new(LONG),
        )
        .await;
    assert_eq!(late.unwrap(), Fenced::Refused(Refusal::Superseded));
    say("refused");
}

#[tokio::test]
async fn a_process_stopped_past_its_lease_is_refused() {
    let (_directory, path) = file();
    let store = open(&path);
    let mut child = child("sqlite::processes::sleeper", PAUSED, &path);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("claimed")));
    let signal = |name: &str| {
        let id = child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    };
    signal("-STOP");
    tokio::time::sleep(LEASE * 2).await;
    let takeover = ClaimRequest {
        on_lost: OnLost::Retry,
        ..request()
    };
    let claim = store.claim(&identity("key"), &takeover).await.unwrap();
    let Claim::Acquired(Acquired {
        token, attempt: 2, ..
    }) = claim
    else {
        panic!("not taken over: {claim:?}");
    };
    complete(&store, "key", &token, b"in time").await;
    signal("-CONT");
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(lines.any(|line| line.unwrap().ends_with("refused")));
    assert!(child.wait().unwrap().success());
    assert_eq!(replayed(&store, "key").await, &b"in time"[..]);
}
