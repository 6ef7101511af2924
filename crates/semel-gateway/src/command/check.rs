//! `semel check`: is this configuration right, and what would hold?

use std::io::Write as _;
use std::process::ExitCode;

use clap::ArgMatches;

use super::{MISUSED, fail};
use crate::config::Sources;

/// Prints every setting with its value and where it comes from; or what is wrong, on stderr.
pub fn main(flags: &ArgMatches) -> ExitCode {
    let sources = Sources::collect(flags, |name| std::env::var_os(name));
    if let Err(error) = sources.config() {
        return fail(MISUSED, error);
    }
    let mut out = std::io::stdout().lock();
    for line in sources.lines() {
        if writeln!(out, "{line}").is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}
