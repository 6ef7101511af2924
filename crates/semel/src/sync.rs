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

/// A value that tasks wait for. They are woken in the order in which they came; tokio's `watch` draws
/// the order at random, and a simulation would not run the same way twice.
pub(crate) struct Watched<T> {
    value: Mutex<T>,
    changed: tokio::sync::Notify,
}

impl<T: Copy> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            changed: tokio::sync::Notify::new(),
        }
    }

    pub(crate) fn get(&self) -> T {
        *self.value.lock()
    }

    pub(crate) fn set(&self, value: T) {
        *self.value.lock() = value;
        self.changed.notify_waiters();
    }

    /// Returns what `pick` finds, as soon as it finds something.
    pub(crate) async fn until<U>(&self, pick: impl Fn(T) -> Option<U>) -> U {
        loop {
            // Counts from here on: no change is missed.
            let changed = self.changed.notified();
            if let Some(picked) = pick(self.get()) {
                return picked;
            }
            changed.await;
        }
    }
}
