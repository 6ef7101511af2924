//! The statements for versioned records.

use semel::store::Nonce;
use semel::versioned::{Expected, NaturalKey};

use super::super::sql::{Hex, NOW, Table};
use crate::common::scope;

impl Table {
    /// Puts a record where there is none, or over what is there: one statement. What it found under
    /// the row's lock, and did, it leaves in the session: four times the version that is there now,
    /// and one more where that is this change's own.
    ///
    /// Assignments are made from left to right: nonce and value, on which all depend, come last. With
    /// [`Any`](Expected::Any) a change that is sent again writes what it wrote.
    pub(super) fn put(
        &self,
        key: &NaturalKey,
        expected: Expected,
        writer: &Nonce,
        value: &[u8],
    ) -> String {
        let table = &self.records;
        let nonce = Hex(writer.as_bytes());
        let scope = scope::to_json(key.scope());
        let update = match expected {
            Expected::Any => format!(
                "version=LAST_INSERT_ID((version+(value IS NULL OR nonce<>{nonce}))*4+1) DIV 4,\
                 written_at=VALUES(written_at),nonce={nonce},value=VALUES(value)"
            ),
            Expected::Absent | Expected::Version(_) => format!(
                "version=LAST_INSERT_ID((version+(value IS NULL))*4+(value IS NULL OR \
                 nonce={nonce})) DIV 4,\
                 written_at=IF(value IS NULL,VALUES(written_at),written_at),\
                 nonce=IF(value IS NULL,{nonce},nonce),value=IFNULL(value,VALUES(value))"
            ),
        };
        format!(
            "INSERT INTO `{table}_versioned` (digest,version,nonce,value,written_at,scope,name) \
             VALUES ({digest},LAST_INSERT_ID(5) DIV 4,{nonce},{value},{NOW},{scope},{name}) \
             ON DUPLICATE KEY UPDATE {update}",
            digest = Hex(key.digest()),
            value = Hex(value),
            scope = Hex(scope.as_bytes()),
            name = Hex(key.name().as_bytes()),
        )
    }

    /// Writes over the record where it is as expected, or deletes it where there is no value.
    pub(super) fn set(
        &self,
        key: &NaturalKey,
        expected: Expected,
        writer: &Nonce,
        value: Option<&[u8]>,
    ) -> String {
        let table = &self.records;
        let (digest, nonce) = (Hex(key.digest()), Hex(writer.as_bytes()));
        let value = value.map_or_else(|| "NULL".to_owned(), |value| Hex(value).to_string());
        let condition = match expected {
            Expected::Any => String::new(),
            Expected::Version(version) => format!(" AND version={}", version.0),
            // Deletes nothing: what is there answers.
            Expected::Absent => " AND 1=0".to_owned(),
        };
        format!(
            "UPDATE `{table}_versioned` SET version=version+1,written_at={NOW},nonce={nonce},\
             value={value} WHERE digest={digest} AND value IS NOT NULL{condition}"
        )
    }

    /// After [`put`](Self::put) in the same packet: what it left.
    pub(super) fn was_put(&self) -> &'static str {
        "SELECT CAST(LAST_INSERT_ID() AS UNSIGNED)"
    }

    /// After [`set`](Self::set) in the same packet: how many rows it wrote, and the latest change.
    pub(super) fn was_set(&self, key: &NaturalKey) -> String {
        let (table, digest) = (&self.records, Hex(key.digest()));
        format!(
            "SELECT changed,version,nonce,value IS NULL FROM (SELECT ROW_COUNT() AS changed) AS step \
             LEFT JOIN `{table}_versioned` ON digest={digest}"
        )
    }

    /// In a transaction after a [`set`](Self::set) that wrote nothing: the latest change as it is now,
    /// not as it was when the transaction began.
    pub(super) fn latest(&self, key: &NaturalKey) -> String {
        let (table, digest) = (&self.records, Hex(key.digest()));
        format!(
            "SELECT 0,version,nonce,value IS NULL FROM `{table}_versioned` WHERE digest={digest} \
             FOR UPDATE"
        )
    }

    /// The record, locked until the transaction ends or not.
    pub(super) fn versioned(&self, key: &NaturalKey, lock: bool) -> String {
        let (table, digest) = (&self.records, Hex(key.digest()));
        let lock = if lock { " FOR UPDATE" } else { "" };
        format!(
            "SELECT version,value FROM `{table}_versioned` \
             WHERE digest={digest} AND value IS NOT NULL{lock}"
        )
    }
}
