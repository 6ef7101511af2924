//! The program: `cargo run --release --manifest-path lab/Cargo.toml -- COMMAND …`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use semel_lab::controls::{self, Control};
use semel_lab::{crash, events, gateway, lost, part, power, simulation, soak, torture};

/// Breaks stores while many processes use them, and checks what they were told: docs/lab.md.
#[derive(Debug, Parser)]
#[command(args_override_self = true)]
enum Command {
    /// Does a store keep the protocol while everything breaks?
    Torture(torture::Options),
    /// Do gateways?
    #[command(name = THROUGH_GATEWAY)]
    Gateway(gateway::Options),
    /// What is left of acknowledged steps when the power goes?
    PowerLoss(power::Options),
    /// Does an effect happen once, wherever a process is killed?
    CrashMatrix(crash::Options),
    /// Is each event applied once?
    Events(events::Options),
    /// Is no update lost?
    Versioned(events::Options),
    /// What about orderings that real runs do not meet?
    Simulate(simulation::Options),
    /// What becomes of lost attempts under each policy?
    Lost(lost::Options),
    /// Does anything grow?
    Soak(soak::Options),
    /// Do set-ups that are known to lose something show it?
    Controls {
        /// These only.
        names: Vec<Control>,
    },
    /// Checks a run of torture again.
    Check {
        /// What it left.
        folder: PathBuf,
    },
    // Not for people: a process that the lab starts of itself.
    #[command(name = part::COMMAND, hide = true)]
    Part { part: String },
}

/// `torture` with these two words, wherever they stand, is another command.
const THROUGH_GATEWAY: &str = "torture --through gateway";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().collect();
    let mut pairs = words.windows(2);
    if let Some(at) = pairs.position(|pair| pair == ["--through", "gateway"]) {
        words.drain(at..at + 2);
        if let Some(command) = words.get_mut(1) {
            *command += " --through gateway";
        }
    }
    match done(Command::parse_from(words)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("semel-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether what was asked for went well.
fn done(command: Command) -> Result<bool> {
    match command {
        Command::Torture(options) => wait(torture::run(&options)),
        Command::Gateway(options) => wait(gateway::run(&options)),
        Command::PowerLoss(options) => power::run(&options),
        Command::CrashMatrix(options) => wait(crash::run(&options)),
        Command::Events(options) => wait(events::run(&options)),
        Command::Versioned(mut options) => {
            options.storm = events::Storm::Versioned;
            wait(events::run(&options))
        }
        Command::Simulate(options) => simulation::run(&options),
        Command::Lost(options) => wait(lost::run(&options)),
        Command::Soak(options) => wait(soak::run(&options)),
        Command::Controls { names } => wait(controls::run(&names)),
        Command::Check { folder } => match gateway::is_of_a_run(&folder) {
            true => gateway::again(&folder),
            false => torture::again(&folder),
        },
        Command::Part { part } => part::play(&part).map(|()| true),
    }
}

fn wait(run: impl Future<Output = Result<bool>>) -> Result<bool> {
    tokio::runtime::Runtime::new()?.block_on(run)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::Command;

    #[test]
    fn the_commands_are_consistent() {
        Command::command().debug_assert();
    }

    #[test]
    fn several_stores_follow_one_option() {
        let words = "lab power-loss --store file redis --seconds 3 --store nats";
        let command = Command::try_parse_from(words.split(' ')).unwrap();
        let Command::PowerLoss(options) = command else {
            panic!("{command:?}");
        };
        assert_eq!((options.stores.len(), options.seconds), (3, 3));
    }
}
