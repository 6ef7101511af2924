//! Work that is polled by whoever waits for it, and by a task of its own once nobody does (R11).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Guard;

impl<S> Guard<S> {
    /// Work that goes on if its caller goes away (R11), and which [`drain`](Guard::drain) waits for, like that
    /// of [`spawn`](Guard::spawn); but as long as the caller polls it, it needs no task.
    ///
    /// Nothing happens before the first poll, and what was never polled is dropped with its caller.
    pub fn attend<W>(&self, work: impl FnOnce(Caller) -> W) -> Attended<W>
    where
        W: Future + Send + 'static,
        W::Output: Send + 'static,
    {
        let caller = Arc::<Leaving>::default();
        Attended {
            work: Some(Box::pin(work(Caller(Arc::clone(&caller))))),
            caller,
            tasks: self.shared.tasks.clone(),
            begun: None,
        }
    }
}

/// Work that a caller waits for: [`Guard::attend`].
#[must_use = "futures do nothing unless polled"]
pub struct Attended<W>
where
    W: Future + Send + 'static,
    W::Output: Send + 'static,
{
    // None while it is polled, so that a panic leaves nothing behind that could be polled again.
    work: Option<Pin<Box<W>>>,
    caller: Arc<Leaving>,
    tasks: TaskTracker,
    begun: Option<Begun>,
}

struct Begun {
    runtime: Handle,
    _counted: TaskTrackerToken,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl<W> Future for Attended<W>
where
    W: Future + Send + 'static,
    W::Output: Send + 'static,
{
    type Output = W::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<W::Output> {
        let this = self.get_mut();
        this.begun.get_or_insert_with(|| Begun {
            runtime: Handle::current(),
            _counted: this.tasks.token(),
            #[cfg(feature = "tracing")]
            span: tracing::Span::current(),
        });
        // It panicked, or was done.
        let Some(mut work) = this.work.take() else {
            return Poll::Pending;
        };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            this.work = Some(work);
        }
        polled
    }
}

impl<W> Drop for Attended<W>
where
    W: Future + Send + 'static,
    W::Output: Send + 'static,
{
    fn drop(&mut self) {
        let (Some(work), Some(begun)) = (self.work.take(), &self.begun) else {
            return;
        };
        self.caller.has_left.store(true, Ordering::Release);
        self.caller.waker.wake();
        #[cfg(feature = "tracing")]
        let work = tracing::Instrument::instrument(work, begun.span.clone());
        self.tasks.spawn_on(work, &begun.runtime);
    }
}

impl<W> fmt::Debug for Attended<W>
where
    W: Future + Send + 'static,
    W::Output: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attended").finish_non_exhaustive()
    }
}

/// Whoever waits for work, as the work sees them.
#[derive(Debug)]
pub struct Caller(Arc<Leaving>);

#[derive(Debug, Default)]
struct Leaving {
    has_left: AtomicBool,
    waker: AtomicWaker,
}

impl Caller {
    /// Ready once nobody waits any more.
    pub fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.waker.register(cx.waker());
        match self.0.has_left.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;

    use futures_util::FutureExt as _;
    use tokio::sync::{Notify, oneshot};

    use super::*;
    use crate::memory::MemoryStore;

    #[tokio::test]
    async fn it_goes_on_without_its_caller_who_is_seen_to_leave() {
        let guard = Guard::from(MemoryStore::default());
        let (done, mut is_done) = oneshot::channel();
        let mut work = guard.attend(|caller| async move {
            poll_fn(|cx| caller.poll_gone(cx)).await;
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
    async fn what_was_never_polled_ends_with_its_caller() {
        let guard = Guard::from(MemoryStore::default());
        let begun = Arc::new(Mutex::new(false));
        let seen = Arc::clone(&begun);
        drop(guard.attend(|_| async move { *seen.lock().unwrap() = true }));
        guard.drain().await;
        assert!(!*begun.lock().unwrap());
    }

    #[tokio::test]
    async fn a_panic_is_its_callers_and_ends_it() {
        let guard = Guard::from(MemoryStore::default());
        let go_on = Arc::new(Notify::new());
        let told = Arc::clone(&go_on);
        let mut work = guard.attend(|_| async move {
            told.notified().await;
            panic!("once");
        });
        assert!((&mut work).now_or_never().is_none());
        go_on.notify_one();
        let polled = catch_unwind(AssertUnwindSafe(|| (&mut work).now_or_never()));
        assert!(polled.is_err());
        assert_eq!(guard.running(), 1);
        drop(work);
        assert_eq!(guard.running(), 0);
    }
}
