//! How large an outcome may be.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use semel::IdentityDigest;
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

/// What is committed with a transaction: the changes, and the places of those whose outcomes are too large
/// and therefore omitted.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) type Fitting = (Vec<(IdentityDigest, Change)>, Vec<usize>);

/// These changes with outcomes of at most `limit` bytes.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn fitting(
    changes: &[(IdentityDigest, Change)],
    store: &str,
    limit: usize,
) -> Result<Fitting> {
    let mut omitted = Vec::new();
    let mut fit = |(place, (identity, change)): (usize, &(IdentityDigest, Change))| {
        let kept = match fits(change, store, limit) {
            Ok(()) => change.clone(),
            Err(error) => {
                omitted.push(place);
                change.omitting().ok_or(error)?
            }
        };
        Ok((*identity, kept))
    };
    let changes = changes.iter().enumerate().map(&mut fit);
    let changes = changes.collect::<Result<_>>()?;
    Ok((changes, omitted))
}
