use semel::store::Result;
use semel::{StoreError, StoreErrorKind};

/// Whether all records may be removed.
///
/// # Errors
/// [`Config`](StoreErrorKind::Config) where the store was not opened for tests, and nobody forces it.
pub(crate) fn may_clear(for_tests: bool, force: bool) -> Result<()> {
    match for_tests || force {
        true => Ok(()),
        false => Err(StoreError::new(
            StoreErrorKind::Config,
            "this store was not opened for tests: clearing it needs force",
        )),
    }
}
