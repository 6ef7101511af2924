//! Every case for versioned records, on every store that has them.

use std::sync::Arc;

use libtest_mimic::Trial;
use semel::conformance::Failure;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
use semel::versioned::VersionedIn;
use semel::versioned::VersionedStore;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
use semel::versioned::suite::cases_in;
use semel::versioned::suite::{Case, cases};
use tempfile::TempDir;

/// What holds of every store. Each case opens one, with a directory where it needs that.
#[cfg(feature = "dynamodb")]
pub(crate) fn trials<S, F>(store: &str, open: fn() -> F) -> Vec<Trial>
where
    S: VersionedStore,
    F: Future<Output = Result<(S, Option<TempDir>), Failure>> + 'static,
{
    all(store, open, cases())
}

/// The same, and what holds inside a transaction.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) fn trials_in<S, F>(store: &str, open: fn() -> F) -> Vec<Trial>
where
    S: VersionedIn,
    F: Future<Output = Result<(S, Option<TempDir>), Failure>> + 'static,
{
    let mut cases = cases();
    cases.extend(cases_in());
    all(store, open, cases)
}

fn all<S, F>(store: &str, open: fn() -> F, cases: Vec<Case<S>>) -> Vec<Trial>
where
    S: VersionedStore,
    F: Future<Output = Result<(S, Option<TempDir>), Failure>> + 'static,
{
    let trial = |case: Case<S>| {
        Trial::test(format!("{store}/versioned::{}", case.name), move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            Ok(runtime.block_on(async {
                let (store, _directory) = open().await?;
                (case.run)(Arc::new(store)).await
            })?)
        })
    };
    cases.into_iter().map(trial).collect()
}
