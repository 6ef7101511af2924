/// Writes the methods that a store leaves to the one it wraps, so that only those stand there that differ.
///
/// The field comes first, then any of the methods of [`Store`](crate::Store), and of `begin`, `change_in`, `commit`,
/// `seal` and `rollback` of [`Transactional`](crate::transaction::Transactional):
///
/// ```
/// use semel::memory::MemoryStore;
/// use semel::record::Change;
/// use semel::store::{Fenced, Result};
/// use semel::{IdentityDigest, Store, delegate};
///
/// /// Says what is changed.
/// struct Told(MemoryStore);
///
/// impl Store for Told {
///     delegate!(0: claim, get, list, purge, wait, probe, close);
///
///     async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
///         let answer = self.0.change(identity, change).await;
///         println!("{identity:?}: {answer:?}");
///         answer
///     }
/// }
/// ```
#[macro_export]
macro_rules! delegate {
    ($field:tt: $($method:ident),+ $(,)?) => {
        $($crate::delegate!(@$method $field);)+
    };
    (@claim $field:tt) => {
        async fn claim(
            &self,
            identity: &$crate::Identity,
            request: &$crate::store::ClaimRequest,
        ) -> $crate::store::Result<$crate::store::Claim> {
            $crate::Store::claim(&self.$field, identity, request).await
        }
    };
    (@change $field:tt) => {
        async fn change(
            &self,
            identity: &$crate::IdentityDigest,
            change: &$crate::record::Change,
        ) -> $crate::store::Result<$crate::store::Fenced> {
            $crate::Store::change(&self.$field, identity, change).await
        }
    };
    (@get $field:tt) => {
        async fn get(
            &self,
            identity: &$crate::IdentityDigest,
        ) -> $crate::store::Result<::std::option::Option<$crate::store::Entry>> {
            $crate::Store::get(&self.$field, identity).await
        }
    };
    (@list $field:tt) => {
        async fn list(
            &self,
            query: &$crate::store::ListQuery,
        ) -> $crate::store::Result<$crate::store::Page> {
            $crate::Store::list(&self.$field, query).await
        }
    };
    (@purge $field:tt) => {
        async fn purge(&self, limit: usize) -> $crate::store::Result<$crate::store::Purged> {
            $crate::Store::purge(&self.$field, limit).await
        }
    };
    (@wait $field:tt) => {
        async fn wait(
            &self,
            identity: &$crate::IdentityDigest,
            fence: $crate::store::Fence,
            timeout: ::std::time::Duration,
        ) -> $crate::store::Result<$crate::store::Waited> {
            $crate::Store::wait(&self.$field, identity, fence, timeout).await
        }
    };
    (@probe $field:tt) => {
        async fn probe(&self) -> $crate::store::Result<$crate::store::Probe> {
            $crate::Store::probe(&self.$field).await
        }
    };
    (@close $field:tt) => {
        async fn close(&self) -> $crate::store::Result<()> {
            $crate::Store::close(&self.$field).await
        }
    };
    (@begin $field:tt) => {
        async fn begin(
            &self,
            isolation: $crate::transaction::Isolation,
        ) -> ::std::result::Result<Self::Transaction, $crate::transaction::TransactionError> {
            $crate::transaction::Transactional::begin(&self.$field, isolation).await
        }
    };
    (@change_in $field:tt) => {
        async fn change_in(
            &self,
            transaction: &mut Self::Transaction,
            identity: &$crate::IdentityDigest,
            change: &$crate::record::Change,
        ) -> ::std::result::Result<$crate::store::Fenced, $crate::transaction::TransactionError> {
            let inner = &self.$field;
            $crate::transaction::Transactional::change_in(inner, transaction, identity, change).await
        }
    };
    (@commit $field:tt) => {
        async fn commit(
            &self,
            transaction: Self::Transaction,
        ) -> ::std::result::Result<(), $crate::transaction::TransactionError> {
            $crate::transaction::Transactional::commit(&self.$field, transaction).await
        }
    };
    (@seal $field:tt) => {
        async fn seal(
            &self,
            transaction: Self::Transaction,
            changes: &[($crate::IdentityDigest, $crate::record::Change)],
        ) -> ::std::result::Result<
            $crate::transaction::Sealing,
            $crate::transaction::TransactionError,
        > {
            $crate::transaction::Transactional::seal(&self.$field, transaction, changes).await
        }
    };
    (@rollback $field:tt) => {
        async fn rollback(&self, transaction: Self::Transaction) {
            $crate::transaction::Transactional::rollback(&self.$field, transaction).await;
        }
    };
}
