//! Threads of a store's own, for what blocks.

use std::thread::JoinHandle;

use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map_err(|e| no_thread().with_source(e))
}

/// Runs what blocks on a thread that serves nobody else.
pub(crate) async fn aside<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (done, result) = oneshot::channel();
    spawn(name, move || drop(done.send(work())))?;
    result.await.unwrap_or_else(|_| Err(no_thread()))
}

pub(crate) fn no_thread() -> StoreError {
    StoreError::new(
        StoreErrorKind::Config,
        "a thread of the store could not run",
    )
}
