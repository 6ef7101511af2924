//! What reads the whole table: listing, purging, emptying.
//!
//! A scan is paid for by what is read, not by what is found: half a read unit for 4 KB, one where
//! it is strongly consistent.

use std::collections::HashMap;

use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::scan::builders::ScanFluentBuilder;
use aws_sdk_dynamodb::types::AttributeValue;
use semel::store::{Cursor, Entry, ListQuery, Page, Purged, Result};
use semel::{IdentityDigest, StateKind, StoreError, StoreErrorKind, Timestamp};

use super::call::{Does, Table};
use super::item::{self, Item, PK, Reader, Row};
use super::schema::VERSION_KEY;

/// How many items a page of what is rare looks at, at least: it is one request, whatever it finds.
const LOOK_AT: i32 = 250;

/// A page of a scan.
struct Scanned {
    items: Vec<Item>,
    next: Option<String>,
}

async fn scan(table: &Table, request: ScanFluentBuilder, from: Option<String>) -> Result<Scanned> {
    let from = from.map(|key| HashMap::from([(PK.to_owned(), item::text(key))]));
    let request = request.set_exclusive_start_key(from);
    let output = table.send(Does::Read, || request.clone().send()).await?;
    let next = output.last_evaluated_key.filter(|key| !key.is_empty());
    let next = next.map(|key| match key.get(PK) {
        Some(AttributeValue::S(key)) => Ok(key.clone()),
        _ => Err(StoreError::new(
            StoreErrorKind::Corrupt,
            "a scan returned no key to continue from",
        )),
    });
    Ok(Scanned {
        items: output.items.unwrap_or_default(),
        next: next.transpose()?,
    })
}

fn request(table: &Table) -> ScanFluentBuilder {
    table.client.scan().table_name(&table.name)
}

/// Lists records of a state, as one request finds them. `seen` is shown each that is in flight.
pub(super) async fn list(
    table: &Table,
    query: &ListQuery,
    now: Timestamp,
    seen: impl Fn(&IdentityDigest, &Row),
) -> Result<Page> {
    let from = query.after.as_ref().map(after).transpose()?;
    let limit = query.limit.max(1);
    // Most are completed: what is read beyond the limit would be read again.
    let least = match query.state {
        StateKind::Completed => 1,
        _ => LOOK_AT,
    };
    let look_at = i32::try_from(limit).unwrap_or(i32::MAX).max(least);
    let mut request = request(table)
        .consistent_read(true)
        .limit(look_at)
        .expression_attribute_names("#state", item::STATE)
        .expression_attribute_values(":state", item::state(query.state));
    let filter = if query.only_lapsed() {
        request = request
            .expression_attribute_names("#until", item::LEASE_UNTIL)
            .expression_attribute_values(":now", item::number(now.as_micros()));
        "#state = :state AND #until <= :now"
    } else {
        "#state = :state"
    };
    let page = scan(table, request.filter_expression(filter), from).await?;
    let mut entries = Vec::new();
    for found in &page.items {
        let reader = Reader(found);
        let row = reader.row()?;
        if row.record.is_purgeable(now) {
            continue;
        }
        let entry = reader.entry(row.record.clone())?;
        if query.state == StateKind::InFlight {
            seen(&entry.label.digest, &row);
        }
        entries.push(entry);
        if entries.len() == limit {
            // The rest of what was read is read again.
            return Ok(Page {
                next: entries.last().map(cursor),
                entries,
            });
        }
    }
    Ok(Page {
        next: page.next.map(|key| Cursor(key.into_bytes().into())),
        entries,
    })
}

fn cursor(entry: &Entry) -> Cursor {
    Cursor(entry.label.digest.to_string().into_bytes().into())
}

fn after(cursor: &Cursor) -> Result<String> {
    let key = std::str::from_utf8(&cursor.0).ok();
    // A page may end at the version's item too.
    let known = key.filter(|key| *key == VERSION_KEY || IdentityDigest::from_hex(key).is_some());
    known.map(str::to_owned).ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Config,
            "a cursor that no listing of this store gave",
        )
    })
}

/// Removes at most `limit` records that are past their retention, each only if it still is.
pub(super) async fn purge(table: &Table, limit: usize, now: Timestamp) -> Result<Purged> {
    let mut removed = 0;
    let mut from = None;
    loop {
        let request = request(table)
            .filter_expression("#purge <= :now")
            .projection_expression("#pk")
            .expression_attribute_names("#purge", item::PURGE)
            .expression_attribute_names("#pk", PK)
            .expression_attribute_values(":now", item::number(now.as_micros()));
        let page = scan(table, request, from).await?;
        for found in &page.items {
            if removed == limit {
                return Ok(Purged {
                    removed,
                    more: true,
                });
            }
            let digest = Reader(found).digest()?;
            removed += usize::from(remove_if_past(table, &digest, now).await?);
        }
        from = page.next;
        if from.is_none() {
            return Ok(Purged {
                removed,
                more: false,
            });
        }
    }
}

async fn remove_if_past(table: &Table, digest: &IdentityDigest, now: Timestamp) -> Result<bool> {
    let request = table
        .client
        .delete_item()
        .table_name(&table.name)
        .key(PK, item::pk(digest))
        .condition_expression("#purge <= :now")
        .expression_attribute_names("#purge", item::PURGE)
        .expression_attribute_values(":now", item::number(now.as_micros()));
    let stays = |e: &DeleteItemError| e.is_conditional_check_failed_exception();
    let removed = table.send_unless(Does::Write, stays, || request.clone().send());
    Ok(removed.await?.is_some())
}

/// Removes every record.
pub(super) async fn clear(table: &Table) -> Result<()> {
    let mut from = None;
    loop {
        let request = request(table)
            .consistent_read(true)
            .projection_expression("#pk")
            .expression_attribute_names("#pk", PK);
        let page = scan(table, request, from).await?;
        for found in page.items {
            if found.get(PK) == Some(&item::text(VERSION_KEY)) {
                continue;
            }
            let request = table
                .client
                .delete_item()
                .table_name(&table.name)
                .set_key(Some(found));
            table.send(Does::Write, || request.clone().send()).await?;
        }
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}
