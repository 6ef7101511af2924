//! One process of a server.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use super::guarded;

/// A process that listens on a port of this machine, and can be broken and started again.
#[derive(Debug)]
pub struct Node {
    name: &'static str,
    program: String,
    arguments: Vec<String>,
    user: Option<&'static str>,
    port: u16,
    ready: Ready,
    log: PathBuf,
    process: Mutex<Option<Child>>,
}

/// When a process that was started can be used.
#[derive(Debug)]
pub(super) enum Ready {
    /// It takes connections.
    Listens,
    /// It answers these bytes with something that starts with those.
    Answers(String, &'static str),
    /// The same on another port.
    AnswersAt(u16, String, &'static str),
    /// This command succeeds.
    Succeeds(String, Vec<String>),
}

// Long enough for a machine that builds at the same time.
const PATIENCE: Duration = Duration::from_secs(60);

impl Node {
    /// A process that is not started yet. What it prints goes to a file in `folder`.
    pub(super) fn new(
        name: &'static str,
        program: impl Into<String>,
        port: u16,
        folder: &Path,
    ) -> Self {
        Self {
            name,
            program: program.into(),
            arguments: Vec::new(),
            user: None,
            port,
            ready: Ready::Listens,
            log: folder.join(format!("{name}-{port}.log")),
            process: Mutex::new(None),
        }
    }

    /// With these arguments.
    pub(super) fn args<A: Into<String>>(mut self, more: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(more.into_iter().map(Into::into));
        self
    }

    /// As this user, where this process is root.
    pub(super) const fn user(mut self, user: &'static str) -> Self {
        self.user = Some(user);
        self
    }

    /// Usable only then.
    pub(super) fn ready(mut self, ready: Ready) -> Self {
        self.ready = ready;
        self
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        at(self.port)
    }

    /// Its process id, where it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Child::id)
    }

    /// Starts the process, and waits until it can be used. Does nothing where it runs.
    ///
    /// # Errors
    /// Shows what it printed where it ends or cannot be used in time.
    pub fn start(&self) -> Result<()> {
        self.launch()?;
        self.wait_until_ready()
    }

    /// Starts the process without waiting for it.
    ///
    /// # Errors
    /// Says what is not installed.
    pub fn launch(&self) -> Result<()> {
        let mut process = self.process();
        if process.is_some() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = guarded::command(&self.program, &self.arguments, self.user);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = guarded::spawn(command)
            .with_context(|| format!("cannot run {}: run scripts/setup", self.program))?;
        *process = Some(child);
        Ok(())
    }

    /// Waits until it can be used.
    ///
    /// # Errors
    /// Shows what it printed where it ends or cannot be used in time.
    pub fn wait_until_ready(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !self.is_ready() {
            let over = match self.process().as_mut() {
                Some(child) => child.try_wait()?.is_some(),
                None => true,
            };
            if over || Instant::now() > end {
                self.kill();
                bail!(
                    "{} cannot be used; it printed:\n{}",
                    self.name,
                    self.printed()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        match &self.ready {
            Ready::Listens => TcpStream::connect(self.address()).is_ok(),
            Ready::Answers(question, wanted) => answers(self.address(), question, wanted),
            Ready::AnswersAt(port, question, wanted) => answers(at(*port), question, wanted),
            Ready::Succeeds(program, arguments) => guarded::run(program, arguments, None).is_ok(),
        }
    }

    /// SIGSTOP to it and its children: it keeps its connections and answers nothing.
    pub fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// SIGCONT to it and its children.
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// SIGKILL to it and its children, and waits until they are gone. PostgreSQL's children would
    /// otherwise live a moment longer than the server, and keep the next one from starting.
    pub fn kill(&self) {
        if let Some(mut child) = self.process().take() {
            let end = Instant::now() + PATIENCE;
            // Once it stands still, it makes no more of them.
            send(child.id(), Signal::STOP);
            while !matches!(state(child.id()), None | Some('T' | 'Z')) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            let orphans = children(child.id());
            for orphan in &orphans {
                send(*orphan, Signal::KILL);
            }
            child.kill().ok();
            child.wait().ok();
            let runs = |orphan: &u32| !matches!(state(*orphan), None | Some('Z'));
            while orphans.iter().any(runs) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Sends it a signal that ends it, and waits until it is gone; kills it where it will not go.
    /// SIGTERM asks most servers to stop in order; SIGQUIT makes PostgreSQL stop at once.
    pub fn end(&self, signal: Signal) {
        self.signal(signal);
        if let Some(mut child) = self.process().take() {
            let end = Instant::now() + PATIENCE;
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > end {
                    child.kill().ok();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// What it printed last.
    pub fn printed(&self) -> String {
        let printed = std::fs::read(&self.log).unwrap_or_default();
        let tail = printed.len().saturating_sub(4000);
        String::from_utf8_lossy(&printed[tail..]).into_owned()
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.pid() {
            send(id, signal);
        }
    }

    // A server of several processes (PostgreSQL) is paused only when all of them are.
    fn signal_all(&self, signal: Signal) {
        let Some(id) = self.pid() else { return };
        send(id, signal);
        for child in children(id) {
            send(child, signal);
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn send(id: u32, signal: Signal) {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // Gone already: that is what a fault may have done.
        kill_process(pid, signal).ok();
    }
}

fn children(id: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let list = list.unwrap_or_default();
    list.split_whitespace()
        .filter_map(|c| c.parse().ok())
        .collect()
}

// As proc_pid_stat(5) has it: Z is a remainder that nobody has asked about, T one that stands still. None: it is gone.
fn state(id: u32) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    status.rsplit_once(") ")?.1.chars().next()
}

fn answers(address: SocketAddr, question: &str, wanted: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(question.as_bytes())?;
        let mut answer = vec![0; wanted.len()];
        stream.read_exact(&mut answer)?;
        Ok(answer == wanted.as_bytes())
    };
    ask().unwrap_or(false)
}
