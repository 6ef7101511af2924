//! `semel check`: checks a configuration, prints the settings and the routes, and opens the store; or
//! explains one request.

use std::io::Write as _;
use std::process::ExitCode;

use clap::ArgMatches;

use super::{MISUSED, block_on, explain, fail};
use crate::access::Access;
use crate::config::{self, Sources};
use crate::store;

/// Prints every setting with its value and where it comes from, and what was found of the store; or
/// what is wrong, on stderr.
pub fn main(flags: &ArgMatches) -> ExitCode {
    if flags.get_flag("schema") {
        print([format!("{:#}", config::schema())]);
        return ExitCode::SUCCESS;
    }
    let sources = Sources::collect(flags, |name| std::env::var_os(name));
    let config = match sources.config() {
        Ok(config) => config,
        Err(error) => return fail(MISUSED, error),
    };
    for files in [&config.tls, &config.admin_tls].into_iter().flatten() {
        if let Err(error) = files.check() {
            return fail(MISUSED, format_args!("error: {error}"));
        }
    }
    if let Err(error) = Access::open(&config.tokens) {
        return fail(MISUSED, format_args!("error: {error}"));
    }
    if config.asks_over_tls()
        && let Err(error) = config.trust().read()
    {
        return fail(MISUSED, format_args!("error: {error}"));
    }
    if let Some(Err(error)) = config.jwt.as_ref().map(|jwt| jwt.jwks.check()) {
        return fail(MISUSED, format_args!("error: {error}"));
    }
    if let Some(line) = flags.get_one::<String>("request") {
        let fields = flags.get_many("header").unwrap_or_default();
        let body = flags.get_one::<String>("body").cloned();
        let request = match explain::request(line, fields, body, &config) {
            Ok(request) => request,
            Err(error) => return fail(MISUSED, format_args!("error: {error}")),
        };
        return block_on(async {
            match explain::lines(&sources, config, request).await {
                Ok(lines) => {
                    print(lines);
                    ExitCode::SUCCESS
                }
                Err(error) => fail(MISUSED, format_args!("error: {error}")),
            }
        });
    }
    print(sources.lines());
    if flags.get_flag("no-open") {
        return ExitCode::SUCCESS;
    }
    block_on(async {
        match store::look(&config.store, &config.at_rest).await {
            Ok(found) => {
                print(found.into_iter().map(|line| format!("store: {line}")));
                ExitCode::SUCCESS
            }
            Err(error) => fail(error.code(), format_args!("error: {error}")),
        }
    })
}

fn print(lines: impl IntoIterator<Item = String>) {
    let mut out = std::io::stdout().lock();
    for line in lines {
        if writeln!(out, "{line}").is_err() {
            break;
        }
    }
}
