//! Processes that end when this one does, however it ends.

use std::io;
use std::process::{Child, Command, Output};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context as _, Result, bail};

type Job = Box<dyn FnOnce() + Send>;

static ENVIRONMENT: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// What all servers that this process starts from now on find in their environment, beside its own.
pub(super) fn environment(variables: Vec<(String, String)>) {
    *ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner) = variables;
}

/// A command that the kernel kills when the thread that started it ends.
pub(super) fn command(program: &str, arguments: &[String], user: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = user.filter(|_| rustix::process::geteuid().is_root()) {
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    }
    command.arg("--");
    let environment = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
    if !environment.is_empty() {
        // Not `setpriv` itself, which has another user's rights yet.
        let variables = environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        command.arg("env").args(variables);
    }
    command.arg(program).args(arguments);
    command
}

/// Starts it from a thread that lasts as long as this process: a test's thread ends before.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (jobs, work) = channel::<Job>();
        std::thread::spawn(move || work.into_iter().for_each(|job| job()));
        Mutex::new(jobs)
    });
    let (done, started) = sync_channel(1);
    let job = Box::new(move || drop(done.send(command.spawn())));
    let gone = || io::Error::other("the thread that starts servers is gone");
    starter
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send(job)
        .map_err(|_| gone())?;
    started.recv().map_err(|_| gone())?
}

/// Runs a command to its end, as this user where this process is root.
pub(super) fn run(program: &str, arguments: &[String], user: Option<&str>) -> Result<Output> {
    let output = command(program, arguments, user)
        .output()
        .with_context(|| format!("cannot run {program}: run scripts/setup"))?;
    if !output.status.success() {
        bail!(
            "{program} failed ({}): {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}
