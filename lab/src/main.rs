//! The program: `cargo run --release --manifest-path lab/Cargo.toml -- COMMAND …`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use semel_lab::worker::process;
use semel_lab::{controls, crash, events, gateway, lost, power, simulation, soak, torture};

fn main() -> ExitCode {
    match command(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("semel-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether what was asked for went well.
fn command(mut arguments: impl Iterator<Item = String>) -> Result<bool> {
    match arguments.next().as_deref() {
        Some("torture") => {
            let mut arguments: Vec<String> = arguments.collect();
            if let Some(at) = arguments.iter().position(|name| name == "--through") {
                let through = arguments.drain(at..arguments.len().min(at + 2)).nth(1);
                return through_gateways(through.as_deref(), arguments);
            }
            let options = torture::Options::parse(arguments)?;
            let program = std::env::current_exe()?;
            let runtime = tokio::runtime::Runtime::new()?;
            let report = runtime.block_on(torture::run(&options, &program))?;
            report.print()?;
            Ok(report.passed())
        }
        Some("crash-matrix") => {
            let options = crash::Options::parse(arguments)?;
            let program = std::env::current_exe()?;
            let runtime = tokio::runtime::Runtime::new()?;
            let report = runtime.block_on(crash::run(&options, &program))?;
            report.print()?;
            Ok(report.passed())
        }
        // Not for people: a worker of it.
        Some(crash::worker::COMMAND) => {
            crash::worker::run()?;
            Ok(true)
        }
        Some("lost") => {
            let options = lost::Options::parse(arguments)?;
            let program = std::env::current_exe()?;
            let runtime = tokio::runtime::Runtime::new()?;
            runtime.block_on(lost::run(&options, &program))
        }
        // Not for people: a worker of it.
        Some(lost::worker::COMMAND) => {
            lost::worker::run(&arguments.next().context("no settings")?)?;
            Ok(true)
        }
        Some("events") => storm(events::Storm::Events, arguments),
        Some("versioned") => storm(events::Storm::Versioned, arguments),
        // Not for people: a consumer of these.
        Some(events::consumer::COMMAND) => {
            events::consumer::run()?;
            Ok(true)
        }
        Some("soak") => {
            let options = soak::Options::parse(arguments)?;
            let program = std::env::current_exe()?;
            let runtime = tokio::runtime::Runtime::new()?;
            let report = runtime.block_on(soak::run(&options, &program))?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(report.passed())
        }
        Some("controls") => {
            let names: Vec<String> = arguments.collect();
            let program = std::env::current_exe()?;
            let runtime = tokio::runtime::Runtime::new()?;
            runtime.block_on(controls::run(&names, &program))
        }
        // Not for people: the service behind the gateways.
        Some(gateway::upstream::COMMAND) => {
            gateway::upstream::run(&arguments.next().context("no settings")?)?;
            Ok(true)
        }
        Some("check") => {
            let folder = arguments.next().context("check needs a run's folder")?;
            match gateway::is_of_a_run(folder.as_ref()) {
                true => gateway::again(folder.as_ref()),
                false => torture::again(folder.as_ref()),
            }
        }
        Some("simulate") => simulation::run(&simulation::Options::parse(arguments)?),
        Some("power-loss") => power::run(arguments, &std::env::current_exe()?),
        // Not for people: a set-up of `power-loss`, and its callers.
        Some(power::COMMAND) => {
            let mut next = |what| arguments.next().with_context(|| format!("no {what}"));
            let (store, setting) = (next("store")?, next("setting")?);
            let (folder, seconds) = (next("folder")?, next("seconds")?.parse()?);
            power::set_up(&store, &setting, folder.as_ref(), seconds)?;
            Ok(true)
        }
        Some(power::callers::COMMAND) => {
            power::callers::run(&arguments.next().context("no URL")?)?;
            Ok(true)
        }
        // Not for people: a worker of a run.
        Some(process::COMMAND) => {
            let (settings, number, life) = worker(arguments)?;
            process::run(settings.as_ref(), number, life)?;
            Ok(true)
        }
        // Not for people: a worker of a soak.
        Some(soak::worker::COMMAND) => {
            let (settings, number, life) = worker(arguments)?;
            soak::worker::run(settings.as_ref(), number, life)?;
            Ok(true)
        }
        _ => bail!(
            "usage: semel-lab {}\n       semel-lab {}\n       semel-lab {}\n       semel-lab {}\n       semel-lab {}\n       semel-lab {}\n       semel-lab {}\n       semel-lab {}\n       semel-lab check FOLDER",
            torture::USAGE,
            crash::USAGE,
            lost::USAGE,
            events::USAGE,
            controls::USAGE,
            soak::USAGE,
            power::USAGE,
            simulation::USAGE
        ),
    }
}

fn worker(mut arguments: impl Iterator<Item = String>) -> Result<(String, u32, u32)> {
    let mut next = |what| arguments.next().with_context(|| format!("no {what}"));
    let settings = next("settings")?;
    Ok((settings, next("number")?.parse()?, next("life")?.parse()?))
}

fn through_gateways(through: Option<&str>, arguments: Vec<String>) -> Result<bool> {
    if through != Some("gateway") {
        bail!("--through gateway is all there is");
    }
    let options = gateway::Options::parse(arguments)?;
    let program = std::env::current_exe()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let report = runtime.block_on(gateway::run(&options, &program))?;
    report.print()?;
    Ok(report.passed())
}

fn storm(storm: events::Storm, arguments: impl Iterator<Item = String>) -> Result<bool> {
    let options = events::Options::parse(storm, arguments)?;
    let program = std::env::current_exe()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let report = runtime.block_on(events::run(&options, &program))?;
    report.print()?;
    Ok(report.passed())
}
