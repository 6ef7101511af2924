//! A command to run once, and the ways to its records.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::tls::Authority;
use crate::support::{Gateway, PATIENCE};

/// While one replaces the other.
const SECRETS: &str = "first AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\nplain";

/// How records are reached.
pub(super) struct Way {
    flags: Vec<String>,
    pub(super) folder: TempDir,
    gateway: Option<Gateway>,
}

impl Way {
    /// A file of its own.
    pub(super) fn store() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let flags = vec!["--store".to_owned(), sqlite(folder.path())];
        Self {
            flags,
            folder,
            gateway: None,
        }
    }

    /// A gateway before such a file, over TLS, that names records under secrets.
    pub(super) fn gateway() -> Self {
        let authority = Authority::new();
        let folder = tempfile::tempdir().unwrap();
        let [certificate, key] = authority.sign(&["localhost"]).files_in(folder.path());
        let secret = folder.path().join("secret");
        std::fs::write(&secret, SECRETS).unwrap();
        let gateway = Self::gateway_with(&[
            &format!("--identity-keys={}", secret.display()),
            &format!("--admin-tls-cert={}", certificate.display()),
            &format!("--admin-tls-key={}", key.display()),
        ]);
        let ca = authority.file_in(gateway.folder.path());
        let url = format!("https://localhost:{}", gateway.admin().port());
        let flags = ["--gateway", &url, "--gateway-ca", &ca.display().to_string()];
        Self {
            flags: flags.map(str::to_owned).to_vec(),
            ..gateway
        }
    }

    pub(super) fn gateway_with(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = sqlite(folder.path());
        let flags = [&["--store", store.as_str()], flags].concat();
        // Nothing is sent there.
        let gateway = Gateway::start(([127, 0, 0, 1], 9).into(), &flags);
        Self::through(gateway.admin, folder, Some(gateway))
    }

    fn through(address: SocketAddr, folder: TempDir, gateway: Option<Gateway>) -> Self {
        let flags = vec!["--gateway".to_owned(), format!("http://{address}")];
        Self {
            flags,
            folder,
            gateway,
        }
    }

    /// The same gateway, by way of a proxy before it.
    pub(super) fn proxied(&self, address: SocketAddr) -> Self {
        Self::through(address, tempfile::tempdir().unwrap(), None)
    }

    pub(super) fn admin(&self) -> SocketAddr {
        self.gateway.as_ref().unwrap().admin
    }

    /// Some other store.
    #[cfg(feature = "postgres")]
    pub(super) fn at(url: &str) -> Self {
        let flags = vec!["--store".to_owned(), url.to_owned()];
        Self {
            flags,
            folder: tempfile::tempdir().unwrap(),
            gateway: None,
        }
    }

    pub(super) const fn has_store(&self) -> bool {
        self.gateway.is_none()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A job that a shell runs in this folder. Each time it runs, `$DONE` writes a line that counts.
    pub(super) fn job(&self, key: &str, script: &str) -> Job<'_> {
        Job {
            way: self,
            key: key.to_owned(),
            flags: Vec::new(),
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        }
    }

    /// How often a job ran.
    pub(super) fn ran(&self) -> usize {
        let ledger = std::fs::read_to_string(self.path("ledger"));
        ledger.map_or(0, |ledger| ledger.lines().count())
    }
}

pub(super) fn sqlite(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("records.db").display())
}

/// One line more in the ledger: the effect.
pub(super) const EFFECT: &str = "echo done >> ledger; ";

#[derive(Clone)]
pub(super) struct Job<'a> {
    way: &'a Way,
    key: String,
    flags: Vec<String>,
    command: Vec<String>,
}

