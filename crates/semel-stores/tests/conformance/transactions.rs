//! Every case for effects and records that are committed together, on every store that has transactions.

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use semel::conformance::Failure;
use semel::transaction::Transactional;
use semel::transaction::suite::{Case, Effects, cases};
use tempfile::TempDir;
use tokio::time::timeout;

/// Each case opens a store, with a directory where it needs that.
pub(crate) fn trials<S, E, F>(store: &str, open: fn() -> F) -> Vec<Trial>
where
    S: Transactional,
    E: Effects<S>,
    F: Future<Output = Result<(S, E, Option<TempDir>), Failure>> + 'static,
{
    let trial = |case: Case<S, E>| {
        Trial::test(format!("{store}/transaction::{}", case.name), move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            Ok(runtime.block_on(async {
                let (store, effects, _directory) = open().await?;
                let running = (case.run)(Arc::new(store), Arc::new(effects));
                timeout(Duration::from_mins(1), running)
                    .await
                    .unwrap_or_else(|_| Err(Failure::new("not done after a minute")))
            })?)
        })
    };
    cases().into_iter().map(trial).collect()
}
