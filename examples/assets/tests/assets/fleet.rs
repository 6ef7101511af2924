//! Events of a fleet, and consumers as processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use semel::store::Nonce;
use tempfile::TempDir;

/// Longer than anything here should take, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A number below this one, by chance.
pub(crate) fn below(limit: usize) -> usize {
    let bytes = *Nonce::random().unwrap().as_bytes();
    let (bytes, _) = bytes.as_chunks::<8>();
    usize::try_from(u64::from_be_bytes(bytes[0]) % limit as u64).unwrap()
}

pub(crate) fn shuffle(lines: &mut [String]) {
    for at in (1..lines.len()).rev() {
        lines.swap(at, below(at + 1));
    }
}

/// What happened to so many trucks, in order: some of it cannot be.
pub(crate) fn events(trucks: usize, each: usize) -> Vec<String> {
    let event = |truck: usize, number: usize, what: &str| {
        let id = format!("truck-{truck}/{number}");
        format!(r#"{{"id":"{id}","asset":"truck-{truck}","number":{number},{what}}}"#)
    };
    let mut events = Vec::new();
    for truck in 0..trucks {
        let first = r#""type":"commissioned","place":"Oslo","capacity":100"#;
        events.push(event(truck, 1, first));
        for number in 2..=each {
            let what = match below(10) {
                0..5 => format!(r#""type":"loaded","amount":{}"#, below(60)),
                5..8 => format!(r#""type":"unloaded","amount":{}"#, below(60)),
                8 => format!(r#""type":"moved","to":"place {}""#, below(50)),
                _ if number == each => r#""type":"retired""#.to_owned(),
                _ => r#""type":"moved","to":"Bergen""#.to_owned(),
            };
            events.push(event(truck, number, &what));
        }
    }
    events
}

/// A folder with a database.
pub(crate) struct Yard {
    folder: TempDir,
}

impl Yard {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn file(&self, name: &str, lines: &[String]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, lines.join("\n")).unwrap();
        path
    }

    /// What the program says of the database.
    pub(crate) fn show(&self) -> String {
        let done = program("show", &self.database(), &[]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// A consumer of this source.
    pub(crate) fn consume(&self, from: &str) -> Consumer {
        let flags = ["--from", from, "--lease", "1s", "--attempts", "2"];
        let mut command = program("consume", &self.database(), &flags);
        Consumer(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join("assets.db")
    }
}

fn program(command: &str, database: &Path, flags: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_assets"));
    program.args([command, "--database"]).arg(database);
    program.args(flags).stdin(Stdio::null());
    program
}

/// Puts a file's events into a stream.
pub(crate) fn publish(from: &Path, to: &str) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_assets"));
    program.args(["publish", "--to", to, "--from"]).arg(from);
    let done = program.output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// A process, killed when this is dropped.
pub(crate) struct Consumer(Child);

impl Consumer {
    pub(crate) fn is_done(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Sends SIGTERM.
    pub(crate) fn stop(&self) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(sent.success());
    }

    /// How it ended.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_done() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.0.wait().unwrap()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
