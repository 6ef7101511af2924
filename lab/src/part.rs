//! The processes that the lab starts of its own program, each with a part in an experiment.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use crate::{crash, events, gateway, lost, power, soak, worker};

/// What such a process is told. One that may be killed and started again has a number, and counts its lives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Part {
    Worker(worker::Settings, u32, u32),
    SoakWorker(soak::worker::Settings, u32, u32),
    CrashWorker(crash::worker::Settings),
    Consumer(events::consumer::Settings),
    LostWorker(lost::worker::Settings),
    Upstream(gateway::upstream::Settings),
    PowerLossSetup(power::Settings),
    PowerLossCallers(String),
}

/// The hidden subcommand, before a part as JSON.
pub const COMMAND: &str = "part";

/// Plays a part to its end.
///
/// # Errors
/// Where it is none, or its store cannot be used.
pub fn play(part: &str) -> Result<()> {
    let (one, mut two) = (Builder::new_current_thread(), Builder::new_multi_thread());
    two.worker_threads(2);
    match serde_json::from_str(part)? {
        Part::Worker(settings, number, life) => {
            on(two, worker::process::run(settings, number, life))
        }
        Part::SoakWorker(settings, number, life) => {
            on(two, soak::worker::run(settings, number, life))
        }
        Part::CrashWorker(settings) => on(one, crash::worker::run(settings)),
        Part::Consumer(settings) => on(one, events::consumer::run(settings)),
        Part::LostWorker(settings) => on(two, lost::worker::run(settings)),
        Part::Upstream(settings) => on(two, gateway::upstream::run(settings)),
        Part::PowerLossSetup(settings) => on(two, power::set_up(settings)),
        Part::PowerLossCallers(url) => on(two, power::callers::run(&url)),
    }
}

fn on(mut threads: Builder, part: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = threads.enable_all().build()?;
    let played = runtime.block_on(part);
    // A thread that reads the input would keep it waiting.
    runtime.shutdown_background();
    played
}
