//! Steps go through a gate, so that closing can wait for them.

use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Open until the store is closed.
pub(crate) struct Gate {
    store: &'static str,
    steps: TaskTracker,
}

impl Gate {
    /// A gate for this kind of store, named in the error after closing.
    pub(crate) fn new(store: &'static str) -> Self {
        Self {
            store,
            steps: TaskTracker::new(),
        }
    }

    /// Lets a step in. It is under way until what is returned is dropped.
    ///
    /// # Errors
    /// [`Closed`](StoreErrorKind::Closed) from the moment that [`close`](Self::close) was called.
    pub(crate) fn enter(&self) -> Result<TaskTrackerToken> {
        // First the token, then the look: `close` waits for this step, or this step sees it.
        let token = self.steps.token();
        if self.steps.is_closed() {
            return Err(StoreError::new(
                StoreErrorKind::Closed,
                format!("the {} store was closed", self.store),
            ));
        }
        Ok(token)
    }

    /// Lets no further step in, and waits for those under way.
    pub(crate) async fn close(&self) {
        self.steps.close();
        self.steps.wait().await;
    }
}
