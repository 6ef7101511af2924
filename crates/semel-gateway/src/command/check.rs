//! `semel check`: is this configuration right, and what would hold?

use std::io::Write as _;
use std::process::ExitCode;

use clap::ArgMatches;
use semel::Store as _;

use super::{MISUSED, block_on, fail, serve};
use crate::config::{Config, Sources};

/// Prints every setting with its value and where it comes from, and opens the store as `serve` does;
/// or says what is wrong, on stderr.
pub fn main(flags: &ArgMatches) -> ExitCode {
    let sources = Sources::collect(flags, |name| std::env::var_os(name));
    let config = match sources.config() {
        Ok(config) => config,
        Err(error) => return fail(MISUSED, error),
    };
    let mut out = std::io::stdout().lock();
    for line in sources.lines() {
        if writeln!(out, "{line}").is_err() {
            break;
        }
    }
    if flags.get_flag("no-open") {
        return ExitCode::SUCCESS;
    }
    serve::log_to_stderr(config.log_json, config.log_level);
    block_on(opens(&config))
}

async fn opens(config: &Config) -> ExitCode {
    match serve::open(config).await {
        Ok(store) => {
            // Nothing was written that could be lost.
            store.close().await.ok();
            ExitCode::SUCCESS
        }
        Err(error) => fail(MISUSED, format_args!("error: {error}")),
    }
}
