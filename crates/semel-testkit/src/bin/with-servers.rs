//! Starts a server of each kind, runs a command with their URLs in its environment, and stops them.
//!
//! `with-servers [--only KIND,KIND…] COMMAND ARGUMENT…`. A kind whose URL is in the environment
//! already is not started.

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use semel_testkit::servers::{Kind, Server, start};

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let mut kinds = Kind::ALL.to_vec();
    if arguments.next_if(|argument| argument == "--only").is_some() {
        let names = arguments.next().context("--only needs names of kinds")?;
        let names = names
            .into_string()
            .ok()
            .context("--only needs names of kinds")?;
        kinds = names
            .split(',')
            .filter(|name| !name.is_empty())
            .map(|name| Kind::from_name(name).with_context(|| unknown(name)))
            .collect::<Result<_>>()?;
    }
    let Some(program) = arguments.next() else {
        bail!("usage: with-servers [--only KIND,KIND…] COMMAND ARGUMENT…");
    };
    kinds.retain(|kind| std::env::var_os(kind.variable()).is_none());

    let servers = start_all(&kinds)?;
    let mut command = Command::new(program);
    command.args(arguments);
    for (kind, server) in &servers {
        command.env(kind.variable(), server.url());
    }
    let status = command.status().context("cannot run the command")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn unknown(name: &str) -> String {
    let known = Kind::ALL.map(Kind::name).join(", ");
    format!("there is no kind of server {name:?}; there are {known}")
}

#[expect(clippy::print_stderr, reason = "says why nothing happens for a while")]
fn start_all(kinds: &[Kind]) -> Result<Vec<(Kind, Box<dyn Server>)>> {
    let from = Instant::now();
    let servers = std::thread::scope(|scope| {
        let starting: Vec<_> = kinds
            .iter()
            .map(|&kind| (kind, scope.spawn(move || start(kind))))
            .collect();
        starting
            .into_iter()
            .map(|(kind, thread)| match thread.join() {
                Ok(server) => Ok((kind, server?)),
                Err(_) => bail!("starting {} panicked", kind.name()),
            })
            .collect::<Result<Vec<_>>>()
    })?;
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    eprintln!("servers: {} after {:.1?}", names.join(", "), from.elapsed());
    Ok(servers)
}