impl Job<'_> {
    pub(super) fn with(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|&flag| flag.to_owned()));
        self
    }

    /// Other words in place of the shell's.
    pub(super) fn with_command(mut self, command: &[&str]) -> Self {
        self.command = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    pub(super) fn command(&self) -> Command {
        // Whoever starts the tests may ignore signals, and a shell cannot trap those.
        let mut command = Command::new("env");
        command.args([
            "--default-signal",
            env!("CARGO_BIN_EXE_semel"),
            "run",
            "--key",
            &self.key,
        ]);
        let is_elsewhere = |flag: &String| ["--store", "--gateway"].contains(&flag.as_str());
        if !self.flags.iter().any(is_elsewhere) {
            command.args(&self.way.flags);
        }
        command
            .args(&self.flags)
            .arg("--")
            .args(&self.command)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .current_dir(self.way.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs it to its end.
    pub(super) fn run(&self) -> Ran {
        let report = tempfile::NamedTempFile::new().unwrap();
        let output = self
            .clone()
            .with(&["--report", report.path().to_str().unwrap()])
            .command()
            .output()
            .unwrap();
        let report = std::fs::read(report.path()).unwrap();
        Ran {
            output,
            report: serde_json::from_slice(&report).unwrap_or(Value::Null),
        }
    }

    /// Starts it.
    pub(super) fn start(&self) -> Running {
        Running::of(self.command())
    }
}

/// A run that ended.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) output: Output,
    pub(super) report: Value,
}

impl Ran {
    /// The exit status, once what semel says of it in its report was compared.
    pub(super) fn code(&self) -> i32 {
        let code = self.output.status.code().unwrap();
        match &self.report {
            Value::Null => assert_eq!(code, 112, "{self:?}"),
            report => assert_eq!(report["exit"], code, "{self:?}"),
        }
        code
    }

    pub(super) fn result(&self) -> &str {
        self.report["result"].as_str().unwrap()
    }

    pub(super) fn stdout(&self) -> &str {
        std::str::from_utf8(&self.output.stdout).unwrap()
    }

    pub(super) fn stderr(&self) -> &str {
        std::str::from_utf8(&self.output.stderr).unwrap()
    }
}

/// A run that goes on. Killed when it is dropped, and the command with it.
pub(super) struct Running {
    process: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    pub(super) fn of(mut command: Command) -> Self {
        let mut process = command.spawn().unwrap();
        Self {
            stdout: BufReader::new(process.stdout.take().unwrap()),
            stderr: BufReader::new(process.stderr.take().unwrap()),
            process,
        }
    }

    /// The next line, which the command has just written.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// The next line of its stderr.
    pub(super) fn error_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    pub(super) fn process(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let process = i32::try_from(self.process.id()).unwrap();
        kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
    }

    /// Stops it, at a moment when it does not hold the lock of a SQLite file: others could not go on.
    pub(super) fn pause(&self) {
        let holds_lock = || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            let process = self.process.id().to_string();
            let mut locks = locks.lines().map(|line| line.split_whitespace());
            locks.any(|lock| lock.skip(3).take(2).eq(["WRITE", &process]))
        };
        until("a pause without a lock", || {
            self.signal(Signal::STOP);
            let is_paused = !holds_lock();
            if !is_paused {
                self.signal(Signal::CONT);
            }
            is_paused
        });
    }

    /// Waits until it takes signals. SIGUSR2 is the last one for which it does.
    pub(super) fn until_it_listens(&self) {
        let status = format!("/proc/{}/status", self.process.id());
        until("it to listen for signals", || {
            let status = std::fs::read_to_string(&status).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
            caught >> (Signal::USR2.as_raw() - 1) & 1 == 1
        });
    }

    pub(super) fn is_over(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// What is left of its output, and its end.
    pub(super) fn end(mut self) -> (ExitStatus, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).unwrap();
        self.stderr.read_to_string(&mut err).unwrap();
        (self.process.wait().unwrap(), out, err)
    }

    /// Nobody reads what it writes any more.
    pub(super) fn stop_reading(mut self) -> ExitStatus {
        // Readers of no pipe of its.
        let mut none = Command::new("/bin/true");
        let none = none.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut none = none.spawn().unwrap();
        self.stdout = BufReader::new(none.stdout.take().unwrap());
        self.stderr = BufReader::new(none.stderr.take().unwrap());
        none.wait().unwrap();
        self.process.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Waits until it is so.
pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is there, and is no zombie.
pub(super) fn is_alive(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", process.trim()));
    status.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'))
}
