//! Runs a function on this machine, and invokes it with events from files, one after the other:
//!
//! ```text
//! cargo build -p semel-lambda --examples
//! cargo run -p semel-lambda --example local -- target/debug/examples/orders EVENT.json EVENT.json
//! ```

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod runtime_api;

use std::path::PathBuf;
use std::time::Duration;

use runtime_api::{Answered, Sandbox};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let program = arguments.next().ok_or("usage: local PROGRAM EVENT.json…")?;
    let mut sandbox = Sandbox::start::<&str>(&program, &[]).await?;
    for file in arguments {
        let event = serde_json::from_slice(&std::fs::read(&file)?)?;
        let answered = tokio::select! {
            answered = sandbox.invoke(&event, Duration::from_secs(30)) => answered?,
            () = tokio::time::sleep(Duration::from_secs(30)) => return Err("timed out".into()),
        };
        let (what, value) = match answered {
            Answered::Response(value) => ("answer", value),
            Answered::Error(value) => ("error", value),
        };
        println!("{}: {what} {value}", file.display());
    }
    sandbox.kill().await;
    Ok(())
}
