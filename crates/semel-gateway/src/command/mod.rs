//! The subcommands of the program.

pub mod audit;
pub mod check;
pub mod conformance;
pub mod demo;
mod explain;
pub mod line;
pub mod migrate;
pub mod records;
pub mod run;
pub mod serve;
pub mod shell;
pub mod top;

use std::fmt::Display;
use std::future::Future;
use std::io::Write as _;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

/// The exit code for a configuration that is not right.
pub const MISUSED: u8 = 2;
/// The exit code for what went wrong later.
pub const FAILED: u8 = 1;

/// Says on stderr why the program ends.
fn fail(code: u8, message: impl Display) -> ExitCode {
    // Where stderr is closed there is nobody to tell.
    writeln!(std::io::stderr(), "{message}").ok();
    ExitCode::from(code)
}

/// An error with its causes, as one line. What is said already is not said again.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !line.contains(&said) {
            line.push_str(&format!(": {said}"));
        }
        cause = error.source();
    }
    line
}

/// Runs a program's main task.
fn block_on(main: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => {
            let code = runtime.block_on(main);
            // A host name that is still being looked up does not keep the program.
            runtime.shutdown_background();
            code
        }
        Err(error) => fail(FAILED, format_args!("error: cannot start threads: {error}")),
    }
}

/// Listens for the signals that ask a program to stop. The future returned is ready at the first;
/// at the second the program ends at once.
fn stop_signal() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (first, stopped) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut first = Some(first);
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            match first.take() {
                Some(first) => drop(first.send(())),
                None => std::process::exit(i32::from(FAILED)),
            }
        }
    });
    Ok(async move {
        stopped.await.ok();
    })
}
