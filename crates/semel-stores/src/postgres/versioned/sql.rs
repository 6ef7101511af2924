//! The statements for versioned records.
//!
//! A statement sees what was committed before it began. An `UPDATE` that meets a rival waits for it,
//! and then has the row as the rival left it, but what the statement reads beside it is as it was.
//! So where the row looked as expected it is updated in any case, to what it was if it is another
//! now, and what it is comes back from under its lock: a loser is always told the winner's version,
//! by one statement. Where the row did not look as expected nothing is written.
//!
//! One row comes back: what was written, or else what was seen; none where there is no row.

/// The row as it was when the statement began.
macro_rules! seen {
    () => {
        "
WITH seen AS MATERIALIZED (
  SELECT r.version, r.nonce, r.value IS NULL AS gone FROM {versioned} AS r WHERE r.digest = $1),"
    };
}

/// Changes the row that is locked now where it fits; else it stays as it is.
macro_rules! set {
    ($fits:literal, $nonce:literal, $value:literal) => {
        concat!(
            "
    version = CASE WHEN ",
            $fits,
            " THEN r.version + 1 ELSE r.version END,
    nonce = CASE WHEN ",
            $fits,
            " THEN ",
            $nonce,
            " ELSE r.nonce END,
    value = CASE WHEN ",
            $fits,
            " THEN ",
            $value,
            " ELSE r.value END,
    written_at = CASE WHEN ",
            $fits,
            " THEN {now} ELSE r.written_at END"
        )
    };
}

macro_rules! answer {
    () => {
        "
  RETURNING r.version, r.nonce, r.value IS NULL AS gone)
SELECT p.version, p.nonce, p.gone FROM put AS p
UNION ALL
SELECT s.version, s.nonce, s.gone FROM seen AS s WHERE NOT EXISTS (SELECT FROM put)"
    };
}

/// $1 digest.
pub(in super::super) const READ: &str = "
SELECT r.version, r.value FROM {versioned} AS r WHERE r.digest = $1 AND r.value IS NOT NULL";

/// The same, and nobody changes it until the transaction ends.
pub(in super::super) const LOCK: &str = "
SELECT r.version, r.value FROM {versioned} AS r WHERE r.digest = $1 AND r.value IS NOT NULL
FOR UPDATE";

/// $2 nonce, $3 value, $4 whatever is there (-1) or only where nothing is (0), $5 scope, $6 name. A
/// row that is there is locked by `ON CONFLICT`, also where a rival inserted it after the statement
/// began.
pub(in super::super) const PUT: &str = concat!(
    seen!(),
    "
put AS (
  INSERT INTO {versioned} AS r (digest, nonce, value, scope, name, version, written_at)
  SELECT $1, $2, $3, $5::text::text[], $6, 1, {now}
  WHERE $4::bigint = -1 OR NOT EXISTS (SELECT FROM seen AS s WHERE NOT s.gone)
  ON CONFLICT (digest) DO UPDATE SET ",
    set!(
        "(r.value IS NULL OR ($4::bigint = -1 AND r.nonce <> $2))",
        "excluded.nonce",
        "excluded.value"
    ),
    answer!()
);

/// $2 nonce, $3 value, or null to delete, $4 the version, or any (-1).
pub(in super::super) const SET: &str = concat!(
    seen!(),
    "
put AS (
  UPDATE {versioned} AS r SET ",
    set!(
        "(r.value IS NOT NULL AND $4::bigint IN (-1, r.version))",
        "$2::bytea",
        "$3::bytea"
    ),
    "
  WHERE r.digest = $1
    AND EXISTS (SELECT FROM seen AS s WHERE NOT s.gone AND $4::bigint IN (-1, s.version))",
    answer!()
);
