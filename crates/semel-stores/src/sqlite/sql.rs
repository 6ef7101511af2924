//! The statements, in full. `{t}` stands for the table's name, which is checked before.

/// The names of a store's tables: the records', and those that begin with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table(Box<str>);

/// The longest name of a table, in bytes.
const MAX_NAME: usize = 60;

impl Table {
    /// A table's name, where it can stand in a statement as it is.
    pub(super) fn new(name: &str) -> Option<Self> {
        let mut bytes = name.bytes();
        let first = bytes.next()?;
        let ok = (first.is_ascii_alphabetic() || first == b'_')
            && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && name.len() <= MAX_NAME
            // SQLite keeps these names for itself.
            && !name.to_ascii_lowercase().starts_with("sqlite_");
        ok.then(|| Self(name.into()))
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// A statement on this store's tables.
    pub(super) fn sql(&self, statement: &str) -> String {
        statement.replace("{t}", &self.0)
    }
}

/// Instants are microseconds since the Unix epoch, and NULL where they never come.
/// `fence` is a u64's bits. `id` keeps a record's place in listings, also across VACUUM.
/// A versioned record without a value was deleted: it keeps its version from being given out again.
///
/// What of it is there stays as it is: a file may have the records and lack what came to this version
/// before it was published.
pub(super) const CREATE: &str = r#"
CREATE TABLE IF NOT EXISTS "{t}" (
  id              INTEGER PRIMARY KEY,
  digest          BLOB    NOT NULL UNIQUE,
  scope           TEXT    NOT NULL,
  operation       TEXT    NOT NULL,
  key_hint        TEXT    NOT NULL,
  state           TEXT    NOT NULL
                  CHECK (state IN ('in-flight', 'unknown', 'completed', 'released')),
  fingerprint     BLOB    NOT NULL,
  fence           INTEGER NOT NULL,
  nonce           BLOB    NOT NULL,
  attempt         INTEGER NOT NULL,
  created_at      INTEGER NOT NULL,
  claimed_at      INTEGER NOT NULL,
  lease_until     INTEGER,
  settled_at      INTEGER,
  expires_at      INTEGER,
  purge_at        INTEGER,
  resolved        TEXT,
  note            TEXT    NOT NULL,
  progress        BLOB    NOT NULL,
  code            INTEGER,
  outcome         BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS "{t}_by_state" ON "{t}" (state);
CREATE INDEX IF NOT EXISTS "{t}_by_purge" ON "{t}" (purge_at) WHERE purge_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS "{t}_clock" (
  id     INTEGER PRIMARY KEY CHECK (id = 1),
  latest INTEGER NOT NULL,
  fence  INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO "{t}_clock" (id, latest, fence) VALUES (1, 0, 0);
CREATE TABLE IF NOT EXISTS "{t}_versioned" (
  digest     BLOB    NOT NULL PRIMARY KEY,
  scope      TEXT    NOT NULL,
  name       TEXT    NOT NULL,
  version    INTEGER NOT NULL,
  nonce      BLOB    NOT NULL,
  written_at INTEGER NOT NULL,
  value      BLOB
) STRICT;
"#;

/// The table that holds the schema's version.
pub(super) const CREATE_SCHEMA: &str = r#"
CREATE TABLE IF NOT EXISTS "{t}_schema" (
  id      INTEGER PRIMARY KEY CHECK (id = 1),
  version INTEGER NOT NULL
) STRICT
"#;

/// Whether there is a table of this name.
pub(super) const TABLE_EXISTS: &str = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE)";

/// Whether there is anything at all in the file.
pub(super) const ANYTHING: &str = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema)";

pub(super) const VERSION: &str = r#"SELECT version FROM "{t}_schema" WHERE id = 1"#;

pub(super) const SET_VERSION: &str =
    r#"INSERT OR REPLACE INTO "{t}_schema" (id, version) VALUES (1, ?1)"#;

/// One record, without what names it.
pub(super) const FIND: &str = r#"
SELECT id, state, fingerprint, fence, nonce, attempt, created_at, claimed_at, lease_until,
       settled_at, expires_at, purge_at, resolved, note, progress, outcome
  FROM "{t}" WHERE digest = ?1
"#;

/// One record, with what names it.
pub(super) const GET: &str = r#"
SELECT id, state, fingerprint, fence, nonce, attempt, created_at, claimed_at, lease_until,
       settled_at, expires_at, purge_at, resolved, note, progress, outcome,
       digest, scope, operation, key_hint
  FROM "{t}" WHERE digest = ?1
"#;

/// Records in a state, in the order in which they were first claimed.
pub(super) const LIST: &str = r#"
SELECT id, state, fingerprint, fence, nonce, attempt, created_at, claimed_at, lease_until,
       settled_at, expires_at, purge_at, resolved, note, progress, outcome,
       digest, scope, operation, key_hint
  FROM "{t}" WHERE state = ?1 AND id > ?2 ORDER BY id
"#;

/// Whether an attempt is in flight under this fence.
pub(super) const RUNNING: &str = r#"
SELECT EXISTS (SELECT 1 FROM "{t}" WHERE digest = ?1 AND fence = ?2 AND state = 'in-flight')
"#;

/// A record where there is none.
pub(super) const INSERT: &str = r#"
INSERT INTO "{t}" (state, fingerprint, fence, nonce, attempt, created_at, claimed_at, lease_until,
                   settled_at, expires_at, purge_at, resolved, note, progress, outcome, code,
                   digest, scope, operation, key_hint)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)
