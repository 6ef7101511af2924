//! The table: making it, recognising it, and what its settings promise.

use std::time::Duration;

use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::operation::describe_table::DescribeTableError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, MultiRegionConsistency,
    ScalarAttributeType, TableDescription, TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
};
use semel::store::{Durability, Probe, Result};
use semel::{StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep};

use super::call::{Does, Table};
use super::errors::config;
use super::item::{self, PK, Reader, TTL};
use crate::Migrated;

/// The version that this store writes. Those before it were never released, and are left alone.
const VERSION: u32 = 2;
/// The key of the item that holds the version. No digest: those are 64 digits.
pub(super) const VERSION_KEY: &str = "semel";
const VERSION_ATTRIBUTE: &str = "schema_version";

/// How long a new table may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Wants the table to be there, of this version.
pub(super) async fn expect(table: &Table) -> Result<()> {
    match version(table).await? {
        Some(VERSION) => Ok(()),
        Some(found) => Err(other_version(table, found)),
        None => Err(config(format!(
            "the table `{0}` was not made by semel, or not to the end: run `semel migrate --store \
             dynamodb://{0}…`, or open with schema=create",
            table.name
        ))),
    }
}

async fn version(table: &Table) -> Result<Option<u32>> {
    let item = table.read(VERSION_KEY, None).await?;
    let number = item.map(|item| Reader(&item).number(VERSION_ATTRIBUTE));
    let version = |number| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(number.transpose()?.map(version))
}

fn other_version(table: &Table, found: u32) -> StoreError {
    config(format!(
        "the table `{}` has version {found}; this program knows {VERSION} and leaves it alone",
        table.name
    ))
}

/// Makes the tables where there are none. Each step may be done already, by a run before or by another
/// at the same time.
pub(super) async fn migrate(table: &Table) -> Result<Migrated> {
    let mut done = Vec::new();
    let tables = [table, &table.beside("-versioned")];
    for table in tables {
        if describe(table).await?.is_none() && create(table).await? {
            done.push(format!("made the table `{}`", table.name));
        }
    }
    for table in tables {
        wait_until_active(table).await?;
    }
    let from = version(table).await?;
    match from {
        Some(VERSION) => {}
        Some(found) => return Err(other_version(table, found)),
        None => {
            if !ttl_is_on(table).await? && enable_ttl(table).await? {
                done.push(format!("turned on its TTL, by the attribute `{TTL}`"));
            }
            // Last: a table that has it is complete.
            if note_version(table).await? {
                done.push(format!("noted version {VERSION}"));
            }
        }
    }
    Ok(Migrated {
        from,
        to: VERSION,
        done,
    })
}

async fn describe(table: &Table) -> Result<Option<TableDescription>> {
    let request = table.client.describe_table().table_name(&table.name);
    let missing = |e: &DescribeTableError| e.is_resource_not_found_exception();
    let described = table.send_unless(Does::Read, missing, || request.clone().send());
    Ok(described.await?.and_then(|output| output.table))
}

fn built<T, E>(part: std::result::Result<T, E>) -> Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    part.map_err(|error| config("a request could not be built").with_source(error))
}

/// Whether it was made here, and not by another meanwhile.
async fn create(table: &Table) -> Result<bool> {
    let key = AttributeDefinition::builder()
        .attribute_name(PK)
        .attribute_type(ScalarAttributeType::S);
    let hash = KeySchemaElement::builder()
        .attribute_name(PK)
        .key_type(KeyType::Hash);
    let request = table
        .client
        .create_table()
        .table_name(&table.name)
        .attribute_definitions(built(key.build())?)
        .key_schema(built(hash.build())?)
        .billing_mode(BillingMode::PayPerRequest);
    // Repeated after a lost answer, it finds the table that it made.
    let is_there = |e: &CreateTableError| e.is_resource_in_use_exception();
    let created = table.send_unless(Does::Write, is_there, || request.clone().send());
    Ok(created.await?.is_some())
}

async fn wait_until_active(table: &Table) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = describe(table).await?
            && is_active(&found)
        {
            return check_key(table, &found);
        }
        if Instant::now() > end {
            return Err(StoreError::new(
                StoreErrorKind::NotApplied,
                format!(
                    "the table `{}` is not ACTIVE after {PATIENCE:?}",
                    table.name
                ),
            ));
        }
        sleep(Duration::from_millis(500)).await;
    }
}

