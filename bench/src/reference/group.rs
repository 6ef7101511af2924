//! Group commit: one thread takes all that waits, and makes it durable at once.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use anyhow::Result;
use tokio::sync::oneshot;

type Waiting<T> = (T, oneshot::Sender<()>);

/// What its callers hand it is committed in groups. Ends its thread when it is dropped.
pub(crate) struct Group<T> {
    steps: Option<Sender<Waiting<T>>>,
    committer: Option<JoinHandle<Result<()>>>,
}

impl<T: Send + 'static> Group<T> {
    /// `commit` makes all that it is given durable.
    pub(crate) fn start(commit: impl FnMut(&[T]) -> Result<()> + Send + 'static) -> Self {
        let (steps, queue) = mpsc::channel();
        Self {
            steps: Some(steps),
            committer: Some(thread::spawn(move || take_turns(&queue, commit))),
        }
    }

    /// Waits until it is durable; `false` where the thread has ended.
    pub(crate) async fn step(&self, step: T) -> bool {
        let (done, committed) = oneshot::channel();
        let steps = self.steps.as_ref().expect("open until it is dropped");
        steps.send((step, done)).is_ok() && committed.await.is_ok()
    }
}

impl<T> Drop for Group<T> {
    fn drop(&mut self) {
        drop(self.steps.take());
        if let Some(committer) = self.committer.take() {
            let ended = committer.join().expect("the committing thread");
            ended.expect("what waited was committed");
        }
    }
}

fn take_turns<T>(
    queue: &Receiver<Waiting<T>>,
    mut commit: impl FnMut(&[T]) -> Result<()>,
) -> Result<()> {
    while let Ok(first) = queue.recv() {
        let all = std::iter::once(first).chain(queue.try_iter());
        let (steps, waiting): (Vec<_>, Vec<_>) = all.unzip();
        commit(&steps)?;
        for done in waiting {
            // A caller that went away is not told.
            let _ = done.send(());
        }
    }
    Ok(())
}
