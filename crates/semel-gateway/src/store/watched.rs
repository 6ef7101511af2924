//! A store whose failures are noted.

use std::sync::Arc;
use std::time::Duration;

use semel::record::Change;
use semel::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Result, Store,
    Waited,
};
use semel::{Identity, IdentityDigest};

use super::health::Health;

/// Every call of `S`, and what failed of them told to [`Health`].
#[derive(Debug, Clone)]
pub struct Watched<S> {
    inner: S,
    health: Arc<Health>,
}

impl<S> Watched<S> {
    /// Tells `health` of what fails in `inner`.
    pub const fn new(inner: S, health: Arc<Health>) -> Self {
        Self { inner, health }
    }
}

/// Arguments passed by reference stand before the `;`, those passed by value behind it.
macro_rules! watch {
    ($($name:ident($($by_ref:ident: $ref:ty),*; $($by_value:ident: $value:ty),*) -> $out:ty)*) => {
        impl<S: Store> Store for Watched<S> {
            $(async fn $name(&self, $($by_ref: &$ref,)* $($by_value: $value),*) -> Result<$out> {
                let answer = self.inner.$name($($by_ref,)* $($by_value),*).await;
                if let Err(error) = &answer {
                    self.health.failed(error);
                }
                answer
            })*
        }
    };
}

watch! {
    claim(identity: Identity, request: ClaimRequest;) -> Claim
    change(identity: IdentityDigest, change: Change;) -> Fenced
    get(identity: IdentityDigest;) -> Option<Entry>
    list(query: ListQuery;) -> Page
    purge(; limit: usize) -> Purged
    wait(identity: IdentityDigest; fence: Fence, timeout: Duration) -> Waited
    probe(;) -> Probe
    close(;) -> ()
}
