//! The program: `cargo run --release --manifest-path lab/Cargo.toml -- COMMAND …`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser};
use semel_lab::controls::{self, Control};
use semel_lab::worker::{self, process};
use semel_lab::{crash, events, gateway, lost, power, simulation, soak, torture};
use serde::de::DeserializeOwned;

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
    // Not for people: the processes that the lab starts of itself.
    #[command(name = process::COMMAND, hide = true)]
    Worker(Life<worker::Settings>),
    #[command(name = soak::worker::COMMAND, hide = true)]
    SoakWorker(Life<soak::worker::Settings>),
    #[command(name = crash::worker::COMMAND, hide = true)]
    CrashWorker(Part<crash::worker::Settings>),
    #[command(name = lost::worker::COMMAND, hide = true)]
    LostWorker(Part<lost::worker::Settings>),
    #[command(name = events::consumer::COMMAND, hide = true)]
    Consumer(Part<events::consumer::Settings>),
    #[command(name = gateway::upstream::COMMAND, hide = true)]
    Upstream(Part<gateway::upstream::Settings>),
    #[command(name = power::COMMAND, hide = true)]
    PowerLossSetup(power::Part),
    #[command(name = power::callers::COMMAND, hide = true)]
    PowerLossCallers { url: String },
}

/// What a process of the lab's own is told, as JSON.
#[derive(Debug, Args)]
struct Part<S: Told> {
    #[arg(value_parser = json::<S>)]
    settings: S,
}

/// The same of one that may be killed and started again.
#[derive(Debug, Args)]
struct Life<S: Told> {
    #[arg(value_parser = json::<S>)]
    settings: S,
    number: u32,
    life: u32,
}

trait Told: Clone + Send + Sync + DeserializeOwned + 'static {}

impl<S: Clone + Send + Sync + DeserializeOwned + 'static> Told for S {}

fn json<S: Told>(text: &str) -> serde_json::Result<S> {
    serde_json::from_str(text)
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
    let program = &std::env::current_exe()?;
    match command {
        Command::Torture(options) => wait(torture::run(&options, program)),
        Command::Gateway(options) => wait(gateway::run(&options, program)),
        Command::PowerLoss(options) => power::run(&options, program),
        Command::CrashMatrix(options) => wait(crash::run(&options, program)),
        Command::Events(options) => wait(events::run(&options, program)),
        Command::Versioned(mut options) => {
            options.storm = events::Storm::Versioned;
            wait(events::run(&options, program))
        }
        Command::Simulate(options) => simulation::run(&options),
        Command::Lost(options) => wait(lost::run(&options, program)),
        Command::Soak(options) => wait(soak::run(&options, program)),
        Command::Controls { names } => wait(controls::run(&names, program)),
        Command::Check { folder } => match gateway::is_of_a_run(&folder) {
            true => gateway::again(&folder),
            false => torture::again(&folder),
        },
        Command::Worker(of) => process::run(of.settings, of.number, of.life).map(well),
        Command::SoakWorker(of) => soak::worker::run(of.settings, of.number, of.life).map(well),
        Command::CrashWorker(of) => crash::worker::run(of.settings).map(well),
        Command::LostWorker(of) => lost::worker::run(of.settings).map(well),
        Command::Consumer(of) => events::consumer::run(of.settings).map(well),
        Command::Upstream(of) => gateway::upstream::run(of.settings).map(well),
        Command::PowerLossSetup(of) => power::set_up(&of).map(well),
        Command::PowerLossCallers { url } => power::callers::run(&url).map(well),
    }
}

const fn well((): ()) -> bool {
    true
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
