//! Work that is polled by whoever waits for it, and by a task of its own once nobody does (R11).

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task_local;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Guard;

task_local! {
    // Known to the work while it is polled, so that the two need nothing that they share.
    static STAGE: Cell<Stage>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It ends with its caller.
    Waiting,
    /// It goes on without its caller.
    Begun,
    /// It goes on, and its caller has left.
    Alone,
}

impl<S> Guard<S> {
    /// Work for a caller who may go away. Until it [begins](Caller::begin) it is dropped with its caller. From then
    /// on it survives its caller (R11), and [`drain`](Guard::drain) waits for it, as for that of
    /// [`spawn`](Guard::spawn). As long as the caller polls it, it needs no task.
    pub fn attend<W>(&self, work: impl FnOnce(Caller) -> W) -> Attended<W::Output>
    where
        W: Future + Send + 'static,
        W::Output: Send + 'static,
    {
        Attended {
            work: Some(Box::pin(work(Caller(self.shared.tasks.clone())))),
            alone: None,
            go_on,
        }
    }
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Work that a caller waits for: [`Guard::attend`].
#[must_use = "futures do nothing unless polled"]
pub struct Attended<T> {
    // None while it is polled, so that a panic leaves nothing behind that could be polled again.
    work: Option<Work<T>>,
    alone: Option<Alone>,
    // A pointer, so that this type needs no `Send + 'static`.
    go_on: fn(Work<T>, Alone),
}

/// Where abandoned work continues.
struct Alone {
    runtime: Handle,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl<T> Future for Attended<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        // It panicked, or was done.
        let Some(mut work) = this.work.take() else {
            return Poll::Pending;
        };
        let stage = match this.alone {
            Some(_) => Stage::Begun,
            None => Stage::Waiting,
        };
        let (polled, stage) = STAGE.sync_scope(Cell::new(stage), || {
            let polled = work.as_mut().poll(cx);
            (polled, STAGE.with(Cell::get))
        });
        if polled.is_pending() {
            this.work = Some(work);
            if stage == Stage::Begun {
                this.alone.get_or_insert_with(|| Alone {
                    runtime: Handle::current(),
                    #[cfg(feature = "tracing")]
                    span: tracing::Span::current(),
                });
            }
        }
        polled
    }
}

impl<T> Drop for Attended<T> {
    fn drop(&mut self) {
        if let (Some(work), Some(alone)) = (self.work.take(), self.alone.take()) {
            (self.go_on)(work, alone);
        }
    }
}

fn go_on<T: Send + 'static>(work: Work<T>, alone: Alone) {
    let Alone {
        runtime,
        #[cfg(feature = "tracing")]
        span,
    } = alone;
    let work = STAGE.scope(Cell::new(Stage::Alone), work);
    #[cfg(feature = "tracing")]
    let work = tracing::Instrument::instrument(work, span);
    runtime.spawn(work);
}

impl<T> fmt::Debug for Attended<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attended").finish_non_exhaustive()
    }
}

/// Whoever waits for work, as the work itself sees them: not from a task that it spawns.
#[derive(Debug)]
pub struct Caller(TaskTracker);

/// Work that survives its caller: [`Caller::begin`].
#[must_use = "work is counted as long as this is held"]
#[derive(Debug)]
pub struct Begun {
    _counted: TaskTrackerToken,
}

impl Caller {
    /// From now on the work survives its caller, and is counted until what this returns is dropped. For the work
    /// itself to call, once.
    ///
    /// # Panics
    /// Outside a tokio runtime, where nothing could take the work over.
    pub fn begin(&self) -> Begun {
        drop(Handle::current());
        let begun = STAGE.try_with(|stage| {
            if stage.get() == Stage::Waiting {
                stage.set(Stage::Begun);
            }
        });
        debug_assert!(begun.is_ok(), "it is not the work that begins");
        Begun {
            _counted: self.0.token(),
        }
    }

    /// Whether nobody waits any more. The work is polled once when that happens.
    pub fn is_gone(&self) -> bool {
        STAGE.try_with(Cell::get) == Ok(Stage::Alone)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt as _;
    use tokio::sync::{Notify, oneshot};

    use super::*;
    use crate::memory::MemoryStore;

    #[tokio::test]
    async fn it_goes_on_without_its_caller_who_is_seen_to_leave() {
        let guard = Guard::from(MemoryStore::default());
        let (done, mut is_done) = oneshot::channel();
        let mut work = guard.attend(|caller| async move {
            let _begun = caller.begin();
            poll_fn(|_| match caller.is_gone() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            tokio::task::yield_now().await;
            done.send(()).ok();
        });
        assert_eq!(guard.running(), 0);
        // As long as somebody polls it, it waits.
        for _ in 0..3 {
            assert!((&mut work).now_or_never().is_none());
        }
        assert_eq!(guard.running(), 1);
        assert!(is_done.try_recv().is_err());
        drop(work);
        guard.drain().await;
        assert_eq!((is_done.try_recv(), guard.running()), (Ok(()), 0));
    }

    #[tokio::test]
    async fn before_it_begins_it_ends_with_its_caller() {
        let guard = Guard::from(MemoryStore::default());
        let go_on = Arc::new(Notify::new());
        let went_on = Arc::new(AtomicBool::new(false));
        let (told, seen) = (Arc::clone(&go_on), Arc::clone(&went_on));
        let mut work = guard.attend(|caller| async move {
            told.notified().await;
            let _begun = caller.begin();
            seen.store(true, Ordering::Relaxed);
        });
        assert!((&mut work).now_or_never().is_none());
        assert_eq!(guard.running(), 0);
        drop(work);
        go_on.notify_one();
        guard.drain().await;
        assert!(!went_on.load(Ordering::Relaxed));
    }

    /// Each is left by itself.
    #[tokio::test]
    async fn work_within_work_sees_its_own_caller() {
        let guard = Guard::from(MemoryStore::default());
        let inner = guard.clone();
        let (done, is_done) = oneshot::channel();
        let mut work = guard.attend(|caller| async move {
            let _begun = caller.begin();
            let mut within = inner.attend(|caller| async move {
                let _begun = caller.begin();
                assert!(!caller.is_gone());
                tokio::task::yield_now().await;
                assert!(!caller.is_gone());
            });
            assert!((&mut within).now_or_never().is_none());
            tokio::task::yield_now().await;
            assert!(caller.is_gone());
            within.await;
            done.send(()).ok();
        });
        assert!((&mut work).now_or_never().is_none());
        drop(work);
        assert_eq!(is_done.await, Ok(()));
        guard.drain().await;
    }

    #[tokio::test]
    async fn a_panic_is_its_callers_and_ends_it() {
        let guard = Guard::from(MemoryStore::default());
        let go_on = Arc::new(Notify::new());
        let told = Arc::clone(&go_on);
        let mut work = guard.attend(|caller| async move {
            let _begun = caller.begin();
            told.notified().await;
            panic!("once");
        });
        assert!((&mut work).now_or_never().is_none());
        go_on.notify_one();
        let polled = catch_unwind(AssertUnwindSafe(|| (&mut work).now_or_never()));
        assert!(polled.is_err());
        assert_eq!(guard.running(), 0);
        assert!((&mut work).now_or_never().is_none());
        drop(work);
        guard.drain().await;
    }
}
