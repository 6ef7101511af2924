//! The command line.

use clap::builder::ArgAction;
use clap::{Arg, Command};

use crate::config::settings::{SETTINGS, Setting};

/// The whole command line.
pub fn command() -> Command {
    let settings = || SETTINGS.iter().map(Setting::arg);
    Command::new("semel")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Makes operations happen once: a gateway for idempotency keys over HTTP")
        .after_help(
            "Settings: a flag beats the environment, which beats the file.\n\
             Exit codes: 0 done; 1 failed; 2 the command line or the configuration is wrong.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(100)
        .subcommand(
            Command::new("serve")
                .about("Runs the gateway")
                .after_help(SERVE)
                .args(settings()),
        )
        .subcommand(
            Command::new("check")
                .about("Validates a configuration, prints the settings and the routes, and opens the store")
                .args(settings())
                .arg(
                    Arg::new("no-open")
                        .long("no-open")
                        .action(ArgAction::SetTrue)
                        .help("Do not open the store: a gateway may have it open"),
                )
                .arg(
                    Arg::new("schema")
                        .long("schema")
                        .action(ArgAction::SetTrue)
                        .help("Print a JSON Schema of the configuration file, and do nothing else"),
                )
                .arg(text(
                    "request",
                    "'METHOD PATH'",
                    "Say what would become of a request, in place of all that; the store is not opened",
                ))
                .arg(
                    text("header", "'NAME: VALUE'", "A field of that request; may be given again")
                        .requires("request")
                        .action(ArgAction::Append),
                )
                .arg(
                    text("body", "TEXT", "Its body, in which some presets look for the key")
                        .requires("request"),
                ),
        )
        .subcommand(
            Command::new("migrate")
                .about("Makes what the store needs on its server, or brings it to this version")
                .args(store()),
        )
        .subcommand(
            Command::new("conformance")
                .about("Runs the suite that every store passes against a store")
                .after_help(
                    "Give it a store of its own (a table, a prefix, a bucket): records stay behind, \
                     and some stay in flight.",
                )
                .arg(
                    text("store", "URL", "The store to test; no gateway may use it").required(true),
                )
                .arg(text("only", "NAME", "Only cases whose name contains this"))
                .arg(
                    text("jobs", "N", "How many cases run at the same time")
                        .default_value("8")
                        .value_parser(clap::value_parser!(u16).range(1..=256)),
                ),
        )
        .subcommand(super::records::command())
        .subcommand(super::records::audit())
        .subcommand(super::top::command())
        .subcommand(demo())
        .subcommand(
            Command::new("completions")
                .about("Prints what a shell completes command lines by")
                .arg(
                    Arg::new("shell")
                        .value_name("SHELL")
                        .required(true)
                        .value_parser(clap::value_parser!(clap_complete::Shell)),
                ),
        )
        .subcommand(
            Command::new("man")
                .about("Writes the manual's pages, one for each command")
                .arg(
                    Arg::new("directory")
                        .value_name("DIR")
                        .help("Where to [default: this directory]"),
                ),
        )
        .subcommands(super::run::commands())
}

const SERVE: &str = "\
SIGHUP, or a change of the file: the configuration is read again; a wrong one changes nothing.

Open files: the limit is raised to the hard one at start. Allow at least --max-connections + \
twice --max-attempts + 1024 (LimitNOFILE in systemd, `ulimit -Hn`); with fewer, fewer connections are \
accepted.

Exit codes: 0 stopped, all attempts ended; 1 a failure while running, or attempts still running at the \
end of --drain; 2 not started: the configuration is wrong, or the store or an address cannot be \
used.";

/// The settings that say which store.
fn store() -> impl Iterator<Item = Arg> {
    SETTINGS
        .iter()
        .filter(|setting| ["store", "config"].contains(&setting.name))
        .map(Setting::arg)
}

pub(super) fn text(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

fn demo() -> Command {
    Command::new("demo")
        .about("Runs a small shop to try the gateway on: POST /orders, GET /orders")
        .arg(
            text("listen", "ADDR", "Where it listens")
                .default_value("127.0.0.1:9000")
                .action(ArgAction::Set),
        )
        .arg(text("delay", "DUR", "How long it takes to place an order").default_value("0s"))
        .arg(text(
            "ledger",
            "FILE",
            "Where orders are written down, synced before they are answered",
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }
}
