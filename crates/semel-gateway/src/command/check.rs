//! `semel check`: checks a configuration, prints the settings, and opens the store.

use std::io::Write as _;
use std::process::ExitCode;

use clap::ArgMatches;

use super::{MISUSED, block_on, fail};
use crate::config::Sources;
use crate::store;
use crate::tls::client::Trust;
use crate::tls::server::Files;

/// Prints every setting with its value and where it comes from, and what was found of the store; or
/// what is wrong, on stderr.
pub fn main(flags: &ArgMatches) -> ExitCode {
    let sources = Sources::collect(flags, |name| std::env::var_os(name));
    let config = match sources.config() {
        Ok(config) => config,
        Err(error) => return fail(MISUSED, error),
    };
    if let Some(Err(error)) = config.tls.as_ref().map(Files::check) {
        return fail(MISUSED, format_args!("error: {error}"));
    }
    if config.asks_over_tls()
        && let Err(error) = Trust::new(config.upstream_ca.clone()).read()
    {
        return fail(MISUSED, format_args!("error: {error}"));
    }
    let mut out = std::io::stdout().lock();
    for line in sources.lines() {
        if writeln!(out, "{line}").is_err() {
            break;
        }
    }
    // Its threads must not hold the output.
    drop(out);
    if flags.get_flag("no-open") {
        return ExitCode::SUCCESS;
    }
    block_on(async {
        match store::look(&config.store).await {
            Ok(found) => {
                let mut out = std::io::stdout().lock();
                for line in found {
                    writeln!(out, "store: {line}").ok();
                }
                ExitCode::SUCCESS
            }
            Err(error) => fail(error.code(), format_args!("error: {error}")),
        }
    })
}
