//! How large an outcome may be.

use semel::record::Change;
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};

/// Whether `store` has room for what the change records: at most `limit` bytes.
pub(crate) fn fits(change: &Change, store: &str, limit: usize) -> Result<()> {
    let size = change
        .outcome()
        .map_or(0, |outcome| outcome.as_bytes().len());
    if size <= limit {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::TooLarge,
        format!("the outcome has {size} bytes; the {store} store keeps {limit} at most"),
    ))
}
