//! What the server is set to: whether it can keep the promise, and how far it goes.

use std::collections::HashMap;

use semel::StoreError;
use semel::store::{Durability, Probe, Result};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use super::error::{Effect, Failure, config};
use super::link::{Connector, Link};
use crate::common::privacy::Way;

const SETTINGS: &str = "'version','version_comment','wsrep_on','read_only','super_read_only',\
    'innodb_read_only','innodb_flush_log_at_trx_commit','innodb_doublewrite','sync_binlog',\
    'log_bin','binlog_format','rpl_semi_sync_master_enabled','rpl_semi_sync_source_enabled',\
    'group_replication_group_name','max_allowed_packet'";

pub(super) struct Server {
    settings: HashMap<String, String>,
    // From where it replicates; `None` where it may not be asked.
    source: Option<Source>,
    way: Way,
}

#[derive(PartialEq, Eq)]
enum Source {
    No,
    Stopped,
    Running,
}

impl Server {
    pub(super) async fn read(
        connector: &Connector,
        link: &mut Link,
        deadline: Instant,
    ) -> Result<Self> {
        // The cipher is the session's, and empty without TLS.
        let sql = format!(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ({SETTINGS});\
             SHOW SESSION STATUS LIKE 'Ssl_cipher'"
        );
        let rows = link.ask(sql, Effect::Reads, deadline).await;
        let rows = rows.map_err(Failure::into_error)?;
        let settings: HashMap<_, _> = rows
            .iter()
            .map(|row| (text(row, 0).to_lowercase(), text(row, 1)))
            .collect();
        let asked = link
            .ask("SHOW REPLICA STATUS".into(), Effect::Reads, deadline)
            .await;
        let source = match asked {
            Ok(rows) => Some(source(&rows)),
            // Needs a privilege that the store otherwise does not.
            Err(Failure::Said(_)) => None,
            Err(failure) => return Err(failure.into_error()),
        };
        let cipher = settings.get("ssl_cipher");
        Ok(Self {
            way: connector.way(cipher.is_some_and(|cipher| !cipher.is_empty())),
            settings,
            source,
        })
    }

    fn get(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), "ON" | "1")
    }

    /// Fails where steps would not be atomic, or not on the server that decides.
    pub(super) fn check(&self, accept_unsafe: bool) -> Result<()> {
        let refusal = if self.is_on("wsrep_on") {
            "this is a Galera cluster (wsrep_on), which loses updates that it has acknowledged; \
             use a server without it"
        } else if ["read_only", "super_read_only", "innodb_read_only"]
            .iter()
            .any(|name| !matches!(self.get(name), "" | "OFF" | "0"))
        {
            "the server is read-only, as replicas are; give the address of the primary"
        } else if self.source == Some(Source::Running) && !accept_unsafe {
            "the server replicates from another one; give the address of the primary, or where \
             each replicates from the other and everybody uses this one, accept that with \
             `unsafe=warn`"
        } else if self.is_on("log_bin")
            && self.get("binlog_format").eq_ignore_ascii_case("STATEMENT")
        {
            "binlog_format is STATEMENT, with which InnoDB takes no writes at READ COMMITTED; set \
             it to ROW"
        } else {
            return Ok(());
        };
        Err(config(refusal))
    }

    pub(super) fn probe(&self) -> Probe {
        let mut warnings = Vec::new();
        let mut warn = |text: String| warnings.push(text);
        let flush = self.get("innodb_flush_log_at_trx_commit");
        let mut durability = match flush {
            "1" => Durability::Power,
            "2" => {
                warn(
                    "innodb_flush_log_at_trx_commit is 2: a loss of power loses about the last \
                      second of acknowledged steps. Set it to 1."
                        .into(),
                );
                Durability::Crash
            }
            other => {
                warn(format!(
                    "innodb_flush_log_at_trx_commit is {other}: a crash of the server loses about \
                     the last second of acknowledged steps. Set it to 1."
                ));
                Durability::Process
            }
        };
        if !self.is_on("log_bin") {
            warn(
                "The binary log is off: InnoDB shows a step to others before it is on disk, and a kill of the \
                 server can take back an outcome that was replayed. Turn it on (log_bin), with \
                 sync_binlog=1 and binlog_format=ROW."
                    .into(),
            );
        } else if self.get("sync_binlog") != "1" {
            warn(format!(
                "sync_binlog is {} while the binary log is on: after a loss of power, steps that \
                 are not in it are rolled back, acknowledged or not. Set it to 1.",
                self.get("sync_binlog")
            ));
            durability = durability.min(Durability::Crash);
        }
        if !matches!(self.get("innodb_doublewrite"), "ON" | "1") {
            warn(format!(
                "innodb_doublewrite is {}: a loss of power can tear a page, and then the server \
                 does not start. Leave it on unless the file system writes pages whole.",
                self.get("innodb_doublewrite")
            ));
        }
        let semi = [
            "rpl_semi_sync_master_enabled",
            "rpl_semi_sync_source_enabled",
        ];
        if semi.iter().any(|name| self.is_on(name)) {
            warn(
                "Replication is semi-synchronous: a step waits for a replica, but goes on without \
                  one after a timeout. A failover then loses the last steps."
                    .into(),
            );
        }
        if !self.get("group_replication_group_name").is_empty() {
            warn(
                "Group replication is set up, which this store has not been tested with. Use it \
                  with a single primary only."
                    .into(),
            );
        }
        match self.source {
            None => warn(
                "Whether the server replicates from another one could not be seen: that \
                 takes the privilege REPLICATION CLIENT (MariaDB: REPLICA MONITOR). Make sure \
                 that the address is the primary's."
                    .into(),
            ),
            Some(Source::Stopped) => warn(
                "The server has replication from another one set up, \
                 which is stopped. Make sure that it is the primary."
                    .into(),
            ),
            Some(Source::Running) => warn(
                "The server replicates from another one, and `unsafe=warn` accepts that. A record that \
                 is changed on both runs its operation twice: every process must use this one, and \
                 the other only after this one has stopped and all it wrote has arrived there."
                    .into(),
            ),
            Some(Source::No) => {}
        }
        warnings.extend(self.way.warning("ssl-mode=verify_identity"));
        Probe {
            store: "mysql",
            durability,
            warnings,
        }
    }
}

fn source(rows: &[MySqlRow]) -> Source {
    let stopped = |row: &MySqlRow| {
        row.columns().iter().enumerate().all(|(at, column)| {
            use sqlx::Column as _;
            let name = column.name();
            let thread = name.ends_with("_IO_Running") || name.ends_with("_SQL_Running");
            !thread || text(row, at) == "No"
        })
    };
    match rows {
        [] => Source::No,
        rows if rows.iter().all(stopped) => Source::Stopped,
        _ => Source::Running,
    }
}

/// A column of text, whatever the server calls its type.
fn text(row: &MySqlRow, at: usize) -> String {
    let bytes = row.try_get_unchecked::<&[u8], _>(at).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// That the session may do all that steps do.
pub(super) async fn rehearse(
    link: &mut Link,
    sql: String,
    deadline: Instant,
) -> Result<(), StoreError> {
    // Writes nothing, so that nothing is unclear.
    let rows = link.ask(sql, Effect::Reads, deadline).await;
    rows.map(drop).map_err(Failure::into_error)
}
