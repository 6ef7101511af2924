//! `semel completions` and `semel man`: made of the same definitions as the command line itself.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::ArgMatches;
use clap_complete::Shell;

use super::{FAILED, fail, line};

/// Prints what a shell completes command lines by.
pub fn completions(flags: &ArgMatches) -> ExitCode {
    if let Some(shell) = flags.get_one::<Shell>("shell") {
        // Where nobody reads on there is nobody to tell.
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut line::command(), "semel", &mut script);
        io::Write::write_all(&mut io::stdout(), &script).ok();
    }
    ExitCode::SUCCESS
}

/// Writes the manual's pages, one for each command.
pub fn man(flags: &ArgMatches) -> ExitCode {
    let directory = flags
        .get_one::<String>("directory")
        .map_or(".", String::as_str);
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(line::command(), Path::new(directory)));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(
            FAILED,
            format_args!("error: cannot write to `{directory}`: {error}"),
        ),
    }
}
