//! PostgreSQL: a table for each case; named statements and pushes, unnamed ones and polling, one
//! connection for all callers, and by way of a pooler.

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel::store::Nonce;
use semel_stores::{PostgresOptions, PostgresStore, Schema};
use semel_testkit::servers::{Kind, PgBouncer, Postgres, Server as _, shared};

use super::trials;

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("postgres", Way::Usual);
    all.extend(trials("postgres/one", Way::One));
    all.extend(trials("postgres/unnamed", Way::Unnamed));
    all.extend(trials("postgres/pooled", Way::Pooled));
    all
}

#[derive(Clone, Copy)]
enum Way {
    /// As it is opened without options.
    Usual,
    /// One connection: everything that meets is sent as a group.
    One,
    /// Unnamed statements and polling.
    Unnamed,
    /// Through PgBouncer in transaction mode, with pushes around it.
    Pooled,
}

/// A server with a pooler before it, for this process.
fn pooler() -> Result<(String, String), Failure> {
    static STARTED: OnceLock<Mutex<Option<(Postgres, PgBouncer)>>> = OnceLock::new();
    let started = STARTED.get_or_init(Mutex::default);
    let mut started = started.lock().unwrap_or_else(|e| e.into_inner());
    if started.is_none() {
        let server = Postgres::start(&[]).map_err(failure)?;
        let pooler = PgBouncer::start(&server).map_err(failure)?;
        *started = Some((server, pooler));
    }
    let (server, pooler) = started.as_ref().ok_or_else(|| Failure::new("no server"))?;
    Ok((pooler.url(), server.url()))
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{error:#}"))
}

impl Way {
    fn options(self, table: &str) -> Result<PostgresOptions, Failure> {
        let url = match self {
            Self::Usual => format!("{}?table={table}", server()?),
            Self::One => format!("{}?table={table}&connections=1", server()?),
            Self::Unnamed => format!("{}?table={table}&prepared=off&listen=off", server()?),
            Self::Pooled => {
                let (pooled, direct) = pooler()?;
                format!("{pooled}?table={table}&prepared=off&listen={direct}")
            }
        };
        PostgresOptions::from_url(&url).map_err(failure)
    }
}

fn server() -> Result<String, Failure> {
    shared(Kind::Postgres).map_err(failure)
}

async fn open(options: PostgresOptions) -> Result<PostgresStore, Failure> {
    options
        .schema(Schema::Create)
        .for_tests()
        .open()
        .await
        .map_err(failure)
}

impl Factory for Way {
    async fn open(&self) -> Result<Bench, Failure> {
        let nonce = Nonce::random()?;
        let name: String = nonce
            .as_bytes()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let options = self.options(&format!("t_{name}"))?;
        let store = open(options.clone()).await?;
        let other = open(options).await?;
        Ok(Bench::new(store)
            .with_other(other)
            .with_short(Duration::from_millis(60))
            .exclusive())
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        // The server ends with the run.
        Ok(())
    }
}
