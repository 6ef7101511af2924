//! One type for any store, chosen at run time.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::record::Change;
use crate::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Result, Store,
    Waited,
};
use crate::{Identity, IdentityDigest};

/// A store whose kind is known at run time only: `semel_stores::open` returns one.
///
/// Cloning shares the store. Each call costs one allocation more than the store itself.
#[derive(Clone)]
pub struct AnyStore(Arc<dyn Erased>);

impl AnyStore {
    /// Hides the kind of `store`.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyStore").finish_non_exhaustive()
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Writes the object-safe twin of each method of [`Store`], and both ways through it. Arguments
/// passed by reference stand before the `;`, those passed by value behind it.
macro_rules! erase {
    ($($name:ident($($by_ref:ident: $ref:ty),*; $($by_value:ident: $value:ty),*) -> $out:ty)*) => {
        trait Erased: Send + Sync + 'static {
            $(fn $name<'a>(&'a self, $($by_ref: &'a $ref,)* $($by_value: $value),*) -> Boxed<'a, $out>;)*
        }

        impl<S: Store> Erased for S {
            $(fn $name<'a>(&'a self, $($by_ref: &'a $ref,)* $($by_value: $value),*) -> Boxed<'a, $out> {
                Box::pin(Store::$name(self, $($by_ref,)* $($by_value),*))
            })*
        }

        impl Store for AnyStore {
            $(async fn $name(&self, $($by_ref: &$ref,)* $($by_value: $value),*) -> Result<$out> {
                self.0.$name($($by_ref,)* $($by_value),*).await
            })*
        }

        impl<S: Store> Store for Arc<S> {
            $(async fn $name(&self, $($by_ref: &$ref,)* $($by_value: $value),*) -> Result<$out> {
                S::$name(self, $($by_ref,)* $($by_value),*).await
            })*
        }
    };
}

erase! {
    claim(identity: Identity, request: ClaimRequest;) -> Claim
    change(identity: IdentityDigest, change: Change;) -> Fenced
    get(identity: IdentityDigest;) -> Option<Entry>
    list(query: ListQuery;) -> Page
    purge(; limit: usize) -> Purged
    wait(identity: IdentityDigest; fence: Fence, timeout: Duration) -> Waited
    probe(;) -> Probe
    close(;) -> ()
}