"#;

/// Another record in place of one.
pub(super) const UPDATE: &str = r#"
UPDATE "{t}"
   SET state = ?1, fingerprint = ?2, fence = ?3, nonce = ?4, attempt = ?5, created_at = ?6,
       claimed_at = ?7, lease_until = ?8, settled_at = ?9, expires_at = ?10, purge_at = ?11,
       resolved = ?12, note = ?13, progress = ?14, outcome = ?15, code = ?16
 WHERE id = ?17
"#;

/// The latest instant, and the highest fence given out.
pub(super) const CLOCK: &str = r#"SELECT latest, fence FROM "{t}_clock" WHERE id = 1"#;

pub(super) const ADVANCE: &str = r#"UPDATE "{t}_clock" SET latest = ?1, fence = ?2 WHERE id = 1"#;

/// At most `?2` records past `?1`, the longest past first.
pub(super) const PURGE: &str = r#"
DELETE FROM "{t}" WHERE id IN
  (SELECT id FROM "{t}" WHERE purge_at IS NOT NULL AND purge_at <= ?1 ORDER BY purge_at LIMIT ?2)
"#;

/// Whether there is more to purge.
pub(super) const PURGEABLE: &str = r#"
SELECT EXISTS (SELECT 1 FROM "{t}" WHERE purge_at IS NOT NULL AND purge_at <= ?1)
"#;

/// Grows with each commit of another connection.
pub(super) const DATA_VERSION: &str = "PRAGMA data_version";

/// A versioned record, unless it was deleted.
pub(super) const VERSIONED: &str = r#"
SELECT version, value FROM "{t}_versioned" WHERE digest = ?1 AND value IS NOT NULL
"#;

/// Its latest change, a deletion too.
pub(super) const VERSIONED_LATEST: &str = r#"
SELECT version, nonce, value IS NULL FROM "{t}_versioned" WHERE digest = ?1
"#;

pub(super) const VERSIONED_INSERT: &str = r#"
INSERT INTO "{t}_versioned" (digest, version, nonce, value, written_at, scope, name)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
"#;

pub(super) const VERSIONED_UPDATE: &str = r#"
UPDATE "{t}_versioned" SET version = ?2, nonce = ?3, value = ?4, written_at = ?5 WHERE digest = ?1
"#;

/// For tests.
pub(super) const CLEAR: &str = r#"DELETE FROM "{t}""#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_statements_as_they_are() {
        for good in ["semel", "_x", "Semel_2"] {
            assert_eq!(Table::new(good).unwrap().name(), good);
        }
        let long = "x".repeat(61);
        for bad in [
            "", "2x", "a b", "a\"b", "a;", "sqlite_x", "SQLite_x", "ü", &long,
        ] {
            assert_eq!(Table::new(bad), None, "{bad}");
        }
        let sql = Table::new("mine").unwrap().sql(CLEAR);
        assert_eq!(sql, r#"DELETE FROM "mine""#);
    }

    /// Looking up, listing and purging go by an index, and sort nothing.
    #[test]
    fn no_statement_scans_the_table() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        let table = Table::new("semel").unwrap();
        connection.execute_batch(&table.sql(CREATE)).unwrap();
        for statement in [GET, FIND, LIST, RUNNING, PURGE] {
            let explain = format!("EXPLAIN QUERY PLAN {}", table.sql(statement));
            let mut explain = connection.prepare(&explain).unwrap();
            let nulls = vec![rusqlite::types::Null; explain.parameter_count()];
            let rows = explain.query_map(rusqlite::params_from_iter(nulls), |row| row.get(3));
            let plan: Vec<String> = rows.unwrap().collect::<Result<_, _>>().unwrap();
            let is_bad = |step: &String| {
                step.contains("TEMP B-TREE") || step.starts_with("SCAN") && step.contains("semel")
            };
            assert!(!plan.iter().any(is_bad), "{statement}: {plan:?}");
            assert!(
                plan.iter().any(|step| step.contains("USING")),
                "{statement}: {plan:?}"
            );
        }
    }
}
