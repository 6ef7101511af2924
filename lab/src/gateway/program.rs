//! The program `semel`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// What `SEMEL_BIN` names, or the one that is built here from the root manifest, in the lab's own
/// profile and with the stores that the lab has.
pub(super) fn find() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("SEMEL_BIN") {
        return Ok(named.into());
    }
    let mut command = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()));
    command
        .args(["build", "--package", "semel-gateway", "--locked"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(["--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    // As the project's tests build it: nothing is built twice.
    match cfg!(feature = "dynamodb") {
        true => command.arg("--all-features"),
        false => command.args(["--features", "mysql,nats"]),
    };
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the gateway was not built");
    let messages = String::from_utf8(output.stdout)?;
    let built = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let of_semel = message["target"]["name"] == "semel";
        let program = message["executable"].as_str().filter(|_| of_semel)?;
        Some(PathBuf::from(program))
    });
    built.context("the gateway has no program semel")
}
