//! The program as a process.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use tempfile::TempDir;

use super::{PATIENCE, eventually};

/// A gateway that runs, and is killed when this is dropped.
pub(crate) struct Gateway {
    process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: Arc<Mutex<String>>,
    directory: Arc<TempDir>,
}

impl Gateway {
    /// A gateway with records of its own.
    pub(crate) fn start(upstream: SocketAddr, flags: &[&str]) -> Self {
        Self::start_in(&Arc::new(tempfile::tempdir().unwrap()), upstream, flags)
    }

    /// A gateway on the records of an earlier one that ended.
    pub(crate) fn start_in(directory: &Arc<TempDir>, upstream: SocketAddr, flags: &[&str]) -> Self {
        Self::start_under(&[], directory, upstream, flags)
    }

    /// A gateway that may have so many files open.
    pub(crate) fn start_with_files(files: u32, upstream: SocketAddr, flags: &[&str]) -> Self {
        let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        let directory = Arc::new(tempfile::tempdir().unwrap());
        Self::start_under(&["/bin/sh", "-c", &limited], &directory, upstream, flags)
    }

    /// A gateway with records of its own, whose file says where requests go.
    pub(crate) fn start_with(file: &Path, flags: &[&str]) -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let flags = [&["--config", file.to_str().unwrap()], flags].concat();
        Self::run(&[], &directory, &flags)
    }

    /// A gateway that these words start: a shell that sets limits first.
    pub(crate) fn start_under(
        words: &[&str],
        directory: &Arc<TempDir>,
        upstream: SocketAddr,
        flags: &[&str],
    ) -> Self {
        // Another protocol, or more of them.
        if flags.iter().any(|flag| flag.starts_with("--upstream=")) {
            return Self::run(words, directory, flags);
        }
        let upstream = format!("--upstream=http://{upstream}");
        Self::run(words, directory, &[&[&*upstream], flags].concat())
    }

    fn run(words: &[&str], directory: &Arc<TempDir>, flags: &[&str]) -> Self {
        // `SEMEL_BIN`: another build of it.
        let semel = std::env::var("SEMEL_BIN");
        let semel = semel.as_deref().unwrap_or(env!("CARGO_BIN_EXE_semel"));
        let program = [words, &[semel, "serve"]].concat();
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).env_clear().stdin(Stdio::null());
        if !flags.contains(&"--store") {
            command.args(["--store", &store_in(directory.path())]);
        }
        if !flags.contains(&"--admin") {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        let mut process = command
            .args(["--listen", "127.0.0.1:0"])
            .args(["--log-format", "json"])
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (serving, addresses) = mpsc::channel();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(addresses) = addresses_in(&line) {
                    serving.send(addresses).ok();
                }
                kept.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let Ok((address, admin)) = addresses.recv_timeout(PATIENCE) else {
            process.kill().ok();
            panic!("the gateway did not start: {}", log.lock().unwrap());
        };
        Self {
            process,
            address,
            admin,
            log,
            directory: Arc::clone(directory),
        }
    }

    /// Where the records are: keeps them for the next gateway.
    pub(crate) fn directory(&self) -> Arc<TempDir> {
        Arc::clone(&self.directory)
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// What Prometheus would read.
    pub(crate) async fn metrics(&self) -> String {
        let answer = super::get(self.admin, "/metrics").await;
        answer.text().to_owned()
    }

    /// How much memory it has, in bytes.
    pub(crate) fn resident(&self) -> usize {
        self.memory("VmRSS:")
    }

    /// How much memory it had at most.
    pub(crate) fn most_resident(&self) -> usize {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> usize {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(path).unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix(name));
        let size = size.unwrap().trim().strip_suffix(" kB").unwrap();
        size.parse::<usize>().unwrap() << 10
    }

    /// From now on the process may have no more descriptors than these, which it may exceed already.
    pub(crate) fn limit_files(&self, files: u64) {
        let process = Pid::from_raw(i32::try_from(self.process.id()).unwrap());
        let limit = Rlimit {
            current: Some(files),
            // As this process has it, and may not raise it again.
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        prlimit(process, Resource::Nofile, limit).unwrap();
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGHUP.
    pub(crate) fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(i32::try_from(self.process.id()).unwrap());
        kill_process(process.unwrap(), signal).unwrap();
    }

    /// Waits for the process to end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        eventually("the end of the gateway", || {
            std::future::ready(self.process.try_wait().unwrap())
        })
        .await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The store's URL in a directory.
pub(crate) fn store_in(directory: &Path) -> String {
    format!("file:{}", directory.join("records").display())
}

fn addresses_in(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let address = |name: &str| line[name].as_str()?.parse().ok();
    (line["message"] == "serving").then_some((address("listen")?, address("admin")?))
}
