//! What the server's settings promise.

use semel::store::{Durability, Probe, Result};
use semel::{StoreError, StoreErrorKind};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connect::{Connector, Link};
use super::migrate;
use crate::common::privacy::Way;

const SETTINGS: &str = "
SELECT current_setting('server_version_num')::bigint, pg_is_in_recovery(),
  current_setting('synchronous_commit'), current_setting('fsync'),
  current_setting('full_page_writes'), current_setting('synchronous_standby_names'),
  current_setting('server_encoding'), current_setting('default_transaction_isolation'),
  (SELECT c.relpersistence = 'u' FROM pg_class AS c WHERE c.oid = to_regclass($1)),
  coalesce(inet_client_addr() << '127.0.0.0/8' OR inet_client_addr() = '::1', true),
  coalesce((SELECT s.ssl FROM pg_stat_ssl AS s WHERE s.pid = pg_backend_pid()), false),
  has_table_privilege(to_regclass($1), 'SELECT, INSERT, UPDATE, DELETE')
    AND has_table_privilege(to_regclass($1), 'INSERT')
    AND has_table_privilege(to_regclass($1), 'UPDATE')
    AND has_table_privilege(to_regclass($1), 'DELETE'),
  has_sequence_privilege(to_regclass($2), 'UPDATE')";

pub(super) async fn probe(link: &Link, with: &Connector) -> Result<Probe> {
    let client = link.client();
    let table = with.table.quoted();
    let fences = with.table.fences();
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&table, Type::TEXT), (&fences, Type::TEXT)];
    let rows = migrate::bounded(with, client.query_typed(SETTINGS, &params)).await?;
    let Some(row) = rows.first() else {
        return Err(config("PostgreSQL did not say how it is set up"));
    };
    let found = read(row)
        .map_err(|error| config("PostgreSQL did not say how it is set up").with_source(error))?;
    if found.version < 120_000 {
        return Err(config(
            "PostgreSQL 12 or later is needed: the statements use what came with it",
        ));
    }
    if found.standby {
        return Err(config(
            "this is a standby: it cannot be written to. Name the primary",
        ));
    }
    if found.encoding != "UTF8" {
        return Err(config(format!(
            "the database's encoding is {}, and must be UTF8",
            found.encoding
        )));
    }
    migrate::look_after(client, with, crate::Schema::Expect).await?;
    if !found.privileged {
        return Err(config(format!(
            "the user lacks a privilege on the table {}: grant SELECT, INSERT, UPDATE and DELETE",
            with.table
        )));
    }
    if !found.may_draw {
        return Err(config(format!(
            "the user lacks a privilege on the sequence {}_fences: grant UPDATE",
            with.table
        )));
    }
    let (durability, mut warnings) = found.durability();
    if !found.isolation.eq_ignore_ascii_case("read committed") {
        warnings.push(format!(
            "default_transaction_isolation is {}: steps that meet are rolled back and sent again. \
             Set it to `read committed` for this user.",
            found.isolation
        ));
    }
    let way = Way::of(found.local, found.encrypted, with.authenticates);
    warnings.extend(way.warning("sslmode=verify-full"));
    Ok(Probe {
        store: "postgres",
        durability,
        warnings,
    })
}

fn config(message: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

struct Found {
    version: i64,
    standby: bool,
    synchronous_commit: String,
    fsync: String,
    full_page_writes: String,
    standbys: String,
    encoding: String,
    isolation: String,
    unlogged: Option<bool>,
    local: bool,
    encrypted: bool,
    privileged: bool,
    may_draw: bool,
}

fn read(row: &Row) -> Result<Found, tokio_postgres::Error> {
    Ok(Found {
        version: row.try_get(0)?,
        standby: row.try_get(1)?,
        synchronous_commit: row.try_get(2)?,
        fsync: row.try_get(3)?,
        full_page_writes: row.try_get(4)?,
        standbys: row.try_get(5)?,
        encoding: row.try_get(6)?,
        isolation: row.try_get(7)?,
        unlogged: row.try_get(8)?,
        local: row.try_get(9)?,
        encrypted: row.try_get(10)?,
        privileged: row.try_get::<_, Option<bool>>(11)?.unwrap_or(false),
        may_draw: row.try_get::<_, Option<bool>>(12)?.unwrap_or(false),
    })
}

impl Found {
    /// What an acknowledged step survives, and why it is not more.
    fn durability(&self) -> (Durability, Vec<String>) {
        let mut warnings = Vec::new();
        let mut reached = if self.standbys.trim().is_empty() {
            Durability::Power
        } else {
            Durability::Replicated
        };
        let replicated = reached == Durability::Replicated;
        let mut at_most = |class: Durability, why: String| {
            reached = reached.min(class);
            warnings.push(why);
        };
        match &*self.synchronous_commit {
            "off" => at_most(
                Durability::Process,
                "synchronous_commit is off: when the server crashes, it forgets the last \
                 acknowledged steps, and what they protected may run twice. Set it to `on` for \
                 this user or database."
                    .into(),
            ),
            "local" if replicated => at_most(
                Durability::Power,
                "synchronous_commit is local: standbys may lack acknowledged steps after a \
                 failover, although synchronous_standby_names is set."
                    .into(),
            ),
            "remote_write" if replicated => at_most(
                Durability::Replicated,
                "synchronous_commit is remote_write: a standby may lack acknowledged steps if its \
                 machine loses power together with the primary."
                    .into(),
            ),
            _ => {}
        }
        if self.fsync == "off" {
            at_most(
                Durability::Crash,
                "fsync is off: a loss of power may lose acknowledged steps, or the whole \
                 database."
                    .into(),
            );
        }
        if self.full_page_writes == "off" {
            at_most(
                Durability::Crash,
                "full_page_writes is off: a loss of power may damage pages beyond repair.".into(),
            );
        }
        if self.unlogged == Some(true) {
            at_most(
                Durability::Process,
                "The table is unlogged: it is empty after the server crashes.".into(),
            );
        }
        (reached, warnings)
    }
}
