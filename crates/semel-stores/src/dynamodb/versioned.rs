//! Versioned records, in a table of their own beside the records': `TABLE-versioned`.
//!
//! A table of their own, because listing and purging walk over all of a table and pay for what they
//! pass, and because what the application keeps wants other backups and permissions than records
//! that end. It is made by the same command; a handle that changes no versioned record never asks
//! for it.
//!
//! # Why each change is atomic
//! It is one `UpdateItem` under a condition, which DynamoDB carries out on the item alone and in one
//! go; where the condition does not hold it answers the item as it is, so that a loser is told the
//! winner's version by the same request. A request that is sent again knows its own by the nonce.

use aws_sdk_dynamodb::types::ReturnValue;
use bytes::Bytes;
use semel::IdentityDigest;
use semel::store::{Nonce, Result};
use semel::versioned::rule::{Change, Row};
use semel::versioned::{
    Expected, NaturalKey, Version, Versioned, VersionedStore, WriteError, check_value,
};

use super::call::Written;
use super::item::{self, Item, NONCE, Reader, SCOPE, number};
use super::update::Update;
use super::{DynamoDbStore, MAX_OUTCOME};
use crate::common::doubt::doubtful;
use crate::common::versioned::answer;

const VERSION: &str = "version";
/// Not there where the record was deleted.
const VALUE: &str = "value";
const NAME: &str = "name";
/// For people.
const WRITTEN: &str = "written_us";

/// How often a change is sent that the item's next state had an answer for.
const ROUNDS: usize = 4;

impl DynamoDbStore {
    fn update_for(&self, key: &NaturalKey, change: &Change, value: Option<&Bytes>) -> Update {
        let mut update = Update::default();
        update.value("none", number(0));
        update.set_to(
            VERSION,
            number(1),
            "if_not_exists(#version, :none) + :version",
        );
        update.set(NONCE, item::nonce(&change.writer));
        update.set_time(WRITTEN, self.now());
        match value {
            Some(value) => {
                update.set(VALUE, item::bytes(value));
                update.set(SCOPE, item::scope(key.scope()));
                update.set(NAME, item::text(key.name()));
            }
            None => update.remove(VALUE),
        }
        match change.expected {
            // Not over its own: sent again it answers as it did.
            Expected::Any if !change.deletes => {
                update.when("(attribute_not_exists(#value) OR #nonce <> :nonce)");
            }
            Expected::Any => update.when("attribute_exists(#value)"),
            Expected::Absent if !change.deletes => update.when("attribute_not_exists(#value)"),
            // Deletes nothing: what is there answers.
            Expected::Absent => update.when("#version < :none"),
            Expected::Version(Version(version)) => {
                update.value("if_version", number(version));
                update.when("attribute_exists(#value) AND #version = :if_version");
            }
        }
        update
    }
}

fn latest(item: &Item) -> Result<Row> {
    let reader = Reader(item);
    Ok(Row {
        version: Version(reader.number(VERSION)?),
        writer: reader.nonce()?,
        deleted: !item.contains_key(VALUE),
    })
}

impl VersionedStore for DynamoDbStore {
    async fn read(&self, key: &NaturalKey) -> Result<Option<Versioned>> {
        let _under_way = self.gate.enter()?;
        let digest = IdentityDigest::from_bytes(*key.digest());
        let only = Some(("#version, #value", &[VERSION, VALUE] as &[_]));
        let Some(item) = self.versioned.read(digest.to_string(), only).await? else {
            return Ok(None);
        };
        if !item.contains_key(VALUE) {
            return Ok(None);
        }
        let reader = Reader(&item);
        Ok(Some(Versioned {
            version: Version(reader.number(VERSION)?),
            value: Bytes::copy_from_slice(reader.bytes(VALUE)?),
        }))
    }

    async fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> Result<Version, WriteError> {
        let change = Change::new(expected, writer, value.as_ref());
        let _under_way = self.gate.enter()?;
        key.check()?;
        if let Some(value) = &value {
            check_value(value, MAX_OUTCOME)?;
        }
        let digest = IdentityDigest::from_bytes(*key.digest());
        // The new version is known then, and a large value need not come back.
        let returns = match change.expected {
            Expected::Version(_) => ReturnValue::None,
            Expected::Any | Expected::Absent => ReturnValue::UpdatedNew,
        };
        let mut resent = false;
        for _ in 0..ROUNDS {
            let update = self.update_for(key, &change, value.as_ref());
            let written = self
                .versioned
                .update(&digest, update, returns.clone(), &mut resent);
            let written = written.await.map_err(|error| doubtful(error, resent))?;
            let found = match (written, change.expected) {
                (Written::Yes(_), Expected::Version(version)) => return Ok(version.next()),
                (Written::Yes(item), _) => return Ok(Version(Reader(&item).number(VERSION)?)),
                (Written::No(found), _) => found,
            };
            let latest = found.map(|item| latest(&item)).transpose()?;
            if let Some(answer) = answer(latest.as_ref(), &change, resent) {
                return answer;
            }
        }
        Err(doubtful(super::steps::unsettled(), resent).into())
    }
}
