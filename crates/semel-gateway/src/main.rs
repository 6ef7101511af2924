//! The program `semel`.

use std::process::ExitCode;

use semel_gateway::command;

fn main() -> ExitCode {
    // Whatever a store's engine makes is for its owner only: answers and parts of keys are in it.
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let matches = command::line::command().get_matches();
    match matches.subcommand() {
        Some(("serve", flags)) => command::serve::main(flags),
        Some(("check", flags)) => command::check::main(flags),
        Some(("migrate", flags)) => command::migrate::main(flags),
        Some(("conformance", flags)) => command::conformance::main(flags),
        Some(("demo", flags)) => command::demo::main(flags),
        // The parser lets nothing else through.
        _ => ExitCode::from(command::MISUSED),
    }
}
