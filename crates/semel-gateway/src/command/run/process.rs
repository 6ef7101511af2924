//! The command as a process: in a group of its own, which outlives `semel run` for moments only.
//!
//! The first in the group is the *keeper*, this program again. It holds the reading end of a pipe whose
//! writing end only `semel run` has: when that dies, however it does, the kernel closes the pipe, and the
//! keeper stops the group. It is there before the command is started, so there is no moment in which the
//! command would run unguarded, and while it lives no other group gets its number.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{Arg, ArgMatches};
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process_group, umask};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::super::{FAILED, MISUSED, fail};

/// The hidden subcommand that is the keeper.
pub const KEEPER: &str = "keep-group";

/// What is passed on to the command.
const PASSED_ON: [Signal; 6] = [
    Signal::TERM,
    Signal::INT,
    Signal::QUIT,
    Signal::HUP,
    Signal::USR1,
    Signal::USR2,
];

/// The signals that this process gets from now on, in place of being ended by them.
pub(super) fn signals() -> io::Result<mpsc::UnboundedReceiver<Signal>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    for kind in PASSED_ON {
        // Under `nohup`; or in a shell's background, where what is typed is not for it.
        if is_ignored(kind) {
            continue;
        }
        let mut signals = signal(SignalKind::from_raw(kind.as_raw()))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() && sender.send(kind).is_ok() {}
        });
    }
    Ok(receiver)
}

/// Whether the system does not even deliver it, as far as it says so.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

/// A process group, with its keeper.
pub(super) struct Group {
    keeper: Child,
    id: Pid,
}

impl Group {
    /// A group whose processes have this long to end once they are told to.
    pub(super) fn start(grace: Duration) -> io::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let mut keeper = Command::new(this_program()?)
            .arg(KEEPER)
            .arg(grace.as_millis().to_string())
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let gone = || io::Error::other("the process that keeps its group did not start");
        // Only now does a signal to the group leave the keeper alive.
        let mut ready = [0];
        let stdout = keeper.stdout.as_mut().ok_or_else(gone)?;
        stdout.read_exact(&mut ready).map_err(|_| gone())?;
        let id = i32::try_from(keeper.id()).ok().and_then(Pid::from_raw);
        Ok(Self {
            id: id.ok_or_else(gone)?,
            keeper,
        })
    }

    /// Starts a command in it.
    pub(super) fn spawn(
        &self,
        words: &[OsString],
        variables: [(&str, String); 3],
        stdin: Stdio,
        mode: Mode,
    ) -> io::Result<Running> {
        use std::os::unix::process::CommandExt as _;
        let (program, arguments) = words
            .split_first()
            .ok_or_else(|| io::Error::other("no command"))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(variables)
            .process_group(self.id.as_raw_nonzero().get())
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // This program's own is stricter, and nothing of the command's.
        let own = umask(mode);
        let child = command.spawn();
        umask(own);
        let mut child = child?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        Ok(Running {
            child,
            stdout: stdout.into(),
            stderr: stderr.into(),
        })
    }

    /// Sends a signal to all in it. The keeper minds only SIGKILL.
    pub(super) fn signal(&self, signal: Signal) {
        // Nobody may be left.
        kill_process_group(self.id, signal).ok();
        // A stopped process acts on nothing else.
        if signal != Signal::KILL {
            kill_process_group(self.id, Signal::CONT).ok();
        }
    }
}

/// Lets it go: what is left in it runs on.
impl Drop for Group {
    fn drop(&mut self) {
        self.keeper.kill().ok();
        self.keeper.wait().ok();
    }
}

/// A command that was started.
pub(super) struct Running {
    pub(super) child: Child,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// This program's file, also where another one has taken its place meanwhile.
fn this_program() -> io::Result<PathBuf> {
    let own = Path::new("/proc/self/exe");
    match own.exists() {
        true => Ok(own.to_owned()),
        false => std::env::current_exe(),
    }
}

/// The command line of the keeper.
pub(super) fn keeper() -> clap::Command {
    clap::Command::new(KEEPER).hide(true).arg(
        Arg::new("grace")
            .required(true)
            .value_parser(clap::value_parser!(u64)),
    )
}

/// The keeper: stops its group once nobody holds its stdin any more.
pub fn keep(flags: &ArgMatches) -> ExitCode {
    if getpgrp() != getpid() {
        return fail(MISUSED, "error: this is started by `semel run` only");
    }
    let grace = flags.get_one::<u64>("grace").copied().unwrap_or(0);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let listening = runtime.and_then(|runtime| {
        let listening = runtime.block_on(async { signals() })?;
        let mut stdout = io::stdout();
        stdout.write_all(b"r").and_then(|()| stdout.flush())?;
        Ok((runtime, listening))
    });
    // Held, so that signals keep being taken.
    let Ok((_runtime, _listening)) = listening else {
        return ExitCode::from(FAILED);
    };
    // It ends, too, where reading fails.
    io::stdin().read_to_end(&mut Vec::new()).ok();
    let group = getpgrp();
    kill_process_group(group, Signal::TERM).ok();
    kill_process_group(group, Signal::CONT).ok();
    std::thread::sleep(Duration::from_millis(grace));
    kill_process_group(group, Signal::KILL).ok();
    ExitCode::SUCCESS
}
