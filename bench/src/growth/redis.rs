//! Redis: a database of one server for each size, with values that are copied under other keys.

use anyhow::{Context as _, Result, ensure};
use redis::{Client, Connection, cmd, pipe};
use semel::IdentityDigest;
use semel_testkit::servers::{Redis, Server as _};

use super::Place;
use super::copies::copies;
use crate::inputs::identity;
use crate::stores::number_after;

/// A log that is synced at every write, as we recommend, and not rewritten while it is measured.
pub(super) const SETTINGS: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--auto-aof-rewrite-percentage",
    "0",
];
const AT_ONCE: usize = 1_000;
/// Where the digest is in a value: docs/stores/redis.md.
const DIGEST: std::ops::Range<usize> = 7..39;

struct Server(Redis);

pub(super) fn start() -> Result<Box<dyn Place>> {
    Ok(Box::new(Server(Redis::start(&SETTINGS)?)))
}

fn used_memory(connection: &mut Connection) -> Result<f64> {
    let info: String = cmd("INFO").arg("memory").query(connection)?;
    number_after(&info, "used_memory:").context("the memory in use")
}

fn key(digest: &IdentityDigest) -> String {
    format!("semel:{digest}")
}

impl Place for Server {
    fn url(&self, records: usize) -> String {
        // The number of a database, of which there are 16.
        format!("{}{}", self.0.url(), records.ilog10())
    }

    fn fill(&self, records: usize) -> Result<f64> {
        let mut connection = Client::open(self.url(records))?.get_connection()?;
        let connection = &mut connection;
        let first = *identity(0).digest();
        let mut value: Vec<u8> = cmd("GET").arg(key(&first)).query(connection)?;
        let until: u64 = cmd("PEXPIRETIME").arg(key(&first)).query(connection)?;
        ensure!(
            value.get(DIGEST) == Some(first.as_bytes()),
            "the digest is elsewhere in the value"
        );
        let sync = |connection: &mut Connection, when: &str| -> Result<()> {
            let set = ["SET", "appendfsync", when];
            Ok(cmd("CONFIG").arg(&set).exec(connection)?)
        };
        let before = used_memory(connection)?;
        sync(connection, "no")?;
        for group in copies(records, AT_ONCE) {
            let mut sets = pipe();
            for copy in group {
                value[DIGEST].copy_from_slice(copy.digest.as_bytes());
                sets.cmd("SET")
                    .arg(key(&copy.digest))
                    .arg(&value)
                    .arg("PXAT")
                    .arg(until)
                    .ignore();
            }
            sets.exec(connection)?;
        }
        sync(connection, "always")?;
        Ok((used_memory(connection)? - before) / (records - 1) as f64)
    }

    fn process(&self) -> u32 {
        self.0.nodes()[0].pid().expect("the server runs")
    }
}
