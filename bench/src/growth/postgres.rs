//! PostgreSQL: a table for each size, whose rows are copied in the server.

use std::io::{BufWriter, Write as _};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use semel_testkit::servers::{Postgres, Server as _};

use super::copies::{copies, value};
use super::{Place, label};
use crate::stores::postgres::command;

/// As for a database of this size that somebody looks after: a cache for its indexes, and checkpoints that are
/// minutes apart. Every commit waits for the disk.
pub(super) const SETTINGS: [&str; 3] = [
    "shared_buffers=4GB",
    "max_wal_size=16GB",
    "checkpoint_timeout=30min",
];

/// As many steps as share a transaction, of 64 callers: two groups take turns.
const GROUP: usize = 32;

/// What a completion writes, and what is there before.
const COMPLETION: [(&str, &str); 6] = [
    ("state", "'in-flight'"),
    ("settled_at", "NULL"),
    ("expires_at", "'infinity'"),
    ("purge_at", "'infinity'"),
    ("code", "NULL"),
    ("outcome", "NULL"),
];

struct Database(Postgres);

pub(super) fn start() -> Result<Box<dyn Place>> {
    Ok(Box::new(Database(Postgres::start(&SETTINGS)?)))
}

fn table(records: usize) -> String {
    format!("semel_{}", label(records)).to_lowercase()
}

/// What a statement prints.
pub(super) fn psql(server: &Postgres, statement: &str) -> Result<String> {
    let done = command("psql", &server.address().port().to_string())?
        .args(["-qAt", "-c", statement])
        // Copies need not survive a crash yet, and a plan is kept from when the table was empty.
        .env(
            "PGOPTIONS",
            "-c synchronous_commit=off -c enable_seqscan=off",
        )
        .output()?;
    let printed = String::from_utf8(done.stdout)?;
    ensure!(
        done.status.success(),
        "{statement} failed: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(printed.trim().to_owned())
}

impl Place for Database {
    fn url(&self, records: usize) -> String {
        format!("{}?table={}", self.0.url(), table(records))
    }

    /// A row is inserted as it is claimed and then updated as it is completed, some in each transaction, as the store
    /// does it: what an update leaves behind is a large part of what a table takes.
    fn fill(&self, records: usize) -> Result<f64> {
        let table = table(records);
        let run = |statement: &str| psql(&self.0, statement);
        run("CREATE UNLOGGED TABLE copies (digests bytea[], earlier bigint)")?;
        self.send_copies(records)?;
        let columns = format!(
            "SELECT column_name FROM information_schema.columns WHERE table_name = '{table}'"
        );
        let columns: Vec<String> = run(&columns)?.lines().map(String::from).collect();
        let completed = |column: &str| value(column, "digest", "copy.earlier");
        let claimed = columns.iter().map(|column| {
            let before = COMPLETION.iter().find(|(of, _)| of == column);
            before.map_or_else(|| completed(column), |(_, before)| (*before).to_owned())
        });
        let completion = COMPLETION.map(|(column, _)| format!("{column} = {}", completed(column)));
        run(&format!(
            "DO $$ DECLARE first {table}%ROWTYPE; copy record; BEGIN
               SELECT * INTO STRICT first FROM {table};
               FOR copy IN SELECT digests, earlier * interval '1 microsecond' AS earlier FROM copies LOOP
                 INSERT INTO {table} ({}) SELECT {} FROM unnest(copy.digests) AS digest;
                 COMMIT;
                 UPDATE {table} SET {} WHERE digest = ANY (copy.digests);
                 COMMIT;
               END LOOP;
             END $$",
            columns.join(", "),
            claimed.collect::<Vec<_>>().join(", "),
            completion.join(", "),
        ))?;
        run("DROP TABLE copies")?;
        // What the server would otherwise do while it is measured.
        run(&format!("VACUUM (ANALYZE) {table}"))?;
        run("CHECKPOINT")?;
        let bytes = run(&format!("SELECT pg_total_relation_size('{table}')"))?;
        Ok(bytes.parse::<f64>()? / records as f64)
    }

    fn process(&self) -> u32 {
        self.0.nodes()[0].pid().expect("the server runs")
    }
}

impl Database {
    fn send_copies(&self, records: usize) -> Result<()> {
        let mut process = command("psql", &self.0.address().port().to_string())?
            .args(["-qc", "COPY copies FROM STDIN"])
            .stdin(Stdio::piped())
            .spawn()?;
        let mut rows = BufWriter::new(process.stdin.take().context("a pipe")?);
        for group in copies(records, GROUP) {
            let mut digests: Vec<String> =
                group.iter().map(|copy| copy.digest.to_string()).collect();
            // As the store sorts them.
            digests.sort_unstable();
            let digests: Vec<_> = digests.iter().map(|it| format!(r"\\\\x{it}")).collect();
            writeln!(rows, "{{{}}}\t{}", digests.join(","), group[0].earlier)?;
        }
        rows.flush()?;
        drop(rows);
        ensure!(process.wait()?.success(), "psql failed");
        Ok(())
    }
}
