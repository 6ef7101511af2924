//! A program in a folder of its own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here should take, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs it to its end on these lines, and answers what it printed.
pub(crate) fn run(program: &str, folder: &Path, args: &[&str], input: &str) -> String {
    let mut command = Command::new(program);
    let command = command.args(args).current_dir(folder).stdin(Stdio::piped());
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = process.stdin.take().unwrap();
    lines.write_all(input.as_bytes()).unwrap();
    drop(lines);
    let ended = process.wait_with_output().unwrap();
    assert!(ended.status.success(), "{program}: {ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

/// A service, killed when this is dropped.
pub(crate) struct Service(Child);

impl Service {
    /// Starts it, and answers its URL once it says it or listens there.
    pub(crate) fn start(command: &mut Command) -> (Self, String) {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let Some((_, url)) = line.trim().split_once("listening on ") else {
            output.read_to_string(&mut line).unwrap();
            panic!("it did not start: {line:?}");
        };
        let url = url.to_owned();
        (Self(process), url)
    }

    /// Starts one that says nothing, and waits until it listens.
    pub(crate) fn start_at(command: &mut Command, address: &str) -> Self {
        let service = Self(command.spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "it did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        service
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Another signal, and how it ended.
    pub(crate) fn stop(mut self, signal: &str) -> ExitStatus {
        let id = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &id])
                .status()
                .unwrap()
                .success()
        );
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
