//! The program is killed with SIGKILL, started again, and asked again.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::http::Method;
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::folder;
use super::web::{Got, ask};

struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_trading"))
            .args(["--listen", "127.0.0.1:0", "--lease", "200ms", "--data"])
            .arg(file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        let address = said.trim().strip_prefix("listening on http://").unwrap();
        let address = address.parse().unwrap();
        Self { child, address }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Asks until there is an answer.
async fn answer(program: &Program, path: &str, key: &str) -> Got {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let got = ask(program.address, Method::POST, path, Some(key), Value::Null).await;
        match got {
            Ok(got) if got.status.is_success() => return got,
            other => assert!(Instant::now() < until, "{other:?}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

fn count(file: &Path, sql: &str) -> i64 {
    let on = Connection::open(file).unwrap();
    on.busy_timeout(Duration::from_secs(5)).unwrap();
    on.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_reset_retried_under_the_old_account_after_a_kill_replays() {
    let (_folder, file) = folder();
    let mut program = Program::start(&file);
    let account = answer(&program, "/accounts", "k").await.body["account"].clone();
    assert_eq!(account, json!(1));
    let done = answer(&program, "/accounts/1/reset", "reset-1").await;
    assert!(!done.replayed);
    program.kill();

    let program = Program::start(&file);
    for path in ["/accounts/1/reset", "/accounts/2/reset"] {
        let retry = answer(&program, path, "reset-1").await;
        assert_eq!((retry.replayed, &retry.body), (true, &done.body));
    }
    assert_eq!(count(&file, "SELECT count(*) FROM accounts"), 2);
}

/// Killed at some instant of the reset: before its claim, before its commit, or after it.
#[tokio::test]
async fn a_reset_killed_at_any_instant_happens_once() {
    let (_folder, file) = folder();
    let mut program = Program::start(&file);
    answer(&program, "/accounts", "k").await;
    const ROUNDS: i64 = 16;
    for round in 1..=ROUNDS {
        let (path, key) = (format!("/accounts/{round}/reset"), format!("reset-{round}"));
        let delay = Duration::from_micros(200 * u64::try_from(round * round).unwrap());
        let asked = ask(
            program.address,
            Method::POST,
            &path,
            Some(&key),
            Value::Null,
        );
        let told = timeout(delay, asked).await;
        program.kill();
        program = Program::start(&file);
        let retry = answer(&program, &path, &key).await;
        assert_eq!(retry.body["account"], json!(round + 1));
        if let Ok(Ok(told)) = told {
            // What was answered before the kill stands.
            assert_eq!((retry.replayed, retry.body), (true, told.body));
        }
        assert_eq!(count(&file, "SELECT count(*) FROM accounts"), round + 1);
    }
    let unreplaced = "SELECT count(*) FROM accounts WHERE replaced_by IS NULL";
    assert_eq!(count(&file, unreplaced), 1);
}

/// Killed when its claim is committed and its transaction is not: the lease lapses, and the retry
/// takes over.
#[tokio::test]
async fn a_reset_killed_between_its_claim_and_its_commit_happens_once() {
    let (_folder, file) = folder();
    let mut program = Program::start(&file);
    answer(&program, "/accounts", "k").await;
    let mut between = 0;
    for round in 1..=60 {
        let (path, key) = (format!("/accounts/{round}/reset"), format!("reset-{round}"));
        let address = program.address;
        let asked = (path.clone(), key.clone());
        let asking = tokio::spawn(async move {
            let (path, key) = asked;
            ask(address, Method::POST, &path, Some(&key), Value::Null)
                .await
                .ok()
        });
        let watched = file.clone();
        let caught = tokio::task::spawn_blocking(move || catch(&watched, round)).await;
        let caught = caught.unwrap();
        program.kill();
        drop(caught.lock);
        asking.abort();
        program = Program::start(&file);
        let retry = answer(&program, &path, &key).await;
        assert_eq!(retry.replayed, !caught.between);
        assert_eq!(retry.body["account"], json!(round + 1));
        assert_eq!(count(&file, "SELECT count(*) FROM accounts"), round + 1);
        between += u32::from(caught.between);
        if between == 3 {
            return;
        }
    }
    panic!("only {between} kills were between claim and commit");
}

struct Caught {
    /// Whether the claim is committed and the transaction is not.
    between: bool,
    /// Keeps the file's lock until it is dropped.
    lock: Connection,
}

/// Takes the file's lock as soon as there are as many resets as this, claimed or completed. Who has the
/// lock knows that nothing is committed after what it sees.
fn catch(file: &Path, resets: i64) -> Caught {
    let lock = Connection::open(file).unwrap();
    lock.busy_timeout(Duration::ZERO).unwrap();
    let resets_in = |state: &str| -> i64 {
        let sql = "SELECT count(*) FROM semel WHERE operation = 'reset' AND state = ?1";
        lock.query_row(sql, [state], |row| row.get(0)).unwrap()
    };
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < until, "nothing was claimed");
        if resets_in("in-flight") + resets_in("completed") < resets {
            continue;
        }
        if lock.execute_batch("BEGIN IMMEDIATE").is_ok() {
            let between = resets_in("in-flight") == 1;
            return Caught { between, lock };
        }
    }
}
