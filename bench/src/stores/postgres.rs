//! PostgreSQL beside `pgbench` inserting one row in each transaction.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use semel_testkit::servers::{Postgres, Server as _};

use super::{Comparison, ROW_BYTES, number_after};
use crate::report::Run;

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
    let script = folder.path().join("insert.sql");
    // A key as random as a digest: the index is met in no order.
    let body = ROW_BYTES - 32;
    std::fs::write(
        &script,
        format!(
            "INSERT INTO bench (id, body) VALUES (sha256(uuid_send(gen_random_uuid())), \
             decode(repeat('61', {body}), 'hex'));\n"
        ),
    )?;
    Comparison {
        name: "postgres",
        url: &server.url(),
        reference: "pgbench, one insert a transaction",
        goals: [Some(0.9), Some(1.5)],
    }
    .measure(run, |callers, time| {
        let done = command("pgbench", &port)?
            .args(["-n", "-M", "prepared", "-f"])
            .arg(&script)
            .args([
                "-c",
                &callers.to_string(),
                "-j",
                &callers.min(2).to_string(),
            ])
            .args(["-T", &time.as_secs().max(1).to_string()])
            .output()?;
        let printed = String::from_utf8(done.stdout)?;
        ensure!(done.status.success(), "pgbench failed: {printed}");
        number_after(&printed, "\ntps =").context("pgbench printed no rate")
    })
}

fn command(name: &str, port: &str) -> Result<Command> {
    let mut command = Command::new(Postgres::program(name)?);
    command
        .args(["-h", "127.0.0.1", "-U", "semel", "-p", port])
        .env("PGDATABASE", "postgres");
    Ok(command)
}
