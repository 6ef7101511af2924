//! Locks that a model checker can take the place of: with `--cfg shuttle` every lock of the memory
//! store is a point where the checker may switch to another task.

#[cfg(not(shuttle))]
mod imp {
    use std::future::Future;
    use std::time::Duration;

    /// A lock that is held for a bounded number of instructions and never across an await.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> impl std::ops::DerefMut<Target = T> + '_ {
            self.0.lock()
        }
    }

    /// Whether `event` came before `timeout`.
    pub(crate) async fn within(timeout: Duration, event: impl Future<Output = ()>) -> bool {
        tokio::time::timeout(timeout, event).await.is_ok()
    }
}

#[cfg(shuttle)]
mod imp {
    use std::future::Future;
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> impl std::ops::DerefMut<Target = T> + '_ {
            self.0
                .lock()
                .expect("no task panics while it holds the lock")
        }
    }

    /// A model checker has no time: the event must come, or the schedule deadlocks and is reported.
    pub(crate) async fn within(_timeout: Duration, event: impl Future<Output = ()>) -> bool {
        event.await;
        true
    }
}

pub(crate) use imp::{Mutex, within};