fn is_active(found: &TableDescription) -> bool {
    // UPDATING serves requests too.
    matches!(
        found.table_status(),
        Some(TableStatus::Active | TableStatus::Updating)
    )
}

fn check_key(table: &Table, found: &TableDescription) -> Result<()> {
    let [key] = found.key_schema() else {
        return Err(wrong_key(table));
    };
    let typed = found.attribute_definitions().iter().any(|definition| {
        definition.attribute_name() == PK && *definition.attribute_type() == ScalarAttributeType::S
    });
    if key.attribute_name() != PK || *key.key_type() != KeyType::Hash || !typed {
        return Err(wrong_key(table));
    }
    Ok(())
}

fn wrong_key(table: &Table) -> StoreError {
    config(format!(
        "the table `{}` has another key: semel's is `{PK}`, a string, without a sort key. Name \
         another table",
        table.name
    ))
}

/// Whether DynamoDB deletes records by the attribute that this store writes.
pub(super) async fn ttl_is_on(table: &Table) -> Result<bool> {
    let request = table.client.describe_time_to_live().table_name(&table.name);
    let output = table.send(Does::Read, || request.clone().send()).await?;
    Ok(output.time_to_live_description.is_some_and(|ttl| {
        ttl.attribute_name() == Some(TTL)
            && matches!(
                ttl.time_to_live_status(),
                Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
            )
    }))
}

async fn enable_ttl(table: &Table) -> Result<bool> {
    let specification = TimeToLiveSpecification::builder()
        .attribute_name(TTL)
        .enabled(true);
    let request = table
        .client
        .update_time_to_live()
        .table_name(&table.name)
        .time_to_live_specification(built(specification.build())?);
    match table.send(Does::Write, || request.clone().send()).await {
        Ok(_) => Ok(true),
        // Somebody else did it meanwhile.
        Err(_) if ttl_is_on(table).await.unwrap_or(false) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn note_version(table: &Table) -> Result<bool> {
    let request = table
        .client
        .put_item()
        .table_name(&table.name)
        .item(PK, item::text(VERSION_KEY))
        .item(VERSION_ATTRIBUTE, item::number(VERSION.into()))
        .condition_expression("attribute_not_exists(#pk)")
        .expression_attribute_names("#pk", PK);
    let is_there = |e: &PutItemError| e.is_conditional_check_failed_exception();
    let noted = table.send_unless(Does::Write, is_there, || request.clone().send());
    if noted.await?.is_some() {
        return Ok(true);
    }
    // Another did, maybe a newer program.
    expect(table).await.map(|()| false)
}

/// What the table's settings promise.
pub(super) async fn probe(table: &Table) -> Result<Probe> {
    let Some(found) = describe(table).await? else {
        return expect(table).await.and(Err(wrong_key(table)));
    };
    check_key(table, &found)?;
    if !is_active(&found) {
        let state = found
            .table_status()
            .map_or("of no state", TableStatus::as_str);
        return Err(StoreError::new(
            StoreErrorKind::NotApplied,
            format!("the table `{}` is {state}, not ACTIVE", table.name),
        ));
    }
    expect(table).await?;
    let mut warnings = Vec::new();
    if !ttl_is_on(table).await? {
        warnings.push(format!(
            "the table's TTL by `{TTL}` is off: records past their retention stay, and every purge \
             reads the whole table; `aws dynamodb update-time-to-live` turns it on"
        ));
    }
    let strong = found.multi_region_consistency() == Some(&MultiRegionConsistency::Strong);
    if !found.replicas().is_empty() && !strong {
        warnings.push(
            "the table is replicated to other regions, which merge writes by the last one: an \
             identity runs once only while all processes use one and the same region"
                .into(),
        );
    }
    if let Some(endpoint) = &table.endpoint
        && !is_aws(endpoint)
    {
        warnings.push(
            "the endpoint is not AWS's: what an acknowledged step survives is what that server \
             promises (emulators lose all with their process)"
                .into(),
        );
    }
    Ok(Probe {
        store: "dynamodb",
        durability: Durability::Replicated,
        warnings,
    })
}

fn is_aws(endpoint: &str) -> bool {
    let host = url::Url::parse(endpoint).ok();
    let host = host
        .as_ref()
        .and_then(url::Url::host_str)
        .unwrap_or_default();
    [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"]
        .iter()
        .any(|domain| host.ends_with(domain))
}
