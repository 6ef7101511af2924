//! Steps as they travel to the committer, and their answers on the way back.

use semel::store::Result;
use tokio::sync::oneshot;

use super::group::Deciding;
use crate::common::queue::lost;

pub(super) trait Step: Send {
    /// Decides it. Its answer waits for its group to be on disk.
    fn decide(&mut self, on: &mut Deciding<'_>);

    /// Gives the answer that was decided, once its group is on disk; or says why it is not.
    fn answer(self: Box<Self>, on_disk: Result<()>);

    /// Roughly how many bytes it writes.
    fn bytes(&self) -> usize;
}

struct Asked<T, F> {
    decide: Option<F>,
    decided: Option<Result<T>>,
    bytes: usize,
    done: oneshot::Sender<Result<T>>,
}

/// A step, and where its answer comes. Nobody may be there any more; the step is done all the same.
pub(super) fn step<T, F>(bytes: usize, decide: F) -> (Box<dyn Step>, oneshot::Receiver<Result<T>>)
where
    T: Send + 'static,
    F: FnOnce(&mut Deciding<'_>) -> Result<T> + Send + 'static,
{
    let (done, answer) = oneshot::channel();
    let step = Box::new(Asked {
        decide: Some(decide),
        decided: None,
        bytes,
        done,
    });
    (step, answer)
}

impl<T, F> Step for Asked<T, F>
where
    T: Send,
    F: FnOnce(&mut Deciding<'_>) -> Result<T> + Send,
{
    fn decide(&mut self, on: &mut Deciding<'_>) {
        self.decided = self.decide.take().map(|decide| decide(on));
    }

    fn answer(self: Box<Self>, on_disk: Result<()>) {
        let decided = self.decided.unwrap_or_else(|| Err(lost()));
        // An error here means that the caller went away.
        let _ = self.done.send(on_disk.and(decided));
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
