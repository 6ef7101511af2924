//! `semel migrate`: makes what a store needs on its server, or brings it to this version.

use std::io::Write as _;
use std::process::ExitCode;

use clap::ArgMatches;
use semel_stores::{Migrated, OpenError, OpenOptions};

use super::{FAILED, MISUSED, block_on, fail, with_causes};
use crate::config::Sources;

/// Migrates, and says what was done.
pub fn main(flags: &ArgMatches) -> ExitCode {
    let store = match Sources::collect(flags, |name| std::env::var_os(name)).store() {
        Ok(store) => store,
        Err(error) => return fail(MISUSED, error),
    };
    block_on(async {
        match semel_stores::migrate(&store.0, &OpenOptions::default()).await {
            Ok(migrated) => {
                say(&migrated);
                ExitCode::SUCCESS
            }
            Err(error @ OpenError::Store(_)) => {
                fail(FAILED, format_args!("error: {}", with_causes(&error)))
            }
            Err(error) => fail(MISUSED, format_args!("error: {error}")),
        }
    })
}

fn say(migrated: &Migrated) {
    let mut out = std::io::stdout().lock();
    let summary = match (migrated.done.is_empty(), migrated.from) {
        (true, _) => format!("nothing to do: version {}", migrated.to),
        (false, None) => format!("made version {}", migrated.to),
        (false, Some(from)) => format!("from version {from} to version {}", migrated.to),
    };
    // Where stdout is closed there is nobody to tell.
    for line in migrated.done.iter().chain([&summary]) {
        writeln!(out, "{line}").ok();
    }
}
