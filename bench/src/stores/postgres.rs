//! PostgreSQL beside `pgbench` inserting one row in each transaction, and many of them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use semel_testkit::servers::{Postgres, Server as _};

use super::{ROW_BYTES, Reference, compare, number_after};
use crate::run::Run;

/// How many rows a pipeline commits together: with two clients as many are under way as we have
/// callers.
const PIPELINE: usize = 32;

pub(super) fn measure(run: &Run) -> Result<()> {
    let server = Postgres::start(&[])?;
    let port = server.address().port().to_string();
    let table =
        "CREATE TABLE bench (id bytea PRIMARY KEY, body bytea, at timestamptz DEFAULT now())";
    ensure!(
        command("psql", &port)?
            .args(["-qc", table])
            .status()?
            .success(),
        "psql failed"
    );
    let folder = tempfile::tempdir()?;
    let script = |name: &str, text: String| -> Result<PathBuf> {
        let file = folder.path().join(name);
        std::fs::write(&file, text)?;
        Ok(file)
    };
    // A key as random as a digest: the index is met in no order.
    let insert = format!(
        "INSERT INTO bench (id, body) VALUES (sha256(uuid_send(gen_random_uuid())), \
         decode(repeat('61', {}), 'hex'));\n",
        ROW_BYTES - 32
    );
    let inserts = insert.repeat(PIPELINE);
    let pipeline = script(
        "pipeline.sql",
        format!("\\startpipeline\n{inserts}\\endpipeline\n"),
    )?;
    let single = script("insert.sql", insert)?;
    let rate = |script: &PathBuf, clients: usize, time: Duration| {
        let clients = clients.to_string();
        let threads = if clients == "1" { "1" } else { "2" };
        let done = command("pgbench", &port)?
            .args(["-n", "-M", "prepared", "-f"])
            .arg(script)
            .args(["-c", &clients, "-j", threads])
            // Connecting is part of it, and not of the rate.
            .args(["-T", &time.as_secs().max(2).to_string()])
            .output()?;
        let printed = String::from_utf8(done.stdout)?;
        ensure!(done.status.success(), "pgbench failed: {printed}");
        number_after(&printed, "\ntps =").with_context(|| format!("no rate in {printed}"))
    };
    let mut references = [
        Reference {
            name: "pgbench",
            what: "pgbench, one insert a transaction",
            groups: false,
            goals: [Some(0.9), Some(1.5)],
            rate: Box::new(|callers, time| rate(&single, callers, time)),
        },
        Reference {
            name: "pgbench-pipeline",
            what: "pgbench, 2 clients, pipelines of 32 inserts",
            groups: true,
            goals: [None; 2],
            rate: Box::new(|callers, time| {
                Ok(rate(&pipeline, callers / PIPELINE, time)? * PIPELINE as f64)
            }),
        },
    ];
    compare(run, "postgres", &server.url(), &mut references)
}

/// One of PostgreSQL's programs, on the server at this port.
pub(crate) fn command(name: &str, port: &str) -> Result<Command> {
    let mut command = Command::new(Postgres::program(name)?);
    command
        .args(["-h", "127.0.0.1", "-U", "semel", "-p", port])
        .env("PGDATABASE", "postgres");
    Ok(command)
}
