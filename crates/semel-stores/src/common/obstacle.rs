//! Why a store was not opened though nothing is wrong with it: the source of such an error.

/// Why a store that may be right was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Obstacle {
    /// Nothing was made yet, and was not to be.
    #[error("nothing was made yet")]
    Missing,
}

impl Obstacle {
    /// The one behind an error.
    pub(crate) fn of(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        std::iter::successors(Some(error), |error| error.source())
            .find_map(|error| error.downcast_ref().copied())
    }
}
