//! The program `semel`.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use semel_gateway::command;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // Whatever a store's engine makes is for its owner only: answers and parts of keys are in it.
    let umask = rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let matches = match command::line::command().try_get_matches() {
        Ok(matches) => matches,
        // Its statuses are not to be taken for those of a command.
        Err(error)
            if error.use_stderr() && std::env::args_os().nth(1).is_some_and(|arg| arg == "run") =>
        {
            return command::run::misused(&error);
        }
        Err(error) => error.exit(),
    };
    match matches.subcommand() {
        Some(("serve", flags)) => command::serve::main(flags),
        Some(("check", flags)) => command::check::main(flags),
        Some(("migrate", flags)) => command::migrate::main(flags),
        Some(("conformance", flags)) => command::conformance::main(flags),
        Some(("records", flags)) => command::records::main(flags),
        Some(("audit", flags)) => command::audit::main(flags),
        Some(("top", flags)) => command::top::main(flags),
        Some(("completions", flags)) => command::shell::completions(flags),
        Some(("man", flags)) => command::shell::man(flags),
        Some(("demo", flags)) => command::demo::main(flags),
        Some(("run", flags)) => command::run::main(flags, umask),
        Some((command::run::KEEPER, flags)) => command::run::keep(flags),
        // The parser lets nothing else through.
        _ => ExitCode::from(command::MISUSED),
    }
}
