//! Removing records whose retention ended, in the background.

use std::sync::Arc;
use std::time::Duration;

use semel::store::Store;

use crate::metrics::Metrics;

/// How many records one step removes: small, so that claims do not wait for it.
const BATCH: usize = 1000;
/// How often it is looked for more.
const INTERVAL: Duration = Duration::from_secs(60);

/// Purges at once, and then every minute, for ever.
pub async fn run<S: Store>(store: Arc<S>, metrics: Arc<Metrics>) {
    loop {
        match store.purge(BATCH).await {
            Ok(purged) => {
                metrics.purged(purged.removed);
                if purged.more {
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            Err(error) => tracing::warn!("purge: {error}"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
